import { readdirSync, readFileSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { errorOf } from '../../base/errors.ts'
import type { Family } from '../../base/ip.ts'

/** A kernel setting, a number that a file represents. */
export interface Sysctl {
  readonly name: string
  /** Relative to the root of the file system. */
  readonly path: string
  /** The kernel's default, where it is the same everywhere: such a value is not an operator's choice. */
  readonly initial?: number
}

export interface SysctlWrite extends Sysctl {
  readonly value: number
  readonly before: number
}

/** A wanted value that was not written. */
export interface SysctlLeft {
  readonly name: string
  readonly wanted: number
  readonly reason: /** The setting has that value already. */
    | 'equal'
    /** Another program set a larger value. */
    | 'larger'
    | 'missing'
  /** Undefined when the file is missing. */
  readonly value: number | undefined
}

export interface TuneReport {
  readonly written: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
  /** Reads and writes that failed; nothing else depends on them. */
  readonly failed: readonly TuneFailure[]
}

interface TuneFailure {
  readonly name: string
  /** Undefined when the read failed. */
  readonly value: number | undefined
  readonly error: Error
}

export interface TuneOptions {
  /** The directory of proc and sys, ending in a slash. */
  readonly root?: string
}

/** Reads a sysctl; undefined when there is no such file. Throws when it cannot be read, or is not a number. */
export async function readSysctl(path: string): Promise<number | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (thrown) {
    if (thrown instanceof Error && 'code' in thrown && thrown.code === 'ENOENT') return undefined
    throw thrown
  }
  const value = Number(text.trim())
  if (text.trim() === '' || !Number.isInteger(value))
    throw new Error(`${path}: not a number: ${JSON.stringify(text)}`)
  return value
}

/** Reads a sysctl synchronously, for values needed before a plane exists; undefined also where it cannot be read. */
export function settingNow(path: string): number | undefined {
  try {
    const text = readFileSync(path, 'utf8').trim()
    return /^-?\d+$/.test(text) ? Number(text) : undefined
  } catch {
    return undefined
  }
}

/** Names the setting by which no interface forwards packets; undefined where one does, or where it cannot be read. */
export function whyUnforwarded(family: Family, root = '/proc/sys/net'): string | undefined {
  if (forwards(family === 'IPv4' ? 'ipv4' : 'ipv6', root) !== false) return undefined
  const setting = family === 'IPv4' ? 'net.ipv4.ip_forward' : 'net.ipv6.conf.all.forwarding'
  return `${setting} is 0, so this node drops packets that it should forward to an endpoint`
}

function forwards(family: 'ipv4' | 'ipv6', root: string): boolean | undefined {
  const conf = `${root}/${family}/conf`
  const all = settingNow(`${conf}/all/forwarding`)
  if (all !== 0) return all === undefined ? undefined : true
  const own = family === 'ipv4' ? 'forwarding' : 'force_forwarding'
  const links = readdirSync(conf).filter(name => name !== 'all' && name !== 'default')
  return links.some(name => settingNow(`${conf}/${name}/${own}`) === 1)
}

/** Writes sysctls in this order. Does not reject. */
async function writeSysctls(
  writes: readonly SysctlWrite[],
  root: string,
): Promise<Pick<TuneReport, 'written' | 'failed'>> {
  const written: SysctlWrite[] = []
  const failed: TuneFailure[] = []
  for (const write of writes) {
    const error = await writeSysctl(root + write.path, write.value)
    if (error === undefined) written.push(write)
    else failed.push({ name: write.name, value: write.value, error })
  }
  return { written, failed }
}

/** Writes a sysctl; returns the error if that fails. */
export async function writeSysctl(path: string, value: number): Promise<Error | undefined> {
  try {
    await writeFile(path, String(value))
    return undefined
  } catch (thrown) {
    return errorOf(thrown)
  }
}

export interface WantedSysctl {
  readonly sysctl: Sysctl
  readonly value: number
  /** Keeps a larger value, unless it is the kernel's default; otherwise kprobe overwrites every other value. */
  readonly keepsLarger?: boolean
}

