import type { ByteView } from '../../netlink/bytes.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed, unencodable } from '../../netlink/errors.ts'
import { encodeMessage, type Message, NFGENMSG_LENGTH, writeNfGenMsg } from '../../netlink/message.ts'
import { readAttributes, writeAttributes } from '../../netlink/schema.ts'
import { NFACCT_NAME_MAX, NFNL_SUBSYS_ACCT } from './constants.ts'
import { ACCOUNT } from './schema.ts'

/** What a counter has counted since it was made, or since somebody set it to zero. */
export interface AccountCounts {
  readonly packets: bigint
  readonly bytes: bigint
}

/** `message` is NFNL_MSG_ACCT_*; a request without a name would be about all counters of the namespace. */
export function encodeAccount(
  { message, flags, name }: { readonly message: number; readonly flags: number; readonly name: string },
  sequence: number,
): Uint8Array {
  const length = Buffer.byteLength(name)
  if (length === 0 || length >= NFACCT_NAME_MAX) throw unencodable(`a counter of nfacct named ${name}`)
  const type = (NFNL_SUBSYS_ACCT << 8) | message
  return encodeMessage({ type, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, { family: 0, resourceId: 0 })
    writeAttributes(out, ACCOUNT, { name })
  })
}

/** Throws NetlinkError for a message that is no counter. */
export function decodeAccount(view: ByteView, message: Message): AccountCounts & { readonly name: string } {
  const span = { start: message.start + NFGENMSG_LENGTH, end: message.end }
  const { name, packets, bytes } = readAttributes(view, ACCOUNT, span)
  if (name === undefined || packets === undefined || bytes === undefined)
    throw malformed('a counter of nfacct without its name or counts', message.start)
  return { name, packets, bytes }
}
