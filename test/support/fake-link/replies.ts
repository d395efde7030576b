import { ADDRESS, LINK, RTM_NEWLINK, writeIfAddrMsg, writeIfInfoMsg } from '../../../src/kernel/link/links.ts'
import { AF_INET } from '../../../src/netlink/constants.ts'
import { writeAttributes } from '../../../src/netlink/schema.ts'
import { kernelMessage, type ReplyHead } from '../fake-kernel/replies.ts'
import type { FakeAddress, FakeLink } from './kernel.ts'

export function linkMessage({ index, name, kind }: FakeLink, asked: Omit<ReplyHead, 'type' | 'flags'>) {
  return kernelMessage({ ...asked, type: RTM_NEWLINK, flags: 0 }, out => {
    writeIfInfoMsg(out.out, index)
    writeAttributes(out, LINK, { name, info: kind === undefined ? undefined : { kind } })
  })
}

/** The kernel gives both attributes for IPv4, and IFA_ADDRESS alone for IPv6. */
export function addressMessage(index: number, address: FakeAddress, head: ReplyHead): Uint8Array {
  const { family, ip, prefixLength, flags } = address
  return kernelMessage(head, out => {
    writeIfAddrMsg(out.out, { family, prefixLength, flags, scope: 0, index })
    writeAttributes(out, ADDRESS, family === AF_INET ? { address: ip, local: ip } : { address: ip })
  })
}
