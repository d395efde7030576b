import type { Config } from '../../config/config.ts'
import type { TuneOptions, TuneReport } from '../../kernel/sysctl/files.ts'
import { tuneSwitches, wantedSysctl } from '../../kernel/sysctl/switches.ts'
import { missingFails } from '../common/tune.ts'
import { answersAtLoopback } from './loopback.ts'

/** Packets from 127.0.0.1 may leave by a device: those of a connection to a NodePort there do. */
export const ROUTE_LOCALNET = wantedSysctl('net/ipv4/conf/all/route_localnet', 1)

export async function tuneIptables(config: Config, options: TuneOptions): Promise<TuneReport> {
  const wanted = answersAtLoopback(config) ? [ROUTE_LOCALNET] : []
  return missingFails(await tuneSwitches(wanted, options))
}
