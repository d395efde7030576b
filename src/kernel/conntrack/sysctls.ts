import { readFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import {
  type Sysctl,
  type TuneOptions,
  type TuneReport,
  tuneSysctls,
  type WantedSysctl,
} from '../sysctl/sysctls.ts'

/** The conntrack settings of an operator; undefined keeps the kernel's value. */
export interface ConntrackSettings {
  /** Entries per processor; 0 keeps nf_conntrack_max. */
  readonly maxPerCore: number
  /** Minimum of the total, when maxPerCore applies. */
  readonly min: number
  readonly tcpEstablishedTimeoutMs: number | undefined
  readonly tcpCloseWaitTimeoutMs: number | undefined
  readonly tcpFinWaitTimeoutMs: number | undefined
  readonly tcpTimeWaitTimeoutMs: number | undefined
  /** True sets the sysctl to 1; false leaves it. */
  readonly tcpBeLiberal: boolean
  readonly udpTimeoutMs: number | undefined
  readonly udpStreamTimeoutMs: number | undefined
  /** Also lower values that an operator set higher, as kube-proxy does. */
  readonly lower: boolean
}

const NET = 'proc/sys/net/netfilter/'

/** Documentation/networking/nf_conntrack-sysctl.rst; hashsize is a parameter of the module. */
export const SYSCTLS = {
  max: { name: 'nf_conntrack_max', path: `${NET}nf_conntrack_max` },
  hashSize: { name: 'hashsize', path: 'sys/module/nf_conntrack/parameters/hashsize' },
  tcpEstablished: netSysctl('nf_conntrack_tcp_timeout_established', 432_000),
  tcpCloseWait: netSysctl('nf_conntrack_tcp_timeout_close_wait', 60),
  tcpFinWait: netSysctl('nf_conntrack_tcp_timeout_fin_wait', 120),
  tcpTimeWait: netSysctl('nf_conntrack_tcp_timeout_time_wait', 120),
  tcpBeLiberal: netSysctl('nf_conntrack_tcp_be_liberal', 0),
  udp: netSysctl('nf_conntrack_udp_timeout', 30),
  udpStream: netSysctl('nf_conntrack_udp_timeout_stream', 120),
} as const satisfies Readonly<Record<string, Sysctl>>

function netSysctl(name: string, initial: number): Sysctl {
  return { name, path: NET + name, initial }
}

/** Beyond this limit, more entries cost memory (300 bytes each) without a benefit (kube-proxy 1.36). */
export const CONNTRACK_MAX = 1_048_576
/** Entries per bucket, as the kernel sizes its own table before 5.15. */
const ENTRIES_A_BUCKET = 4

/** Lists the wanted sysctls. The order matters: the table has its size before entries come. */
export function conntrackSysctls(settings: ConntrackSettings, processors: number): readonly WantedSysctl[] {
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

/** Computes kube-proxy's getConntrackMax: the minimum is not capped. 0 keeps the kernel's value. */
function conntrackMax({ maxPerCore, min }: ConntrackSettings, processors: number): number {
  if (maxPerCore <= 0) return 0
  const scaled = maxPerCore * processors
  return scaled > min ? Math.min(scaled, CONNTRACK_MAX) : min
}

/** Sets the kernel's conntrack sysctls. Does not reject. */
export async function tuneConntrack(
  settings: ConntrackSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(conntrackSysctls(settings, await countProcessors(root)), { root })
}

/** Counts the processors of the machine, even if this process may use only some: `0-3,8` is five. */
async function countProcessors(root: string): Promise<number> {
  try {
    const text = await readFile(`${root}sys/devices/system/cpu/online`, 'utf8')
    return countOf(text.trim()) ?? availableParallelism()
  } catch {
    return availableParallelism()
  }
}

function countOf(list: string): number | undefined {
  let count = 0
  for (const part of list.split(',')) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(part)
    if (match === null) return undefined
    count += Number(match[2] ?? match[1]) - Number(match[1]) + 1
  }
  return count
}
