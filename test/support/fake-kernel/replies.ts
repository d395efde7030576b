import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
import {
  NFNL_SUBSYS_NFTABLES,
  NLM_F_ACK_TLVS,
  NLM_F_CAPPED,
  NLM_F_MULTI,
  NLMSG_DONE,
  NLMSG_ERROR,
  NLMSG_HDRLEN,
  NLMSGERR_ATTR_OFFS,
} from '../../../src/netlink/constants.ts'
import { closeMessage, openMessage, writeNfGenMsg } from '../../../src/netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  writeAttributes,
} from '../../../src/netlink/schema.ts'

/** The header that an acknowledgement repeats. */
export interface Asked {
  readonly type: number
  readonly flags: number
  readonly sequence: number
  readonly length: number
}

export interface Verdict {
  /** 0 for success. */
  readonly errno: number
  readonly offset: number | undefined
}

/** NLMSG_ERROR as with NETLINK_CAP_ACK and NETLINK_EXT_ACK set: the refused header, then the offset. */
export function errorReply(asked: Asked, { errno, offset }: Verdict, portId: number): Uint8Array {
  const out = new ByteWriter(64)
  const flags = NLM_F_CAPPED | (offset === undefined ? 0 : NLM_F_ACK_TLVS)
  const start = openMessage(out, { type: NLMSG_ERROR, flags, sequence: asked.sequence })
  out.patchU32(start + 12, portId)
  out.u32(-errno >>> 0)
  out.u32(asked.length)
  out.u16(asked.type)
  out.u16(asked.flags)
  out.u32(asked.sequence)
  out.u32(0)
  if (offset !== undefined) {
    const attributes = new AttributeWriter(out)
    attributes.open(NLMSGERR_ATTR_OFFS)
    out.u32(offset)
    attributes.close()
  }
  closeMessage(out, start)
  return out.written()
}

export interface ObjectHead {
  /** NFT_MSG_*. */
  readonly message: number
  readonly family: number
  readonly flags: number
  readonly sequence: number
  readonly portId: number
  /** Low 16 bits of the generation, as the kernel puts there. */
  readonly generation: number
}

export function objectMessage<F extends Fields>(
  head: ObjectHead,
  set: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  const out = new ByteWriter(256)
  writeAttributes(new AttributeWriter(out), set, values)
  return messageOf(head, out.written())
}

/** A message of the kernel's around attributes. */
export function messageOf(head: ObjectHead, body: Uint8Array): Uint8Array {
  const out = new ByteWriter(NLMSG_HDRLEN + 4 + body.length)
  const type = (NFNL_SUBSYS_NFTABLES << 8) | head.message
  const start = openMessage(out, { type, flags: head.flags, sequence: head.sequence })
  out.patchU32(start + 12, head.portId)
  writeNfGenMsg(out, { family: head.family, resourceId: head.generation & 0xffff })
  out.raw(body)
  closeMessage(out, start)
  return out.written()
}

export function doneMessage(sequence: number, portId: number): Uint8Array {
  const out = new ByteWriter(NLMSG_HDRLEN + 4)
  const start = openMessage(out, { type: NLMSG_DONE, flags: NLM_F_MULTI, sequence })
  out.patchU32(start + 12, portId)
  out.u32(0)
  closeMessage(out, start)
  return out.written()
}

export function joined(parts: readonly Uint8Array[]): Uint8Array {
  return Buffer.concat(parts)
}
