import { unreachable } from '../../base/assert.ts'
import { familyOf, type Ip } from '../../base/ip.ts'
import { type Octets, u32be, u32host } from '../../base/octets.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { Batch } from '../../netlink/batch.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import type { Writer } from '../../netlink/flat-writer.ts'
import { writeGenlMsgHdr } from '../../netlink/genetlink.ts'
import { encodeMessage } from '../../netlink/message.ts'
import { type SourcesOf, type ValuesOf, writeAttributes, writerOf } from '../../netlink/schema.ts'
import {
  AF_INET,
  AF_INET6,
  IPPROTO_SCTP,
  IPPROTO_TCP,
  IPPROTO_UDP,
  IPVS_CMD_DEL_DEST,
  IPVS_CMD_DEL_SERVICE,
  IPVS_CMD_GET_DEST,
  IPVS_CMD_GET_SERVICE,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_DEST,
  IPVS_CMD_SET_SERVICE,
  IPVS_GENL_VERSION,
} from './constants.ts'
import type { IpvsOperation } from './operation.ts'
import { COMMAND, type DESTINATION, type SERVICE } from './schema.ts'
import type { IpvsProtocol, RealServer, VirtualAddress, VirtualServer } from './state.ts'

const PROTOCOL_NUMBERS: Readonly<Record<IpvsProtocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** An operation and the command that sends it. */
export interface Step {
  readonly operation: IpvsOperation
  /** IPVS_CMD_*. */
  readonly command: number
}

/** Returns the command for an operation, assuming that the kernel state is as the operation expects. */
export function firstStep(operation: IpvsOperation): Step {
  switch (operation.verb) {
    case 'set-server':
      return { operation, command: operation.isNew ? IPVS_CMD_NEW_SERVICE : IPVS_CMD_SET_SERVICE }
    case 'delete-server':
      return { operation, command: IPVS_CMD_DEL_SERVICE }
    case 'set-destination':
      return { operation, command: operation.isNew ? IPVS_CMD_NEW_DEST : IPVS_CMD_SET_DEST }
    case 'delete-destination':
      return { operation, command: IPVS_CMD_DEL_DEST }
    default:
      return unreachable(operation)
  }
}

/** Maximum bytes of a step, without the name of a scheduler. */
const STEP_BYTES_MAX = 192

export function stepBytesMax({ operation }: Step): number {
  return operation.verb === 'set-server'
    ? STEP_BYTES_MAX + operation.server.scheduler.length * 3
    : STEP_BYTES_MAX
}

/** The start of every message of a family. */
interface MessageStart {
  /** The number of the generic netlink family IPVS. */
  readonly family: number
  readonly flags: number
  readonly sequence: number
}

/** Appends the message of a step; `family` is the number of the generic netlink family IPVS. */
export function writeStep(batch: Batch<Step>, step: Step, family: number): void {
  const { operation, command } = step
  const { out } = batch
  batch.open(family)
  writeGenlMsgHdr(out.out, { command, version: IPVS_GENL_VERSION })
  switch (operation.verb) {
    case 'set-server':
      writeServer(out, operation)
      break
    case 'delete-server':
      writeAddress(out, operation)
      break
    case 'set-destination':
      writeDestination(out, operation)
      break
    case 'delete-destination':
      writeDestinationAddress(out, operation)
      break
    default:
      unreachable(operation)
  }
  batch.close(step)
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

/** Encodes a single message: a read, or a setting. */
export function encodeCommand(command: number, head: MessageStart, values: CommandValues = {}): Uint8Array {
  return encode(command, head, out => writeAttributes(out, COMMAND, values))
}

export function encodeListServers(family: number, sequence: number): Uint8Array {
  return encodeCommand(IPVS_CMD_GET_SERVICE, { family, flags: NLM_F_DUMP, sequence })
}

/** Encodes a request for the real servers of one virtual server, the only way to list them. */
export function encodeListDestinations(family: number, sequence: number, server: VirtualAddress): Uint8Array {
  const head = { family, flags: NLM_F_DUMP, sequence }
  return encode(IPVS_CMD_GET_DEST, head, out => writeAddress(out, { server }))
}

function encode(
  command: number,
  { family, flags, sequence }: MessageStart,
  write: (out: AttributeWriter) => void,
): Uint8Array {
  return encodeMessage({ type: family, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeGenlMsgHdr(out.out, { command, version: IPVS_GENL_VERSION })
    write(out)
  })
}

function familyNumber(ip: Ip): number {
  return ip.length === 4 ? AF_INET : AF_INET6
}

function netmaskOctets({ ip, netmask }: VirtualServer): Octets {
  return familyOf(ip) === 'IPv4' ? u32be(netmask) : u32host(netmask)
}
