import { type ByteView, forEachAttribute } from '../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../../src/netlink/message.ts'
import { ERR, type FakeElement, refuse } from './sets.ts'

/** An attribute as it came: the kernel looks at the flags of many. */
interface RawAttribute {
  readonly start: number
  readonly end: number
  /** NLA_F_NESTED. */
  readonly nested: boolean
  /** NLA_F_NET_BYTEORDER. */
  readonly network: boolean
}

/** One request, read by other means than the product's tables. */
export class FakeRequest {
  readonly view: ByteView
  readonly message: Message
  readonly #attributes: ReadonlyMap<number, RawAttribute>

  constructor(view: ByteView, message: Message) {
    this.view = view
    this.message = message
    this.#attributes = this.within(message.start + NFGENMSG_LENGTH, message.end)
  }

  attribute(type: number): RawAttribute | undefined {
    return this.#attributes.get(type)
  }

  number(type: number): number | undefined {
    return this.#numberOf(this.#attributes.get(type))
  }

  string(type: number): string | undefined {
    const found = this.#attributes.get(type)
    return found && this.view.bytes.toString('utf8', found.start, found.end).replace(/\0.*$/s, '')
  }

  #numberOf(found: RawAttribute | undefined): number | undefined {
    return found && this.numberAt(found)
  }

  numberAt({ start, end }: RawAttribute): number {
    return this.view.bytes.readUIntBE(start, end - start)
  }

  /** Of repeated attributes the last counts, as in nla_parse. */
  within(start: number, end: number): ReadonlyMap<number, RawAttribute> {
    const found = new Map<number, RawAttribute>()
    this.forEach(start, end, (type, attribute) => found.set(type, attribute))
    return found
  }

  forEach(start: number, end: number, visit: (type: number, attribute: RawAttribute) => void): void {
    try {
      forEachAttribute(this.view, start, end, (type, from, to) => {
        const flags = this.view.data.getUint16(from - 2, true)
        visit(type, { start: from, end: to, nested: (flags & 0x8000) !== 0, network: (flags & 0x4000) !== 0 })
      })
    } catch (error) {
      if (error instanceof NetlinkError) refuse(ERR.EINVAL)
      throw error
    }
  }

  nest(type: number): ReadonlyMap<number, RawAttribute> | undefined {
    const found = this.#attributes.get(type)
    if (found === undefined) return undefined
    return found.nested ? this.within(found.start, found.end) : refuse(ERR.PROTOCOL)
  }

  /** Numbers that have to be marked as being in network order. */
  marked(attributes: ReadonlyMap<number, RawAttribute>, type: number): number | undefined {
    const found = attributes.get(type)
    if (found === undefined) return undefined
    return found.network ? this.numberAt(found) : refuse(ERR.PROTOCOL)
  }

  /** The element in a nest IPSET_ATTR_DATA, and its line. */
  element(nest: RawAttribute): {
    readonly line: number
    readonly bytes: () => FakeElement
  } {
    const attributes = this.within(nest.start, nest.end)
    const line = attributes.get(9)
    return {
      line: line === undefined ? 0 : this.view.data.getUint32(line.start, true),
      bytes: () => ({
        ip: this.#address(attributes.get(1)),
        port: this.marked(attributes, 4),
        protocol: this.#numberOf(attributes.get(7)),
        ip2: this.#address(attributes.get(20)),
        prefix2: this.#numberOf(attributes.get(21)),
      }),
    }
  }

  #address(nest: RawAttribute | undefined): string | undefined {
    if (nest === undefined) return undefined
    if (!nest.nested) return refuse(ERR.PROTOCOL)
    const attributes = this.within(nest.start, nest.end)
    const found = attributes.get(1) ?? attributes.get(2)
    if (found === undefined || !found.network) return refuse(ERR.PROTOCOL)
    return this.view.bytes.toString('latin1', found.start, found.end)
  }
}
