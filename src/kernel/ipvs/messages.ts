import { unreachable } from '../../base/errors.ts'
import { type Family, familyOf, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS, portProtocolOf } from '../../base/ip-packet.ts'
import { type Octets, readU32be, readU32host, u32be, u32host } from '../../base/octets.ts'
import type { AttributeWriter, ByteView } from '../../netlink/attribute.ts'
import { AF_INET, AF_INET6, NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { genericSpan, readGenlMsgHdr, writeGenlMsgHdr } from '../../netlink/genetlink.ts'
import { type Batch, encodeMessage, type Message } from '../../netlink/message.ts'
import {
  readAttributes,
  type SourcesOf,
  type ValuesOf,
  type Writer,
  writeAttributes,
  writerOf,
} from '../../netlink/schema.ts'
import * as ipvs from './state.ts'
import {
  COMMAND,
  type DESTINATION,
  INFO,
  type IpvsInfo,
  type IpvsOperation,
  type IpvsStats,
  type IpvsTimeouts,
  type ListedDestination,
  type RealServer,
  type SERVICE,
  type STATS,
  type VirtualAddress,
  type VirtualServer,
} from './state.ts'

/** Maximum bytes of a message, without the name of a scheduler. */
const OPERATION_BYTES_MAX = 192

export function operationBytesMax(operation: IpvsOperation): number {
  return operation.verb === 'set-server'
    ? OPERATION_BYTES_MAX + operation.server.scheduler.length * 3
    : OPERATION_BYTES_MAX
}

interface MessageStart {
  /** The number of the generic netlink family IPVS. */
  readonly family: number
  readonly flags: number
  readonly sequence: number
}

/** Appends the message of an operation; `family` is the number of the generic netlink family IPVS. */
export function writeOperation(batch: Batch<IpvsOperation>, operation: IpvsOperation, family: number): void {
  const { out } = batch
  const open = (command: number) => {
    batch.open(family)
    writeGenlMsgHdr(out.out, { command, version: ipvs.IPVS_GENL_VERSION })
  }
  switch (operation.verb) {
    case 'set-server':
      open(operation.isNew ? ipvs.IPVS_CMD_NEW_SERVICE : ipvs.IPVS_CMD_SET_SERVICE)
      writeServer(out, operation)
      break
    case 'delete-server':
      open(ipvs.IPVS_CMD_DEL_SERVICE)
      writeAddress(out, operation)
      break
    case 'set-destination':
      open(operation.isNew ? ipvs.IPVS_CMD_NEW_DEST : ipvs.IPVS_CMD_SET_DEST)
      writeDestination(out, operation)
      break
    case 'delete-destination':
      open(ipvs.IPVS_CMD_DEL_DEST)
      writeDestinationAddress(out, operation)
      break
    default:
      unreachable(operation)
  }
  batch.close(operation)
}

interface AboutServer {
  readonly server: VirtualAddress
}
interface AboutDestination extends AboutServer {
  readonly destination: RealServer
}

const ADDRESS: SourcesOf<typeof SERVICE, AboutServer> = {
  family: ({ server }) => familyNumber(server.ip),
  protocol: ({ server }) => PROTOCOL_NUMBERS[server.protocol],
  address: ({ server }) => server.ip,
  port: ({ server }) => server.port,
}

const SERVER: SourcesOf<typeof SERVICE, { readonly server: VirtualServer }> = {
  ...ADDRESS,
  scheduler: ({ server }) => server.scheduler,
  flags: ({ server }) => server.flags,
  timeoutS: ({ server }) => server.timeoutS,
  netmask: ({ server }) => netmaskOctets(server),
}

const DESTINATION_ADDRESS: SourcesOf<typeof DESTINATION, AboutDestination> = {
  family: ({ destination }) => familyNumber(destination.ip),
  address: ({ destination }) => destination.ip,
  port: ({ destination }) => destination.port,
}

const NO_LIMIT = 0
const WHOLE_DESTINATION: SourcesOf<typeof DESTINATION, AboutDestination> = {
  ...DESTINATION_ADDRESS,
  forwarding: ({ destination }) => destination.forwarding,
  weight: ({ destination }) => destination.weight,
  connectionsMax: () => NO_LIMIT,
  connectionsLow: () => NO_LIMIT,
}

const writeAddress: Writer<AboutServer> = writerOf(COMMAND, { service: ADDRESS })
const writeServer: Writer<{ readonly server: VirtualServer }> = writerOf(COMMAND, { service: SERVER })
const writeDestination: Writer<AboutDestination> = writerOf(COMMAND, {
  service: ADDRESS,
  destination: WHOLE_DESTINATION,
})
const writeDestinationAddress: Writer<AboutDestination> = writerOf(COMMAND, {
  service: ADDRESS,
  destination: DESTINATION_ADDRESS,
})

type CommandValues = ValuesOf<typeof COMMAND>

export function encodeCommand(command: number, head: MessageStart, values: CommandValues = {}): Uint8Array {
  return encode(command, head, out => writeAttributes(out, COMMAND, values))
}

export function encodeListServers(family: number, sequence: number): Uint8Array {
  return encodeCommand(ipvs.IPVS_CMD_GET_SERVICE, { family, flags: NLM_F_DUMP, sequence })
}

export function encodeFindServer(family: number, sequence: number, server: VirtualAddress): Uint8Array {
  const head = { family, flags: 0, sequence }
  return encode(ipvs.IPVS_CMD_GET_SERVICE, head, out => writeAddress(out, { server }))
}

/** Encodes a request for the real servers of one virtual server, the only way to list them. */
export function encodeListDestinations(family: number, sequence: number, server: VirtualAddress): Uint8Array {
  const head = { family, flags: NLM_F_DUMP, sequence }
  return encode(ipvs.IPVS_CMD_GET_DEST, head, out => writeAddress(out, { server }))
}

function encode(
  command: number,
  { family, flags, sequence }: MessageStart,
  write: (out: AttributeWriter) => void,
): Uint8Array {
  return encodeMessage({ type: family, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeGenlMsgHdr(out.out, { command, version: ipvs.IPVS_GENL_VERSION })
    write(out)
  })
}

function familyNumber(ip: Ip): number {
  return ip.length === 4 ? AF_INET : AF_INET6
}

function netmaskOctets({ ip, netmask }: VirtualServer): Octets {
  return familyOf(ip) === 'IPv4' ? u32be(netmask) : u32host(netmask)
}

/** Decodes a virtual server; undefined for one of a mark, an unknown family or protocol. Throws NetlinkError. */
export function decodeServer(view: ByteView, message: Message): VirtualServer | undefined {
  const { service } = commandOf(view, message, ipvs.IPVS_CMD_NEW_SERVICE) ?? {}
  if (service === undefined) return undefined
  const { mark, scheduler, flags, timeoutS, netmask } = service
  const family = service.family === undefined ? undefined : familyOfNumber(service.family)
  if (family === undefined) return undefined
  if (scheduler === undefined) throw malformed('a virtual server without its scheduler', message.start)
  if (mark !== undefined) return undefined
  const { protocol: protocolNumber, address, port } = service
  if (protocolNumber === undefined || address === undefined || port === undefined)
    throw malformed('a virtual server without its address', message.start)
  if (flags === undefined || timeoutS === undefined || netmask?.length !== 4)
    throw malformed('a virtual server without its settings', message.start)
  const protocol = portProtocolOf(protocolNumber)
  if (protocol === undefined) return undefined
  return {
    protocol,
    ip: ipOf(address, family),
    port,
    scheduler,
    flags: (flags & ~ipvs.IP_VS_SVC_F_HASHED) >>> 0,
    timeoutS,
    netmask: family === 'IPv4' ? readU32be(netmask) : readU32host(netmask),
  }
}

/** Decodes a real server; undefined for an unknown family. Throws NetlinkError. */
export function decodeDestination(view: ByteView, message: Message): ListedDestination | undefined {
  const { destination } = commandOf(view, message, ipvs.IPVS_CMD_NEW_DEST) ?? {}
  if (destination === undefined) return undefined
  const { address, port, weight, forwarding } = destination
  if (address === undefined || port === undefined || weight === undefined || forwarding === undefined)
    throw malformed('a real server without its address or settings', message.start)
  const family = destination.family === undefined ? undefined : familyOfNumber(destination.family)
  if (family === undefined) return undefined
  return {
    destination: {
      ip: ipOf(address, family),
      port,
      weight,
      forwarding: forwarding & ipvs.IP_VS_CONN_F_FWD_MASK,
    },
    stats: statsOf(destination.stats),
    activeConnections: destination.activeConnections ?? 0,
    inactiveConnections: destination.inactiveConnections ?? 0,
  }
}

/** Decodes the timeouts. A kernel built without one of the protocols omits its timeouts: they are 0. */
export function decodeTimeouts(view: ByteView, message: Message): IpvsTimeouts | undefined {
  const values = commandOf(view, message, ipvs.IPVS_CMD_SET_CONFIG)
  if (values === undefined) return undefined
  const { tcpS = 0, tcpFinS = 0, udpS = 0 } = values
  return { tcpS, tcpFinS, udpS }
}

export function decodeInfo(view: ByteView, message: Message): IpvsInfo | undefined {
  if (readGenlMsgHdr(view, message).command !== ipvs.IPVS_CMD_SET_INFO) return undefined
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

function familyOfNumber(family: number): Family | undefined {
  if (family === AF_INET) return 'IPv4'
  return family === AF_INET6 ? 'IPv6' : undefined
}

function ipOf(address: Octets, family: Family): Ip {
  return family === 'IPv4' ? address.slice(0, 4) : address
}

function statsOf(stats: ValuesOf<typeof STATS> = {}): IpvsStats {
  const { connections = 0n, packetsIn = 0n, packetsOut = 0n, bytesIn = 0n, bytesOut = 0n } = stats
  return { connections, packetsIn, packetsOut, bytesIn, bytesOut }
}
