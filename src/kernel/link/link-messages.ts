import type { Ip } from '../../base/ip.ts'
import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { addFlags, closeMessage, openMessage } from '../../netlink/message.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import {
  AF_INET,
  AF_INET6,
  IFA_F_NODAD,
  RTM_DELADDR,
  RTM_DELLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
} from './constants.ts'
import { ADDRESS, LINK, writeIfAddrMsg, writeIfInfoMsg } from './schema.ts'

/** A device as it is when nobody switches it on: down. */
export function encodeNewLink(link: { readonly name: string; readonly kind: string }, sequence: number) {
  const out = new ByteWriter(128)
  const flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
  const start = openMessage(out, { type: RTM_NEWLINK, flags, sequence })
  writeIfInfoMsg(out, 0)
  writeAttributes(new AttributeWriter(out), LINK, { name: link.name, info: { kind: link.kind } })
  closeMessage(out, start)
  return out.written()
}

export function encodeDelLink(index: number, sequence: number): Uint8Array {
  const out = new ByteWriter(64)
  const start = openMessage(out, { type: RTM_DELLINK, flags: NLM_F_REQUEST | NLM_F_ACK, sequence })
  writeIfInfoMsg(out, index)
  closeMessage(out, start)
  return out.written()
}

export interface AddressChange {
  readonly verb: 'add' | 'remove'
  readonly ip: Ip
}

/** Bytes of one change, at most. */
const CHANGE_BYTES_MAX = 64

/** One datagram, of which only the last message asks for an acknowledgement. */
export function encodeChanges(
  changes: readonly AddressChange[],
  { index, firstSequence }: { readonly index: number; readonly firstSequence: number },
): Uint8Array {
  const out = new ByteWriter(changes.length * CHANGE_BYTES_MAX)
  let last = 0
  for (let i = 0; i < changes.length; i++) {
    const change = changes[i]
    if (change === undefined) break
    last = writeChange(out, change, { index, sequence: firstSequence + i })
  }
  addFlags(out, last, NLM_F_ACK)
  return out.written()
}

/** Gives the position of the message. */
function writeChange(
  out: ByteWriter,
  { verb, ip }: AddressChange,
  { index, sequence }: { readonly index: number; readonly sequence: number },
): number {
  const adds = verb === 'add'
  const flags = NLM_F_REQUEST | (adds ? NLM_F_CREATE | NLM_F_EXCL : 0)
  const start = openMessage(out, { type: adds ? RTM_NEWADDR : RTM_DELADDR, flags, sequence })
  const family = ip.length === 4 ? AF_INET : AF_INET6
  // Nobody else has the address where this device ends: there is nobody to ask (IPv6 alone would).
  const addressFlags = adds && family === AF_INET6 ? IFA_F_NODAD : 0
  writeIfAddrMsg(out, { family, prefixLength: ip.length * 8, flags: addressFlags, scope: 0, index })
  // Without `address` the kernel removes one of IPv4 whatever its prefix is (inet_rtm_deladdr).
  const attributes = adds && family === AF_INET ? { address: ip, local: ip } : { local: ip }
  writeAttributes(new AttributeWriter(out), ADDRESS, attributes)
  closeMessage(out, start)
  return start
}
