import { compareIps, type Family, familyOf, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { u32be } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import type { Ipset, IpsetEntry } from '../ipset/state.ts'
import * as ipvs from './schema.ts'
import { IP_VS_SVC_F_PERSISTENT } from './schema.ts'

/** The IPVS state as values; numbers are as in linux/ip_vs.h. */
export type IpvsProtocol = 'TCP' | 'UDP' | 'SCTP'

/** The address, protocol and port of a virtual server. */
export interface VirtualAddress {
  readonly protocol: IpvsProtocol
  readonly ip: Ip
  readonly port: number
}

export interface VirtualServer extends VirtualAddress {
  /** Name of the kernel's module without `ip_vs_`: rr, wrr, lc, mh. */
  readonly scheduler: string
  /** IP_VS_SVC_F_* without IP_VS_SVC_F_HASHED, which the kernel sets itself. */
  readonly flags: number
  /** Seconds of persistence; 0 unless IP_VS_SVC_F_PERSISTENT is set. */
  readonly timeoutS: number
  /** The bits of a client's address that persistence compares, in the kernel's form (mask or prefix length). */
  readonly netmask: number
}

/** A server that receives connections. kprobe writes only IP_VS_CONN_F_MASQ and leaves other kinds unchanged. */
export interface RealServer {
  readonly ip: Ip
  readonly port: number
  /** 0 receives no new connections. */
  readonly weight: number
  /** The bits IP_VS_CONN_F_FWD_MASK of its flags. */
  readonly forwarding: number
}

/** IPVS_STATS_ATTR_*: totals since the real server was added. */
export interface IpvsStats {
  readonly connections: bigint
  readonly packetsIn: bigint
  readonly packetsOut: bigint
  readonly bytesIn: bigint
  readonly bytesOut: bigint
}

export interface ListedDestination {
  readonly destination: RealServer
  readonly stats: IpvsStats
  readonly activeConnections: number
  readonly inactiveConnections: number
}

/** Timeouts in seconds; 0 keeps the kernel's value (IPVS_CMD_SET_CONFIG). */
export interface IpvsTimeouts {
  readonly tcpS: number
  readonly tcpFinS: number
  readonly udpS: number
}

export interface IpvsInfo {
  /** `1.2.1`. */
  readonly version: string
  readonly connectionTableSize: number
}

/** `TCP 10.96.0.1:443`: unique, and used in messages. */
export type ServerKey = string

/** `TCP 10.96.0.1:443`, `UDP [2001:db8::1]:53`. */
export function serverKey({ protocol, ip, port }: VirtualAddress): ServerKey {
  return `${protocol} ${formatIpPort(ip, port)}`
}

/** `10.0.0.1:80`: unique among the real servers of one virtual server. */
export function destinationKey({ ip, port }: Pick<RealServer, 'ip' | 'port'>): string {
  return formatIpPort(ip, port)
}

/** Returns whether a client keeps its real server until the timeout expires. */
export function isPersistent({ flags }: VirtualServer): boolean {
  return (flags & IP_VS_SVC_F_PERSISTENT) !== 0
}

/** The netmask for persistence by whole addresses, in the form of VirtualServer. */
export const WHOLE_ADDRESS: Readonly<Record<Family, number>> = { IPv4: 0xffff_ffff, IPv6: 128 }

/** Returns whether two virtual servers with the same address have the same settings. */
export function sameSettings(a: VirtualServer, b: VirtualServer): boolean {
  return (
    a === b ||
    (a.scheduler === b.scheduler &&
      a.flags === b.flags &&
      a.timeoutS === b.timeoutS &&
      a.netmask === b.netmask)
  )
}

/** Returns whether two real servers with the same address have the same settings. */
export function sameDestination(a: RealServer, b: RealServer): boolean {
  return a === b || (a.weight === b.weight && a.forwarding === b.forwarding)
}

/**
 * One message to IPVS. The kernel carries out each by itself (kernel.md 5). Operations are idempotent: one that sets
 * an object changes it if it exists, and one that deletes an object succeeds if it is gone.
 */
export type IpvsOperation = { readonly group: string } & (
  | {
      readonly verb: 'set-server'
      readonly server: VirtualServer
      /** Whether the server is expected to be missing in the kernel. */
      readonly isNew: boolean
    }
  | { readonly verb: 'delete-server'; readonly server: VirtualAddress }
  | {
      readonly verb: 'set-destination'
      readonly server: VirtualAddress
      readonly destination: RealServer
      readonly isNew: boolean
    }
  | { readonly verb: 'delete-destination'; readonly server: VirtualAddress; readonly destination: RealServer }
)

/** What decides about packets outside of nf_tables in IPVS mode: objects of all programs. */
export interface IpvsHeld {
  readonly servers: readonly HeldServer[]
  readonly ipsets: readonly HeldIpset[]
  /** Addresses of all devices. IPVS receives packets to them. */
  readonly addresses: readonly Ip[]
}

export interface HeldServer {
  readonly server: VirtualServer
  readonly destinations: readonly RealServer[]
}

export interface HeldIpset {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
}

/** What commits changed of it. */
export interface IpvsChange {
  /** Virtual servers that came, changed or went. */
  readonly servers: readonly { readonly at: VirtualAddress; readonly now: HeldServer | undefined }[]
  readonly entries: readonly { readonly set: string; readonly entry: IpsetEntry; readonly isThere: boolean }[]
  /** Why packets to every Service are concerned; undefined where only these are. */
  readonly why: string | undefined
}

interface PrintedServer {
  readonly server: VirtualServer
  readonly destinations: readonly RealServer[]
}

/** Prints the lines of `ipvsadm -S -n`, sorted by address. It omits the kind of a tunnel: -R reads it as IPIP. */
export function printSave(servers: readonly PrintedServer[]): readonly string[] {
  const sorted = [...servers].sort((a, b) => compareAddresses(a.server, b.server))
  return sorted.flatMap(({ server, destinations }) => [
    `-A ${printServer(server)}`,
    ...[...destinations].sort(compareDestinations).map(each => `-a ${printDestination(server, each)}`),
  ])
}

const PROTOCOL_OPTIONS: Readonly<Record<IpvsProtocol, string>> = {
  TCP: '-t',
  UDP: '-u',
  SCTP: '--sctp-service',
}

function printAddress({ protocol, ip, port }: VirtualAddress): string {
  return `${PROTOCOL_OPTIONS[protocol]} ${formatIpPort(ip, port)}`
}

function printServer(server: VirtualServer): string {
  const { scheduler, flags, timeoutS } = server
  const parts = [`${printAddress(server)} -s ${scheduler}`]
  if (isPersistent(server)) parts.push(`-p ${timeoutS}`, ...printNetmask(server))
  if ((flags & ipvs.IP_VS_SVC_F_ONEPACKET) !== 0) parts.push('-o')
  const names = schedulerFlags(scheduler, flags)
  if (names.length > 0) parts.push(`-b ${names.join(',')}`)
  return parts.join(' ')
}

function printNetmask({ ip, netmask }: VirtualServer): readonly string[] {
  const family = familyOf(ip)
  if (netmask === WHOLE_ADDRESS[family]) return []
  return [`-M ${family === 'IPv4' ? formatIp(u32be(netmask)) : netmask}`]
}

/** Two schedulers name these flags themselves (net/netfilter/ipvs/ip_vs_sh.c, ip_vs_mh.c). */
function schedulerFlags(scheduler: string, flags: number): readonly string[] {
  const hasNames = scheduler === 'sh' || scheduler === 'mh'
  const names = [
    [ipvs.IP_VS_SVC_F_SCHED1, hasNames ? `${scheduler}-fallback` : 'flag-1'],
    [ipvs.IP_VS_SVC_F_SCHED2, hasNames ? `${scheduler}-port` : 'flag-2'],
    [ipvs.IP_VS_SVC_F_SCHED3, 'flag-3'],
  ] as const
  return names.filter(([bit]) => (flags & bit) !== 0).map(([, name]) => name)
}

/** A method without an ipvsadm option is printed as masquerading, as ipvsadm does. */
const FORWARDING_OPTIONS: ReadonlyMap<number, string> = new Map([
  [ipvs.IP_VS_CONN_F_MASQ, '-m'],
  [ipvs.IP_VS_CONN_F_LOCALNODE, '-g'],
  [ipvs.IP_VS_CONN_F_TUNNEL, '-i'],
  [ipvs.IP_VS_CONN_F_DROUTE, '-g'],
  [ipvs.IP_VS_CONN_F_BYPASS, '-b'],
])

function printDestination(server: VirtualAddress, { ip, port, forwarding, weight }: RealServer): string {
  const method = FORWARDING_OPTIONS.get(forwarding) ?? '-m'
  return `${printAddress(server)} -r ${formatIpPort(ip, port)} ${method} -w ${weight}`
}

function compareAddresses(a: VirtualAddress, b: VirtualAddress): number {
  return compareIps(a.ip, b.ip) || compareTexts(a.protocol, b.protocol) || a.port - b.port
}

function compareDestinations(a: RealServer, b: RealServer): number {
  return compareIps(a.ip, b.ip) || a.port - b.port
}
