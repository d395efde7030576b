import { type Octets, octetsFromBytes } from '../../../src/base/octets.ts'
import {
  COMMAND,
  IP_VS_SVC_F_HASHED,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_GENL_VERSION,
  type IpvsStats,
  SERVICE,
  STATS,
  STATS64,
} from '../../../src/kernel/ipvs/state.ts'
import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
import { nestedOctets } from '../../../src/netlink/codecs.ts'
import { writeGenlMsgHdr } from '../../../src/netlink/genetlink.ts'
import { closeMessage, openMessage } from '../../../src/netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  attributeSet,
  type Fields,
  nested,
  writeAttributes,
} from '../../../src/netlink/schema.ts'
import { type FakeDestination, type FakeServer, NO_STATS } from './objects.ts'

/** What older kernels do otherwise. */
export interface OldKernel {
  /** Before Linux 3.18: real servers come without an address family. */
  readonly hasNoDestinationFamily?: boolean
  /** Before Linux 4.1. */
  readonly hasNoStats64?: boolean
}

export interface ReplyHead {
  /** The message type: of IPVS, or of the controller. */
  readonly type: number
  readonly flags: number
  readonly sequence: number
  readonly portId: number
}

export function genericMessage<F extends Fields>(
  head: ReplyHead & { readonly command: number; readonly version?: number },
  set: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  const out = new ByteWriter(512)
  const start = openMessage(out, head)
  out.patchU32(start + 12, head.portId)
  writeGenlMsgHdr(out, { command: head.command, version: head.version ?? IPVS_GENL_VERSION })
  writeAttributes(new AttributeWriter(out), set, values)
  closeMessage(out, start)
  return out.written()
}

/** A virtual server as the kernel sends it, with IPVS_SVC_ATTR_STATS and STATS64, which kprobe does not read. */
const COUNTED = attributeSet({
  service: [
    COMMAND.fields.service[0],
    nested(
      attributeSet({
        ...SERVICE.fields,
        stats: [10, nestedOctets],
        stats64: [12, nested(STATS64)],
      }),
    ),
  ],
})

export function serverMessage(head: ReplyHead, server: FakeServer): Uint8Array {
  const { family, protocol, address, port, mark, scheduler, flags, timeoutS, netmask } = server
  const place = mark === 0 ? { family, protocol, address, port } : { family, mark }
  return genericMessage({ ...head, command: IPVS_CMD_NEW_SERVICE }, COUNTED, {
    service: {
      ...place,
      scheduler,
      flags: (flags | IP_VS_SVC_F_HASHED) >>> 0,
      timeoutS,
      netmask,
      stats: statsOctets(NO_STATS),
      stats64: NO_STATS,
    },
  })
}

export function destinationMessage(head: ReplyHead, dest: FakeDestination, old: OldKernel): Uint8Array {
  const { family, stats, ...rest } = dest
  return genericMessage({ ...head, command: IPVS_CMD_NEW_DEST }, COMMAND, {
    destination: {
      ...rest,
      stats: statsOctets(stats),
      family: old.hasNoDestinationFamily === true ? undefined : family,
      stats64: old.hasNoStats64 === true ? undefined : stats,
    },
  })
}

/** What is counted one by one wraps. */
function statsOctets({ connections, packetsIn, packetsOut, bytesIn, bytesOut }: IpvsStats): Octets {
  const out = new ByteWriter(128)
  const low = (value: bigint): number => Number(value & 0xffff_ffffn)
  writeAttributes(new AttributeWriter(out), STATS, {
    connections: low(connections),
    packetsIn: low(packetsIn),
    packetsOut: low(packetsOut),
    bytesIn,
    bytesOut,
  })
  return octetsFromBytes(out.written())
}
