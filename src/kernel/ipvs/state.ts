import { compareIps, type Family, familyOf, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import type { PortProtocol } from '../../base/ip-packet.ts'
import { readU32host, u32be } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import {
  type Codec,
  octets,
  paddedOctets,
  string,
  u16be,
  u16host,
  u32host,
  u64host,
} from '../../netlink/codecs.ts'
import { malformed } from '../../netlink/errors.ts'
import { attributeSet, nested } from '../../netlink/schema.ts'
import type { Ipset, IpsetEntry } from '../ipset/state.ts'

/** linux/ip_vs.h, linux/in.h and linux/socket.h, under the headers' own names. */

export const IPVS_GENL_VERSION = 1

export const IPVS_CMD_NEW_SERVICE = 1
export const IPVS_CMD_SET_SERVICE = 2
export const IPVS_CMD_DEL_SERVICE = 3
export const IPVS_CMD_GET_SERVICE = 4
export const IPVS_CMD_NEW_DEST = 5
export const IPVS_CMD_SET_DEST = 6
export const IPVS_CMD_DEL_DEST = 7
export const IPVS_CMD_GET_DEST = 8
export const IPVS_CMD_SET_CONFIG = 12
export const IPVS_CMD_GET_CONFIG = 13
export const IPVS_CMD_SET_INFO = 14
export const IPVS_CMD_GET_INFO = 15

export const IP_VS_SVC_F_PERSISTENT = 0x01
export const IP_VS_SVC_F_HASHED = 0x02
/** Each datagram is a connection by itself. */
export const IP_VS_SVC_F_ONEPACKET = 0x04
/** The scheduler defines the meaning of these three. */
export const IP_VS_SVC_F_SCHED1 = 0x08
export const IP_VS_SVC_F_SCHED2 = 0x10
export const IP_VS_SVC_F_SCHED3 = 0x20

export const IP_VS_CONN_F_FWD_MASK = 0x07
export const IP_VS_CONN_F_MASQ = 0x00
export const IP_VS_CONN_F_LOCALNODE = 0x01
export const IP_VS_CONN_F_TUNNEL = 0x02
export const IP_VS_CONN_F_DROUTE = 0x03
export const IP_VS_CONN_F_BYPASS = 0x04

/** The length in struct ip_vs_scheduler, including the NUL. */
export const IP_VS_SCHEDNAME_MAXLEN = 16

/** The IPVS attributes that kprobe uses: linux/ip_vs.h, and the policies in net/netfilter/ipvs/ip_vs_ctl.c. */

/** union nf_inet_addr: 16 bytes; IPv4 uses the first four. */
const address = paddedOctets(16)

const ALL_FLAGS = 0xffff_ffff

/** struct ip_vs_flags: flags, and a mask of the valid ones. */
const flags: Codec<number> = {
  write(out, type, value) {
    out.open(type)
    out.out.u32(value)
    out.out.u32(ALL_FLAGS)
    out.close()
  },
  read(view, start, end, depth) {
    const both = octets.read(view, start, end, depth)
    if (both.length !== 8) throw malformed(`flags of ${both.length} bytes`, start)
    return readU32host(both)
  },
}

export const STATS = attributeSet({
  connections: [1, u64host],
  packetsIn: [2, u64host],
  packetsOut: [3, u64host],
  bytesIn: [4, u64host],
  bytesOut: [5, u64host],
})

export const SERVICE = attributeSet({
  /** AF_*. */
  family: [1, u16host],
  protocol: [2, u16host],
  address: [3, address],
  port: [4, u16be],
  mark: [5, u32host],
  scheduler: [6, string],
  flags: [7, flags],
  timeoutS: [8, u32host],
  /** IPv4: a mask in network order; IPv6: the length of a prefix in host order. */
  netmask: [9, octets],
})

export const DESTINATION = attributeSet({
  address: [1, address],
  port: [2, u16be],
  forwarding: [3, u32host],
  weight: [4, u32host],
  connectionsMax: [5, u32host],
  connectionsLow: [6, u32host],
  activeConnections: [7, u32host],
  inactiveConnections: [8, u32host],
  /** AF_*. */
  family: [11, u16host],
  /** IPVS_DEST_ATTR_STATS64. */
  stats: [12, nested(STATS)],
})

/** The first-level attributes of a command. */
export const COMMAND = attributeSet({
  service: [1, nested(SERVICE)],
  destination: [2, nested(DESTINATION)],
  tcpS: [4, u32host],
  tcpFinS: [5, u32host],
  udpS: [6, u32host],
})

/** The first-level attributes of IPVS_CMD_SET_INFO, the answer to IPVS_CMD_GET_INFO. */
export const INFO = attributeSet({
  version: [1, u32host],
  connectionTableSize: [2, u32host],
})

/** The IPVS state as values; numbers are as in linux/ip_vs.h. */
export type IpvsProtocol = PortProtocol

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

/** One message to IPVS. The kernel carries out each by itself (kernel.md 5). */
export type IpvsOperation = { readonly group: string } & (
  | {
      readonly verb: 'set-server'
      readonly server: VirtualServer
      /** The kernel rejects a new server that exists, and a change of one that does not. */
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

/** Objects of all programs that decide about packets outside of nf_tables in IPVS mode. */
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

/** Prints the lines of `ipvsadm -S -n`, sorted by address. It omits the kind of a tunnel: -R reads it as IPIP. */
export function printSave(servers: readonly HeldServer[]): readonly string[] {
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
  if ((flags & IP_VS_SVC_F_ONEPACKET) !== 0) parts.push('-o')
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
    [IP_VS_SVC_F_SCHED1, hasNames ? `${scheduler}-fallback` : 'flag-1'],
    [IP_VS_SVC_F_SCHED2, hasNames ? `${scheduler}-port` : 'flag-2'],
    [IP_VS_SVC_F_SCHED3, 'flag-3'],
  ] as const
  return names.filter(([bit]) => (flags & bit) !== 0).map(([, name]) => name)
}

/** A method without an ipvsadm option is printed as masquerading, as ipvsadm does. */
const FORWARDING_OPTIONS: ReadonlyMap<number, string> = new Map([
  [IP_VS_CONN_F_MASQ, '-m'],
  [IP_VS_CONN_F_LOCALNODE, '-g'],
  [IP_VS_CONN_F_TUNNEL, '-i'],
  [IP_VS_CONN_F_DROUTE, '-g'],
  [IP_VS_CONN_F_BYPASS, '-b'],
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
