import type { Sysctl, SysctlLeft, SysctlWrite } from '../sysctl/files.ts'

/** What an operator wants of connection tracking; undefined leaves what is there. */
export interface ConntrackSettings {
  /** Entries a processor; 0 leaves nf_conntrack_max alone. */
  readonly maxPerCore: number
  /** At least so many in all, when maxPerCore counts. */
  readonly min: number
  readonly tcpEstablishedTimeoutMs: number | undefined
  readonly tcpCloseWaitTimeoutMs: number | undefined
  readonly tcpFinWaitTimeoutMs: number | undefined
  readonly tcpTimeWaitTimeoutMs: number | undefined
  /** True sets the sysctl to 1; false leaves it. */
  readonly tcpBeLiberal: boolean
  readonly udpTimeoutMs: number | undefined
  readonly udpStreamTimeoutMs: number | undefined
  /** Values of an operator that are larger than these are lowered, too, as kube-proxy does. */
  readonly lower: boolean
}

/** One that may have been set by the kernel alone. */
interface InitialSysctl extends Sysctl {
  /** What the kernel starts with, where that is one number everywhere: then it is nobody's choice. */
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

/** What the machine is like; a file that is not there has no value. */
export interface SysctlFacts {
  readonly processors: number
  readonly values: Readonly<Record<SysctlKey, number | undefined>>
}

export interface SysctlPlan {
  readonly writes: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
}

/** Beyond this, more entries cost memory (300 bytes each) for a problem that they do not solve (kube-proxy 1.36). */
export const CONNTRACK_MAX = 1_048_576
/** Entries in a bucket, as the kernel sizes its own table before 5.15. */
const ENTRIES_A_BUCKET = 4

/** What to write, in this order: the table is as large as its limit asks before entries come. */
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
    // A table of more buckets than that is only better.
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

/** kube-proxy's getConntrackMax: the minimum is not capped. 0 for none. */
function conntrackMax({ maxPerCore, min }: ConntrackSettings, processors: number): number {
  if (maxPerCore <= 0) return 0
  const scaled = maxPerCore * processors
  return scaled > min ? Math.min(scaled, CONNTRACK_MAX) : min
}
