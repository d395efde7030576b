import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { NFNL_SUBSYS_NFTABLES, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { closeMessage, openMessage, writeNfGenMsg } from '../../netlink/message.ts'

export interface GetMessage {
  /** NFT_MSG_GET*. */
  readonly type: number
  readonly flags: number
  /** NFPROTO_*. */
  readonly family: number
  readonly sequence: number
}

/** One NFT_MSG_GET* request, with a filter that the kernel applies where it knows one. */
export function getRequest(message: GetMessage, attributes?: (out: AttributeWriter) => void): Uint8Array {
  const out = new ByteWriter(64)
  const start = openMessage(out, {
    type: (NFNL_SUBSYS_NFTABLES << 8) | message.type,
    flags: NLM_F_REQUEST | message.flags,
    sequence: message.sequence,
  })
  writeNfGenMsg(out, { family: message.family, resourceId: 0 })
  attributes?.(new AttributeWriter(out))
  closeMessage(out, start)
  return out.written()
}
