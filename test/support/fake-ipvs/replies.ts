import {
  COMMAND,
  IP_VS_SVC_F_HASHED,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_GENL_VERSION,
  SERVICE,
  STATS,
} from '../../../src/kernel/ipvs/state.ts'
import { writeGenlMsgHdr } from '../../../src/netlink/genetlink.ts'
import {
  type AttributeSet,
  type Attributes,
  attributeSet,
  type Fields,
  nested,
  writeAttributes,
} from '../../../src/netlink/schema.ts'
import { kernelMessage, type ReplyHead } from '../fake-kernel/replies.ts'
import { type FakeDestination, type FakeServer, NO_STATS } from './objects.ts'

export function genericMessage<F extends Fields>(
  head: ReplyHead & { readonly command: number; readonly version?: number },
  set: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  return kernelMessage(head, out => {
    writeGenlMsgHdr(out.out, { command: head.command, version: head.version ?? IPVS_GENL_VERSION })
    writeAttributes(out, set, values)
  })
}

/** A virtual server as the kernel sends it, with IPVS_SVC_ATTR_STATS64, which kprobe does not read. */
const COUNTED = attributeSet({
  service: [
    COMMAND.fields.service[0],
    nested(attributeSet({ ...SERVICE.fields, stats: [12, nested(STATS)] })),
  ],
})

export function serverMessage(head: ReplyHead, server: FakeServer): Uint8Array {
  const { family, protocol, address, port, mark, scheduler, timeoutS, netmask } = server
  const place = mark === 0 ? { family, protocol, address, port } : { family, mark }
  const flags = (server.flags | IP_VS_SVC_F_HASHED) >>> 0
  return genericMessage({ ...head, command: IPVS_CMD_NEW_SERVICE }, COUNTED, {
    service: { ...place, scheduler, flags, timeoutS, netmask, stats: NO_STATS },
  })
}

export function destinationMessage(head: ReplyHead, destination: FakeDestination): Uint8Array {
  return genericMessage({ ...head, command: IPVS_CMD_NEW_DEST }, COMMAND, { destination })
}
