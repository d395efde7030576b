import type { Config } from '../config/config.ts'
import { tuneConntrack } from '../kernel/conntrack/sysctl-files.ts'
import { tuneIpvs } from '../kernel/ipvs/sysctl-files.ts'
import type { TuneFailure, TuneOptions, TuneReport } from '../kernel/sysctl/files.ts'
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
export async function tuneMode({ proxyMode, ipvs }: Config, options: TuneOptions = {}): Promise<TuneReport> {
  switch (proxyMode) {
    case 'nftables':
      return { written: [], left: [], failed: [] }
    case 'ipvs':
      return missingFails(await tuneIpvs(ipvs, options))
  }
}

/** What a mode cannot do without is not merely left as it is. */
function missingFails({ written, left, failed }: TuneReport): TuneReport {
  const isMissing = ({ reason }: SysctlLeft) => reason === 'missing'
  const missing = left.filter(isMissing).map(
    ({ name, wanted: value }): TuneFailure => ({
      name,
      value,
      error: new Error('this kernel has no such setting here'),
    }),
  )
  return { written, left: left.filter(each => !isMissing(each)), failed: [...failed, ...missing] }
}
