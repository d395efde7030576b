import type { Config, ConntrackConfig } from '../config/config.ts'
import {
  countProcessors,
  SYSCTLS,
  type SysctlWrite,
  type TuneOptions,
  type TuneReport,
  tuneSysctls,
  type WantedSysctl,
} from '../kernel/sysctl/sysctls.ts'
import type { KernelAccess } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'

/** Sets the kernel settings that the configuration and its mode need. Does not reject. */
export async function tuneKernel(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  const reports = [await tuneConntrack(config.conntrack, options), await tuneMode(config, options)]
  return {
    written: reports.flatMap(({ written }) => written),
    left: reports.flatMap(({ left }) => left),
    failed: reports.flatMap(({ failed }) => failed),
  }
}

/** Sets only the settings that the mode cannot run without. */
export async function tuneMode(config: Config, options: TuneOptions = {}): Promise<TuneReport> {
  return (await findMode(config.proxyMode).tune?.(config, options)) ?? NOTHING
}

export async function writeRecord(
  config: Config,
  written: readonly SysctlWrite[],
  kernel: KernelAccess,
): Promise<void> {
  await findMode(config.proxyMode).record?.(config, written, kernel)
}

const NOTHING: TuneReport = { written: [], left: [], failed: [] }

/** Beyond this limit, more entries cost memory (300 bytes each) without a benefit (kube-proxy 1.36). */
export const CONNTRACK_MAX = 1_048_576
/** Entries per bucket, as the kernel sizes its own table before 5.15. */
const ENTRIES_A_BUCKET = 4

/** Lists the wanted sysctls. The order matters: the table has its size before entries come. */
export function conntrackSysctls(settings: ConntrackConfig, processors: number): readonly WantedSysctl[] {
  const keepsLarger = !settings.lower
  const list: WantedSysctl[] = []
  const max = conntrackMax(settings, processors)
  if (max > 0) {
    list.push({ sysctl: SYSCTLS.max, value: max, keepsLarger })
    // More buckets than this are an advantage, so a larger table stays.
    list.push({ sysctl: SYSCTLS.hashSize, value: Math.floor(max / ENTRIES_A_BUCKET), keepsLarger: true })
  }
  const timeouts = [
    [SYSCTLS.tcpEstablished, settings.tcpEstablishedTimeoutMs],
    [SYSCTLS.tcpCloseWait, settings.tcpCloseWaitTimeoutMs],
    [SYSCTLS.tcpFinWait, settings.tcpFinWaitTimeoutMs],
    [SYSCTLS.tcpTimeWait, settings.tcpTimeWaitTimeoutMs],
    [SYSCTLS.udp, settings.udpTimeoutMs],
    [SYSCTLS.udpStream, settings.udpStreamTimeoutMs],
  ] as const
  for (const [sysctl, timeoutMs] of timeouts)
    if (timeoutMs !== undefined && timeoutMs > 0)
      list.push({ sysctl, value: Math.max(1, Math.floor(timeoutMs / 1000)), keepsLarger })
  if (settings.tcpBeLiberal) list.push({ sysctl: SYSCTLS.tcpBeLiberal, value: 1, keepsLarger: true })
  return list
}

/** Computes kube-proxy's getConntrackMax: the minimum alone may exceed the cap. 0 keeps the kernel's value. */
function conntrackMax({ maxPerCore, min }: ConntrackConfig, processors: number): number {
  if (maxPerCore <= 0) return 0
  const scaled = maxPerCore * processors
  return scaled > CONNTRACK_MAX ? CONNTRACK_MAX : Math.max(scaled, min)
}

/** Sets the kernel's conntrack sysctls. Does not reject. */
export async function tuneConntrack(
  settings: ConntrackConfig,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(conntrackSysctls(settings, await countProcessors(root)), { root })
}
