import type { Ip } from '../../../src/base/ip.ts'
import {
  ADDRESS,
  IFADDRMSG_LENGTH,
  IFINFOMSG_LENGTH,
  type IfAddrMsg,
  LINK,
  RTM_DELADDR,
  RTM_DELLINK,
  RTM_GETADDR,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
  RTNLGRP_IPV4_IFADDR,
  RTNLGRP_IPV6_IFADDR,
  readIfAddrMsg,
  readIfInfoMsg,
} from '../../../src/kernel/link/links.ts'
import {
  AF_INET,
  AF_INET6,
  NLM_F_CREATE,
  NLM_F_DUMP,
  NLM_F_EXCL,
  NLM_F_MULTI,
  NLM_F_REQUEST,
} from '../../../src/netlink/constants.ts'
import { readAttributes, type ValuesOf } from '../../../src/netlink/schema.ts'
import { refuse } from '../fake-kernel/call.ts'
import { type Asked, answerEach, FakeSocket, type SocketOptions } from '../fake-kernel/socket.ts'
import { addressMessage, linkMessage } from './replies.ts'

export interface FakeLink {
  readonly index: number
  readonly name: string
  readonly kind: string | undefined
  readonly addresses: FakeAddress[]
}

export interface FakeAddress {
  readonly family: number
  readonly ip: Ip
  readonly prefixLength: number
  readonly flags: number
}

/** struct rtnl_link_ops that are there. */
const KINDS: ReadonlySet<string> = new Set(['dummy', 'veth', 'bridge'])
const NAME_BYTES_MAX = 15
const LOOPBACK_V6 = `${'\0'.repeat(15)}\x01`

/**
 * Devices and their addresses in one network namespace, in memory, spoken to in bytes. What it refuses and how is what
 * Linux 6.1 was seen to do; test/contract/link-suite.ts holds it against that.
 */
export class FakeLinks {
  readonly links = new Map<number, FakeLink>()
  /** The sysctl net.ipv6.conf.default.disable_ipv6. */
  disablesIpv6 = false
  readonly #sockets = new Set<FakeSocket>()
  #indexes = 0
  #ports = 2000

  constructor() {
    this.add('lo', undefined)
  }

  open(options: SocketOptions = {}): FakeSocket {
    const socket = new FakeSocket(this, ++this.#ports, options)
    this.#sockets.add(socket)
    return socket
  }

  forget(socket: FakeSocket): void {
    this.#sockets.delete(socket)
  }

  byName(name: string): FakeLink | undefined {
    return [...this.links.values()].find(link => link.name === name)
  }

  /** As somebody else's `ip link add`. */
  add(name: string, kind: string | undefined): FakeLink {
    const link = { index: ++this.#indexes, name, kind, addresses: [] }
    this.links.set(link.index, link)
    return link
  }

  /** As somebody else's `ip addr add`. */
  addAddress(name: string, address: FakeAddress): void {
    const link = this.byName(name)
    if (link === undefined) throw new Error(`there is no device ${name}`)
    link.addresses.push(address)
    this.#notify(RTM_NEWADDR, link, address)
  }

  accept(datagram: Uint8Array, from: FakeSocket): void {
    answerEach(datagram, from, asked => this.#request(asked))
  }

  #request(call: Asked): void {
    const { type, flags } = call.message
    if ((flags & NLM_F_REQUEST) === 0) refuse('EINVAL')
    if (type === RTM_GETLINK) this.#getLink(call)
    else if (type === RTM_NEWLINK) this.#newLink(call)
    else if (type === RTM_DELLINK) this.#deleteLink(call)
    else if (type === RTM_GETADDR) this.#dumpAddresses(call)
    else if (type === RTM_NEWADDR) this.#newAddress(call)
    else if (type === RTM_DELADDR) this.#deleteAddress(call)
    else refuse('EOPNOTSUPP')
  }

  #getLink({ view, message, from }: Asked): void {
    if ((message.flags & NLM_F_DUMP) !== 0) refuse('EOPNOTSUPP')
    const { index, values } = linkIn({ view, message })
    if (index === 0 && values.name === undefined) refuse('EINVAL')
    const link = (index === 0 ? this.byName(values.name ?? '') : this.links.get(index)) ?? refuse('ENODEV')
    from.enqueue(linkMessage(link, { sequence: message.sequence, portId: from.portId }))
  }

  #newLink({ view, message }: Asked): void {
    const { index, values } = linkIn({ view, message })
    const { name = '', info } = values
    if (index !== 0 || name === '') refuse('EINVAL')
    if (this.byName(name) !== undefined) {
      if ((message.flags & NLM_F_EXCL) !== 0) refuse('EEXIST')
      return
    }
    if ((message.flags & NLM_F_CREATE) === 0) refuse('ENODEV')
    if (!KINDS.has(info?.kind ?? '')) refuse('EOPNOTSUPP')
    this.add(name, info?.kind)
  }

