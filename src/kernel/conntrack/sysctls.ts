import type { Sysctl, SysctlLeft, SysctlWrite } from '../sysctl/files.ts'

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

/** A sysctl whose value may still be the kernel's default. */
interface InitialSysctl extends Sysctl {
  /** The kernel's default, where it is the same everywhere: such a value is not an operator's choice. */
  readonly initial: number | undefined
}

const NET = 'proc/sys/net/netfilter/'

/** Documentation/networking/nf_conntrack-sysctl.rst; hashsize is a parameter of the module. */
export const SYSCTLS = {
  max: { name: 'nf_conntrack_max', path: `${NET}nf_conntrack_max`, initial: undefined },
  hashSize: { name: 'hashsize', path: 'sys/module/nf_conntrack/parameters/hashsize', initial: undefined },
  tcpEstablished: netSysctl('nf_conntrack_tcp_timeout_established', 432_000),
  tcpCloseWait: netSysctl('nf_conntrack_tcp_timeout_close_wait', 60),
  tcpFinWait: netSysctl('nf_conntrack_tcp_timeout_fin_wait', 120),
  tcpTimeWait: netSysctl('nf_conntrack_tcp_timeout_time_wait', 120),
  tcpBeLiberal: netSysctl('nf_conntrack_tcp_be_liberal', 0),
  udp: netSysctl('nf_conntrack_udp_timeout', 30),
  udpStream: netSysctl('nf_conntrack_udp_timeout_stream', 120),
} as const satisfies Readonly<Record<string, InitialSysctl>>

function netSysctl(name: string, initial: number): InitialSysctl {
  return { name, path: NET + name, initial }
}

type SysctlKey = keyof typeof SYSCTLS

/** The machine's values; a missing file has no value. */
export interface SysctlFacts {
  readonly processors: number
  readonly values: Readonly<Record<SysctlKey, number | undefined>>
}

export interface SysctlPlan {
  readonly writes: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
}

/** Beyond this limit, more entries cost memory (300 bytes each) without a benefit (kube-proxy 1.36). */
export const CONNTRACK_MAX = 1_048_576
/** Entries per bucket, as the kernel sizes its own table before 5.15. */
const ENTRIES_A_BUCKET = 4

/** Plans the writes in this order: the table has its size before entries come. */
export function planSysctls(settings: ConntrackSettings, facts: SysctlFacts): SysctlPlan {
  const writes: SysctlWrite[] = []
  const left: SysctlLeft[] = []
  for (const { key, wanted, keepsLarger } of wantedValues(settings, facts.processors)) {
    const { name, path, initial }: InitialSysctl = SYSCTLS[key]
    const value = facts.values[key]
    if (value === undefined) left.push({ name, wanted, reason: 'missing', value })
    else if (value === wanted) left.push({ name, wanted, reason: 'equal', value })
    else if (value > wanted && keepsLarger && value !== initial)
      left.push({ name, wanted, reason: 'larger', value })
    else writes.push({ name, path, value: wanted, before: value })
  }
  return { writes, left }
}

interface Wanted {
  readonly key: SysctlKey
  readonly wanted: number
  readonly keepsLarger: boolean
}

function wantedValues(settings: ConntrackSettings, processors: number): readonly Wanted[] {
  const keepsLarger = !settings.lower
  const list: Wanted[] = []
  const max = conntrackMax(settings, processors)
  if (max > 0) {
    list.push({ key: 'max', wanted: max, keepsLarger })
    // More buckets than this are an advantage, so a larger table stays.
    list.push({ key: 'hashSize', wanted: Math.floor(max / ENTRIES_A_BUCKET), keepsLarger: true })
  }
  const timeouts = [
    ['tcpEstablished', settings.tcpEstablishedTimeoutMs],
    ['tcpCloseWait', settings.tcpCloseWaitTimeoutMs],
    ['tcpFinWait', settings.tcpFinWaitTimeoutMs],
    ['tcpTimeWait', settings.tcpTimeWaitTimeoutMs],
    ['udp', settings.udpTimeoutMs],
    ['udpStream', settings.udpStreamTimeoutMs],
  ] as const
  for (const [key, timeoutMs] of timeouts)
    if (timeoutMs !== undefined && timeoutMs > 0)
      list.push({ key, wanted: Math.max(1, Math.floor(timeoutMs / 1000)), keepsLarger })
  if (settings.tcpBeLiberal) list.push({ key: 'tcpBeLiberal', wanted: 1, keepsLarger: true })
  return list
}

/** Computes kube-proxy's getConntrackMax: the minimum is not capped. 0 keeps the kernel's value. */
function conntrackMax({ maxPerCore, min }: ConntrackSettings, processors: number): number {
  if (maxPerCore <= 0) return 0
  const scaled = maxPerCore * processors
  return scaled > min ? Math.min(scaled, CONNTRACK_MAX) : min
}
