import type { ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { octets, string } from '../../netlink/codec.ts'
import { malformed } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import { attributeSet, nested } from '../../netlink/schema.ts'
import { IFA_ADDRESS, IFA_LOCAL, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO } from './constants.ts'

/** The attributes of an interface address that kprobe uses, as linux/if_addr.h describes them. */
export const ADDRESS = attributeSet({
  /** The address of the peer on a point-to-point interface, otherwise the own address. */
  address: [IFA_ADDRESS, octets],
  /** The own address; IPv6 has it only where `address` is the peer's. */
  local: [IFA_LOCAL, octets],
})

/** struct ifaddrmsg. */
export interface IfAddrMsg {
  /** AF_*. */
  readonly family: number
  readonly prefixLength: number
  readonly flags: number
  readonly scope: number
  /** Index of the interface. */
  readonly index: number
}
export const IFADDRMSG_LENGTH = 8

export function writeIfAddrMsg(out: ByteWriter, head: IfAddrMsg): void {
  out.u8(head.family)
  out.u8(head.prefixLength)
  out.u8(head.flags)
  out.u8(head.scope)
  out.u32(head.index)
}

export function readIfAddrMsg(view: ByteView, { start, end }: Message): IfAddrMsg {
  if (end - start < IFADDRMSG_LENGTH) throw malformed('a message without its ifaddrmsg', start)
  const { data } = view
  return {
    family: data.getUint8(start),
    prefixLength: data.getUint8(start + 1),
    flags: data.getUint8(start + 2),
    scope: data.getUint8(start + 3),
    index: data.getUint32(start + 4, true),
  }
}

const LINK_INFO = attributeSet({
  /** struct rtnl_link_ops.kind: `dummy`; absent for hardware. */
  kind: [IFLA_INFO_KIND, string],
})

/** The attributes of a device that kprobe uses, as linux/if_link.h describes them. */
export const LINK = attributeSet({
  name: [IFLA_IFNAME, string],
  info: [IFLA_LINKINFO, nested(LINK_INFO)],
})

export const IFINFOMSG_LENGTH = 16

/** Writes struct ifinfomsg for a device by its index, or by its name when that is 0; it changes no flags. */
export function writeIfInfoMsg(out: ByteWriter, index: number): void {
  out.u32(0)
  out.u32(index)
  out.u32(0)
  out.u32(0)
}

/** Reads the index of the device. */
export function readIfInfoMsg(view: ByteView, { start, end }: Message): number {
  if (end - start < IFINFOMSG_LENGTH) throw malformed('a message without its ifinfomsg', start)
  return view.data.getUint32(start + 4, true)
}
