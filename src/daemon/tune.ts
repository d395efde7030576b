import type { Config } from '../config/config.ts'
import { answersAtLoopback } from '../config/loopback.ts'
import { tuneConntrack } from '../kernel/conntrack/sysctl-files.ts'
import { tuneIpvs } from '../kernel/ipvs/sysctl-files.ts'
import type { TuneFailure, TuneOptions, TuneReport } from '../kernel/sysctl/files.ts'
import { tuneSwitches, wantedSysctl } from '../kernel/sysctl/switches.ts'
import type { SysctlLeft } from '../kernel/sysctl/sysctl.ts'

/** Brings the kernel's settings to what the configuration asks for and its mode needs. Does not reject. */
export async function tuneKernel(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  const reports = [await tuneConntrack(config.conntrack, options), await tuneMode(config, options)]
  return {
    written: reports.flatMap(({ written }) => written),
    left: reports.flatMap(({ left }) => left),
    failed: reports.flatMap(({ failed }) => failed),
  }
}

/** Only what the mode cannot do without. */
export async function tuneMode(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  switch (config.proxyMode) {
    case 'nftables':
    case 'userspace':
      return NOTHING
    case 'ipvs':
      return missingFails(await tuneIpvs(config.ipvs, options))
    case 'iptables':
      return answersAtLoopback(config) ? missingFails(await tuneSwitches([ROUTE_LOCALNET], options)) : NOTHING
  }
}

const NOTHING: TuneReport = { written: [], left: [], failed: [] }

/** Packets from 127.0.0.1 may leave by a device: those of a connection to a NodePort there do. */
export const ROUTE_LOCALNET = wantedSysctl('net/ipv4/conf/all/route_localnet', 1)

/** What a mode cannot do without is not merely left as it is. */
function missingFails({ written, left, failed }: TuneReport): TuneReport {
  const isMissing = ({ reason }: SysctlLeft) => reason === 'missing'
  const missing = left.filter(isMissing).map(
    ({ name, wanted: value }): TuneFailure => ({
      name,
      value,
      error: new Error('this kernel has no such sysctl in this network namespace'),
    }),
  )
  return { written, left: left.filter(each => !isMissing(each)), failed: [...failed, ...missing] }
}