  #deleteLink({ view, message }: Asked): void {
    const { index, values } = linkIn({ view, message })
    if (index === 0 && values.name === undefined) refuse('EINVAL')
    const link = (index === 0 ? this.byName(values.name ?? '') : this.links.get(index)) ?? refuse('ENODEV')
    if (link.kind === undefined) refuse('EOPNOTSUPP')
    for (const address of link.addresses.splice(0)) this.#notify(RTM_DELADDR, link, address)
    this.links.delete(link.index)
  }

  #dumpAddresses({ view, message, from }: Asked): void {
    if ((message.flags & NLM_F_DUMP) !== NLM_F_DUMP) refuse('EOPNOTSUPP')
    readIfAddrMsg(view, message)
    const { sequence } = message
    const head = { type: RTM_NEWADDR, flags: NLM_F_MULTI, sequence, portId: from.portId }
    const all = [...this.links.values()].flatMap(link => link.addresses.map(address => ({ link, address })))
    // The kernel goes through one family after the other.
    all.sort((a, b) => a.address.family - b.address.family)
    from.startDump(
      all.map(({ link, address }) => addressMessage(link.index, address, head)),
      sequence,
    )
  }

  /** inet_rtm_newaddr, inet6_rtm_newaddr. */
  #newAddress({ view, message }: Asked): void {
    const { head, ip, link } = this.#addressIn({ view, message })
    if (head.prefixLength > ip.length * 8) refuse('EINVAL')
    // addrconf_add_dev.
    if (head.family === AF_INET6 && this.disablesIpv6) refuse('EACCES')
    // ipv6_add_addr: it belongs to the loopback device.
    if (ip === LOOPBACK_V6) refuse('EADDRNOTAVAIL')
    const known = link.addresses.some(
      each => each.ip === ip && (ip.length === 16 || each.prefixLength === head.prefixLength),
    )
    if (known) refuse('EEXIST')
    const address = { family: head.family, ip, prefixLength: head.prefixLength, flags: head.flags }
    link.addresses.push(address)
    this.#notify(RTM_NEWADDR, link, address)
  }

  /** inet_rtm_deladdr looks at the prefix only when it is given IFA_ADDRESS, inet6_rtm_deladdr always. */
  #deleteAddress({ view, message }: Asked): void {
    const { head, ip, link, values } = this.#addressIn({ view, message })
    const isPrefixGiven = head.family !== AF_INET || values.address !== undefined
    const at = link.addresses.findIndex(
      each => each.ip === ip && (!isPrefixGiven || each.prefixLength === head.prefixLength),
    )
    const address = link.addresses[at] ?? refuse('EADDRNOTAVAIL')
    link.addresses.splice(at, 1)
    this.#notify(RTM_DELADDR, link, address)
  }

  #addressIn({ view, message }: Omit<Asked, 'from'>): {
    readonly head: IfAddrMsg
    readonly values: ValuesOf<typeof ADDRESS>
    readonly ip: Ip
    readonly link: FakeLink
  } {
    const head = readIfAddrMsg(view, message)
    const span = { start: message.start + IFADDRMSG_LENGTH, end: message.end }
    const values = readAttributes(view, ADDRESS, span)
    const ip = values.local ?? values.address
    if (ip === undefined || ip.length !== (head.family === AF_INET ? 4 : 16)) return refuse('EINVAL')
    return { head, values, ip, link: this.links.get(head.index) ?? refuse('ENODEV') }
  }

  #notify(type: number, link: FakeLink, address: FakeAddress): void {
    const group = address.family === AF_INET ? RTNLGRP_IPV4_IFADDR : RTNLGRP_IPV6_IFADDR
    for (const socket of this.#sockets) {
      if (!socket.groups.has(group)) continue
      socket.enqueue(addressMessage(link.index, address, { type, flags: 0, sequence: 0, portId: 0 }))
    }
  }
}

function linkIn({ view, message }: Omit<Asked, 'from'>) {
  const index = readIfInfoMsg(view, message)
  const span = { start: message.start + IFINFOMSG_LENGTH, end: message.end }
  const values = readAttributes(view, LINK, span)
  if (Buffer.byteLength(values.name ?? '') > NAME_BYTES_MAX) refuse('ERANGE')
  return { index, values }
}
