import type { AttributeWriter } from '../../netlink/attribute.ts'
import { NFNL_SUBSYS_NFTABLES, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'

interface GetMessage {
  /** NFT_MSG_GET*. */
  readonly type: number
  readonly flags: number
  /** NFPROTO_*. */
  readonly family: number
  readonly sequence: number
}

/** Encodes one NFT_MSG_GET* request, with a filter; kernels that do not know it ignore it. */
export function getRequest(message: GetMessage, attributes?: (out: AttributeWriter) => void): Uint8Array {
  const { flags, family, sequence } = message
  const type = (NFNL_SUBSYS_NFTABLES << 8) | message.type
  return encodeMessage({ type, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, { family, resourceId: 0 })
    attributes?.(out)
  })
}
