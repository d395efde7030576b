import { ADDRESS, LINK, RTM_NEWLINK, writeIfAddrMsg, writeIfInfoMsg } from '../../../src/kernel/link/links.ts'
import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
import { AF_INET } from '../../../src/netlink/constants.ts'
import { closeMessage, type MessageHead, openMessage } from '../../../src/netlink/message.ts'
import { writeAttributes } from '../../../src/netlink/schema.ts'
import type { FakeAddress, FakeLink } from './kernel.ts'

export interface ReplyHead extends MessageHead {
  readonly portId: number
}

export function linkMessage(
  { index, name, kind }: FakeLink,
  asked: { readonly sequence: number; readonly portId: number },
): Uint8Array {
  const out = new ByteWriter(128)
  const start = openMessage(out, { type: RTM_NEWLINK, flags: 0, sequence: asked.sequence })
  out.patchU32(start + 12, asked.portId)
  writeIfInfoMsg(out, index)
  const info = kind === undefined ? undefined : { kind }
  writeAttributes(new AttributeWriter(out), LINK, { name, info })
  closeMessage(out, start)
  return out.written()
}

/** The kernel gives both attributes for IPv4, and IFA_ADDRESS alone for IPv6. */
export function addressMessage(index: number, address: FakeAddress, head: ReplyHead): Uint8Array {
  const { family, ip, prefixLength, flags } = address
  const out = new ByteWriter(96)
  const start = openMessage(out, head)
  out.patchU32(start + 12, head.portId)
  writeIfAddrMsg(out, { family, prefixLength, flags, scope: 0, index })
  const values = family === AF_INET ? { address: ip, local: ip } : { address: ip }
  writeAttributes(new AttributeWriter(out), ADDRESS, values)
  closeMessage(out, start)
  return out.written()
}
