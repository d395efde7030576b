import type { Family, Ip } from '../../base/ip.ts'
import { type Octets, readU32be, readU32host } from '../../base/octets.ts'
import { type ByteView, viewOf } from '../../netlink/bytes.ts'
import { malformed } from '../../netlink/errors.ts'
import { genericSpan, readGenlMsgHdr } from '../../netlink/genetlink.ts'
import type { Message } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../netlink/schema.ts'
import {
  AF_INET,
  AF_INET6,
  IP_VS_CONN_F_FWD_MASK,
  IP_VS_SVC_F_HASHED,
  IPPROTO_SCTP,
  IPPROTO_TCP,
  IPPROTO_UDP,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_CONFIG,
  IPVS_CMD_SET_INFO,
} from './constants.ts'
import { COMMAND, INFO, STATS, type STATS64 } from './schema.ts'
import type {
  IpvsInfo,
  IpvsProtocol,
  IpvsStats,
  IpvsTimeouts,
  ListedDestination,
  VirtualServer,
} from './state.ts'

const PROTOCOLS: ReadonlyMap<number, IpvsProtocol> = new Map([
  [IPPROTO_TCP, 'TCP'],
  [IPPROTO_UDP, 'UDP'],
  [IPPROTO_SCTP, 'SCTP'],
])

/** Decodes a virtual server; undefined for one of a mark, an unknown family or protocol. Throws NetlinkError. */
export function decodeServer(view: ByteView, message: Message): VirtualServer | undefined {
  const { service } = commandOf(view, message, IPVS_CMD_NEW_SERVICE) ?? {}
  if (service === undefined) return undefined
  const { mark, scheduler, flags, timeoutS, netmask } = service
  const family = familyOfServer(service)
  if (family === undefined) return undefined
  if (scheduler === undefined) throw malformed('a virtual server without its scheduler', message.start)
  if (mark !== undefined) return undefined
  const { protocol: protocolNumber, address, port } = service
  if (protocolNumber === undefined || address === undefined || port === undefined)
    throw malformed('a virtual server without its address', message.start)
  if (flags === undefined || timeoutS === undefined || netmask?.length !== 4)
    throw malformed('a virtual server without its settings', message.start)
  const protocol = PROTOCOLS.get(protocolNumber)
  if (protocol === undefined) return undefined
  return {
    protocol,
    ip: ipOf(address, family),
    port,
    scheduler,
    flags: (flags & ~IP_VS_SVC_F_HASHED) >>> 0,
    timeoutS,
    netmask: family === 'IPv4' ? readU32be(netmask) : readU32host(netmask),
  }
}

/** Decodes a real server; before Linux 3.18 the answer has no family, and `family` is that of the virtual server. */
export function decodeDestination(
  view: ByteView,
  message: Message,
  family: Family,
): ListedDestination | undefined {
  const { destination } = commandOf(view, message, IPVS_CMD_NEW_DEST) ?? {}
  if (destination === undefined) return undefined
  const { address, port, weight, forwarding } = destination
  if (address === undefined || port === undefined || weight === undefined || forwarding === undefined)
    throw malformed('a real server without its address or settings', message.start)
  const own = destination.family === undefined ? family : familyOfNumber(destination.family)
  if (own === undefined) return undefined
  return {
    destination: { ip: ipOf(address, own), port, weight, forwarding: forwarding & IP_VS_CONN_F_FWD_MASK },
    stats: statsOf(destination),
    activeConnections: destination.activeConnections ?? 0,
    inactiveConnections: destination.inactiveConnections ?? 0,
  }
}

/** Decodes the timeouts. A kernel built without one of the protocols omits its timeouts: they are 0. */
export function decodeTimeouts(view: ByteView, message: Message): IpvsTimeouts | undefined {
  const values = commandOf(view, message, IPVS_CMD_SET_CONFIG)
  if (values === undefined) return undefined
  const { tcpS = 0, tcpFinS = 0, udpS = 0 } = values
  return { tcpS, tcpFinS, udpS }
}

export function decodeInfo(view: ByteView, message: Message): IpvsInfo | undefined {
  if (readGenlMsgHdr(view, message).command !== IPVS_CMD_SET_INFO) return undefined
  const { version, connectionTableSize = 0 } = readAttributes(view, INFO, genericSpan(message))
  if (version === undefined) throw malformed('an answer without the version of IPVS', message.start)
  return {
    version: `${(version >>> 16) & 255}.${(version >>> 8) & 255}.${version & 255}`,
    connectionTableSize,
  }
}

function commandOf(view: ByteView, message: Message, command: number): ValuesOf<typeof COMMAND> | undefined {
  if (readGenlMsgHdr(view, message).command !== command) return undefined
  return readAttributes(view, COMMAND, genericSpan(message))
}

interface HasFamily {
  readonly family?: number | undefined
  readonly address?: Octets | undefined
}

/** Returns the family of a server. Without the attribute, zeros after the first four bytes mean IPv4. */
function familyOfServer({ family, address = '' }: HasFamily): Family | undefined {
  if (family !== undefined) return familyOfNumber(family)
  return /^\0*$/.test(address.slice(4)) ? 'IPv4' : 'IPv6'
}

function familyOfNumber(family: number): Family | undefined {
  if (family === AF_INET) return 'IPv4'
  return family === AF_INET6 ? 'IPv6' : undefined
}

function ipOf(address: Octets, family: Family): Ip {
  return family === 'IPv4' ? address.slice(0, 4) : address
}

interface HasStats {
  readonly stats?: Octets | undefined
  readonly stats64?: ValuesOf<typeof STATS64> | undefined
}

function statsOf({ stats, stats64 }: HasStats): IpvsStats {
  if (stats64 !== undefined) {
    const { connections = 0n, packetsIn = 0n, packetsOut = 0n, bytesIn = 0n, bytesOut = 0n } = stats64
    return { connections, packetsIn, packetsOut, bytesIn, bytesOut }
  }
  const view = viewOf(Buffer.from(stats ?? '', 'latin1'))
  const span = { start: 0, end: view.bytes.length }
  const { connections = 0, packetsIn = 0, packetsOut = 0, ...bytes } = readAttributes(view, STATS, span)
  const { bytesIn = 0n, bytesOut = 0n } = bytes
  return {
    connections: BigInt(connections),
    packetsIn: BigInt(packetsIn),
    packetsOut: BigInt(packetsOut),
    bytesIn,
    bytesOut,
  }
}
