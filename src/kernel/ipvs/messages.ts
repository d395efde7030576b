import { unreachable } from '../../base/assert.ts'
import { type Family, familyOf, type Ip } from '../../base/ip.ts'
import { type Octets, u32be, u32host } from '../../base/octets.ts'
import type { Batch } from '../../netlink/batch.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { writeGenlMsgHdr } from '../../netlink/genetlink.ts'
import { encodeMessage } from '../../netlink/message.ts'
import { type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
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
import { isUsualServer, writeDestination, writeServer } from './usual-writer.ts'

const PROTOCOL_NUMBERS: Readonly<Record<IpvsProtocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}
const FAMILY_NUMBERS: Readonly<Record<Family, number>> = { IPv4: AF_INET, IPv6: AF_INET6 }

/** An operation and the command that it is sent as. */
export interface Step {
  readonly operation: IpvsOperation
  /** IPVS_CMD_*. */
  readonly command: number
}

/** The command that does what the operation says if things are as it takes them to be. */
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

/** Bytes of a step beside the name of a scheduler, at most. */
const STEP_BYTES_MAX = 192

export function stepBytesMax({ operation }: Step): number {
  return operation.verb === 'set-server'
    ? STEP_BYTES_MAX + operation.server.scheduler.length * 3
    : STEP_BYTES_MAX
}

/** What all messages of a family begin with. */
export interface MessageStart {
  /** The number of the generic netlink family IPVS. */
  readonly family: number
  readonly flags: number
  readonly sequence: number
}

/** Appends the message of a step; `family` is the number of the generic netlink family IPVS. */
export function writeStep(batch: Batch<Step>, step: Step, family: number): void {
  const { operation, command } = step
  const { out } = batch
  const protocol = PROTOCOL_NUMBERS[operation.server.protocol]
  batch.open(family)
  writeGenlMsgHdr(out.out, { command, version: IPVS_GENL_VERSION })
  if (operation.verb === 'set-destination') writeDestination(out.out, protocol, operation)
  else if (operation.verb === 'set-server' && isUsualServer(operation.server))
    writeServer(out.out, protocol, operation.server)
  else writeAttributes(out, COMMAND, valuesOf(operation))
  batch.close(step)
}

export type CommandValues = ValuesOf<typeof COMMAND>

/** A message on its own: a read, or a setting. */
export function encodeCommand(
  command: number,
  { family, flags, sequence }: MessageStart,
  values: CommandValues = {},
): Uint8Array {
  return encodeMessage({ type: family, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeGenlMsgHdr(out.out, { command, version: IPVS_GENL_VERSION })
    writeAttributes(out, COMMAND, values)
  })
}

export function encodeListServers(family: number, sequence: number): Uint8Array {
  return encodeCommand(IPVS_CMD_GET_SERVICE, { family, flags: NLM_F_DUMP, sequence })
}

/** The kernel lists those of one server at a time; one that is gone has none. */
export function encodeListDestinations(family: number, sequence: number, server: VirtualAddress): Uint8Array {
  const head = { family, flags: NLM_F_DUMP, sequence }
  return encodeCommand(IPVS_CMD_GET_DEST, head, { service: addressValues(server) })
}

export function valuesOf(operation: IpvsOperation): CommandValues {
  switch (operation.verb) {
    case 'set-server':
      return { service: serverValues(operation.server) }
    case 'delete-server':
      return { service: addressValues(operation.server) }
    case 'set-destination':
      return {
        service: addressValues(operation.server),
        destination: destinationValues(operation.destination),
      }
    case 'delete-destination': {
      const { family, address, port } = destinationValues(operation.destination)
      return { service: addressValues(operation.server), destination: { family, address, port } }
    }
    default:
      return unreachable(operation)
  }
}

function addressValues({ protocol, ip, port }: VirtualAddress): ValuesOf<typeof SERVICE> {
  return { family: familyNumber(ip), protocol: PROTOCOL_NUMBERS[protocol], address: ip, port }
}

export function serverValues(server: VirtualServer): ValuesOf<typeof SERVICE> {
  const { scheduler, flags, timeoutS } = server
  return { ...addressValues(server), scheduler, flags, timeoutS, netmask: netmaskOctets(server) }
}

export function destinationValues({
  ip,
  port,
  forwarding,
  weight,
}: RealServer): ValuesOf<typeof DESTINATION> {
  const family = familyNumber(ip)
  // No limits of connections.
  return { family, address: ip, port, forwarding, weight, connectionsMax: 0, connectionsLow: 0 }
}

function familyNumber(ip: Ip): number {
  return FAMILY_NUMBERS[familyOf(ip)]
}

function netmaskOctets({ ip, netmask }: VirtualServer): Octets {
  return familyOf(ip) === 'IPv4' ? u32be(netmask) : u32host(netmask)
}
