import type { AttributeWriter } from '../../../src/netlink/attribute.ts'
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
import { encodeMessage, type Message, type MessageHead, writeNfGenMsg } from '../../../src/netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  writeAttributes,
} from '../../../src/netlink/schema.ts'

export interface ReplyHead extends MessageHead {
  readonly portId: number
}

/** A message of any kernel in memory, around what `write` writes. */
export function kernelMessage(head: ReplyHead, write: (out: AttributeWriter) => void): Uint8Array {
  const bytes = encodeMessage(head, write)
  new DataView(bytes.buffer, bytes.byteOffset).setUint32(12, head.portId, true)
  return bytes
}

export interface Verdict {
  /** 0 for success. */
  readonly errno: number
  readonly offset?: number | undefined
}

/** NLMSG_ERROR as with NETLINK_CAP_ACK and NETLINK_EXT_ACK set: the refused header, then the offset. */
export function errorReply(asked: Message, { errno, offset }: Verdict, portId: number): Uint8Array {
  const flags = NLM_F_CAPPED | (offset === undefined ? 0 : NLM_F_ACK_TLVS)
  return kernelMessage({ type: NLMSG_ERROR, flags, sequence: asked.sequence, portId }, attributes => {
    const { out } = attributes
    out.u32(-errno >>> 0)
    out.u32(asked.end - asked.start + NLMSG_HDRLEN)
    out.u16(asked.type)
    out.u16(asked.flags)
    out.u32(asked.sequence)
    out.u32(0)
    if (offset === undefined) return
    attributes.open(NLMSGERR_ATTR_OFFS)
    out.u32(offset)
    attributes.close()
  })
}

export interface ObjectHead extends Omit<ReplyHead, 'type'> {
  /** NFT_MSG_*. */
  readonly message: number
  readonly family: number
  /** Low 16 bits of the generation, as the kernel puts there. */
  readonly generation: number
}

export function objectMessage<F extends Fields>(
  head: ObjectHead,
  set: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  return messageOf(head, out => writeAttributes(out, set, values))
}

/** A message of nf_tables around attributes. */
export function messageOf(head: ObjectHead, write: (out: AttributeWriter) => void): Uint8Array {
  const type = (NFNL_SUBSYS_NFTABLES << 8) | head.message
  return kernelMessage({ ...head, type }, out => {
    writeNfGenMsg(out.out, { family: head.family, resourceId: head.generation & 0xffff })
    write(out)
  })
}

export function doneMessage(sequence: number, portId: number): Uint8Array {
  return kernelMessage({ type: NLMSG_DONE, flags: NLM_F_MULTI, sequence, portId }, ({ out }) => out.u32(0))
}