export interface SysctlPlan {
  readonly writes: readonly SysctlWrite[]
  readonly left: readonly SysctlLeft[]
}

/** Returns the sysctl of a name under /proc/sys, with slashes. */
export function wantedSysctl(name: string, value: number): WantedSysctl {
  return { sysctl: { name, path: `proc/sys/${name}` }, value }
}

/** Plans the writes, in the order of `list`. `values` are the current ones by name, undefined for missing sysctls. */
export function planSysctls(
  list: readonly WantedSysctl[],
  values: ReadonlyMap<string, number | undefined>,
): SysctlPlan {
  const writes: SysctlWrite[] = []
  const left: SysctlLeft[] = []
  for (const { sysctl, value: wanted, keepsLarger = false } of list) {
    const { name, path, initial } = sysctl
    const value = values.get(name)
    if (value === undefined) left.push({ name, wanted, reason: 'missing', value })
    else if (value === wanted) left.push({ name, wanted, reason: 'equal', value })
    else if (value > wanted && keepsLarger && value !== initial)
      left.push({ name, wanted, reason: 'larger', value })
    else writes.push({ name, path, value: wanted, before: value })
  }
  return { writes, left }
}

/** Sets sysctls as planSysctls plans it. Does not reject. */
export async function tuneSysctls(
  list: readonly WantedSysctl[],
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  const unread: TuneFailure[] = []
  const values = new Map<string, number | undefined>()
  for (const { sysctl } of list) {
    const { name, path } = sysctl
    try {
      values.set(name, await readSysctl(root + path))
    } catch (thrown) {
      unread.push({ name, value: undefined, error: errorOf(thrown) })
    }
  }
  // A file that exists but cannot be read is not missing.
  const readable = list.filter(({ sysctl }) => values.has(sysctl.name))
  const plan = planSysctls(readable, values)
  const { written, failed } = await writeSysctls(plan.writes, root)
  return { written, left: plan.left, failed: [...unread, ...failed] }
}

/** Counts a sysctl that does not exist as a failure, because the mode cannot work without it. */
export function missingFails({ written, left, failed }: TuneReport): TuneReport {
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

interface IpvsSysctlSettings {
  /** The node answers ARP only for addresses of the receiving interface, so not for those of kube-ipvs0. */
  readonly strictArp: boolean
}

/**
 * Lists the sysctls that kube-proxy's IPVS mode sets (Documentation/networking/ipvs-sysctl.rst and ip-sysctl.rst).
 * IPVS's own exist once its module is loaded. Its conn_reuse_mode delays no connection since Linux 5.9.
 */
export function ipvsSysctls({ strictArp }: IpvsSysctlSettings): readonly WantedSysctl[] {
  return [
    // IPVS connections have a conntrack entry, so that rules can masquerade them.
    wantedSysctl('net/ipv4/vs/conntrack', 1),
    // The kernel drops a connection when its real server is removed, without waiting for its timeout.
    wantedSysctl('net/ipv4/vs/expire_nodest_conn', 1),
    wantedSysctl('net/ipv4/vs/expire_quiescent_template', 1),
    wantedSysctl('net/ipv4/ip_forward', 1),
    ...(strictArp
      ? [wantedSysctl('net/ipv4/conf/all/arp_ignore', 1), wantedSysctl('net/ipv4/conf/all/arp_announce', 2)]
      : []),
  ]
}

/** Sets the kernel's sysctls for IPVS mode, as ipvsSysctls lists them. Does not reject. */
export async function tuneIpvs(
  settings: IpvsSysctlSettings,
  { root = '/' }: TuneOptions = {},
): Promise<TuneReport> {
  return await tuneSysctls(ipvsSysctls(settings), { root })
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

/** Counts the processors of the machine, even if this process may use only some: `0-3,8` is five. */
export async function countProcessors(root: string): Promise<number> {
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
