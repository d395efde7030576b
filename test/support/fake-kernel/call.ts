import { assert } from '../../../src/base/errors.ts'
import { type ByteView, forEachAttribute } from '../../../src/netlink/attribute.ts'
import { NLMSG_HDRLEN } from '../../../src/netlink/constants.ts'
import { errnoNumber, NetlinkError } from '../../../src/netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH, readNfGenMsg } from '../../../src/netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  readAttributes,
} from '../../../src/netlink/schema.ts'
import { type FakeChain, type FakeTable, type Journal, type Namespace, Refusal, tableKey } from './objects.ts'

/** One message on its way into a namespace. */
export interface Call {
  readonly space: Namespace
  readonly journal: Journal
  readonly view: ByteView
  readonly message: Message
  /** NFPROTO_*. */
  readonly family: number
}

export function refuse(code: string, offset?: number): never {
  const errno = errnoNumber(code)
  assert(errno > 0, `${code} is no errno`)
  throw new Refusal(errno, offset)
}

export function familyIn(view: ByteView, message: Message): number {
  return readNfGenMsg(view, message).family
}

/** The message's attributes. What the codec cannot read, the kernel's parser does not accept either. */
export function attributesOf<F extends Fields>(
  call: Pick<Call, 'view' | 'message'>,
  set: AttributeSet<F>,
): Attributes<F> {
  const { view, message } = call
  try {
    return readAttributes(view, set, { start: message.start + NFGENMSG_LENGTH, end: message.end })
  } catch (error) {
    if (error instanceof NetlinkError) return refuse('EINVAL')
    throw error
  }
}

/** Offset of an attribute's header within the message. */
export function offsetOf(call: Pick<Call, 'view' | 'message'>, attribute: number): number | undefined {
  const { view, message } = call
  let offset: number | undefined
  forEachAttribute(view, message.start + NFGENMSG_LENGTH, message.end, (type, start) => {
    if (type === attribute) offset = start - 4 - (message.start - NLMSG_HDRLEN)
  })
  return offset
}

/** Offset of an item of a list within the message. */
export function itemOffset(
  call: Pick<Call, 'view' | 'message'>,
  list: number,
  index: number,
): number | undefined {
  const { view, message } = call
  let offset: number | undefined
  forEachAttribute(view, message.start + NFGENMSG_LENGTH, message.end, (type, start, end) => {
    if (type !== list) return
    let at = 0
    forEachAttribute(view, start, end, (_item, from) => {
      if (at === index) offset = from - 4 - (message.start - NLMSG_HDRLEN)
      at++
    })
  })
  return offset
}

const NAME_LENGTH_MAX = 255

/** A name that is there and not too long. */
export function nameIn(call: Call, name: string | undefined, attribute: number): string {
  if (name === undefined) return refuse('EINVAL')
  if (Buffer.byteLength(name) > NAME_LENGTH_MAX) return refuse('ERANGE', offsetOf(call, attribute))
  return name
}

/** The table's attribute has the same number in all messages. */
const TABLE_ATTRIBUTE = 1

export function tableOf(call: Call, name: string | undefined): FakeTable {
  const key = tableKey(call.family, nameIn(call, name, TABLE_ATTRIBUTE))
  return call.space.tables.get(key) ?? refuse('ENOENT', offsetOf(call, TABLE_ATTRIBUTE))
}

export function chainOf(
  call: Call,
  table: FakeTable,
  name: { readonly value: string | undefined; readonly attribute: number },
): FakeChain {
  const chain = table.chains.get(nameIn(call, name.value, name.attribute))
  return chain ?? refuse('ENOENT', offsetOf(call, name.attribute))
}
