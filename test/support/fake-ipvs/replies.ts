import {
  COMMAND,
  IP_VS_SVC_F_HASHED,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_GENL_VERSION,
  SERVICE,
  STATS,
} from '../../../src/kernel/ipvs/state.ts'
import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
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

/** A virtual server as the kernel sends it, with IPVS_SVC_ATTR_STATS64, which kprobe does not read. */
const COUNTED = attributeSet({
  service: [
    COMMAND.fields.service[0],
    nested(
      attributeSet({
        ...SERVICE.fields,
        stats: [12, nested(STATS)],
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
      stats: NO_STATS,
    },
  })
}

export function destinationMessage(head: ReplyHead, destination: FakeDestination): Uint8Array {
  return genericMessage({ ...head, command: IPVS_CMD_NEW_DEST }, COMMAND, { destination })
}
