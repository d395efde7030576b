import type { Ip } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  readAttributes,
  type ValuesOf,
} from '../../netlink/schema.ts'
import { IPSET_FLAG_NOMATCH } from './constants.ts'
import { type ENTRY, KIND_OF_SET, SET } from './schema.ts'
import { BITMAP_ELEMENTS_MAX, familyFromNumber, SET_TYPES, setTypeOf } from './set-types.ts'
import type { Ipset, IpsetEntry, IpsetHeader, IpsetType } from './state.ts'

/** One message of a list: the first message of a set has its shape, every message has some of its entries. */
type SetMessage = ValuesOf<typeof SET>

export function decodeSet(view: ByteView, message: Message): SetMessage {
  return decodeAs(view, message, SET)
}

/** Reads the set name of a list message; '' where it has none. */
export function decodeName(view: ByteView, message: Message): string {
  return decodeAs(view, message, KIND_OF_SET).name ?? ''
}

export function decodeAs<F extends Fields>(
  view: ByteView,
  message: Message,
  table: AttributeSet<F>,
): Attributes<F> {
  return readAttributes(view, table, { start: message.start + NFGENMSG_LENGTH, end: message.end })
}

/** A set that kprobe could not have created, and the reason as text. */
export interface Foreign {
  readonly name: string
  readonly foreign: string
}

/**
 * Decodes the header of a set, or returns why kprobe could not have created it: another type, a revision newer than
 * kprobe reads, or entries with a different meaning (timeouts, masks, counters, comments, forceadd).
 */
export function decodeHeader(view: ByteView, message: Message): IpsetHeader | Foreign {
  const { name = '', type: typeName = '', revision = 0, family = 0 } = decodeAs(view, message, KIND_OF_SET)
  const type = setTypeOf(typeName)
  if (type === undefined) return { name, foreign: `it is of the type ${typeName}` }
  if (revision > SET_TYPES[type].revisionMax)
    return { name, foreign: `it is ${type} of revision ${revision}` }
  const known = familyFromNumber(type, family)
  if (known === undefined) return { name, foreign: `it is ${type} of family ${family}` }
  const { shape = {} } = decodeSet(view, message)
  const more = extraOf(type, shape)
  if (more !== undefined) return { name, foreign: `it is ${type} with ${more}` }
  const { elements = 0, references = 0, memoryBytes = 0, bucketSize, initialValue } = shape
  const set: Ipset = { name, type, family: known, ...sizeOf(type, shape) }
  return { set, revision, elements, references, memoryBytes, bucketSize, initialValue }
}

type Shape = NonNullable<SetMessage['shape']>

function extraOf(type: IpsetType, shape: Shape): string | undefined {
  if (shape.timeout !== undefined) return 'a timeout'
  if (shape.netmask !== undefined || shape.bitmask !== undefined) return 'a mask'
  if (shape.flags !== undefined && shape.flags !== 0) return `the flags 0x${shape.flags.toString(16)}`
  const isWhole = type !== 'bitmap:port' || (shape.portFrom === 0 && shape.portTo === 0xffff)
  return isWhole ? undefined : `the range ${shape.portFrom}-${shape.portTo}`
}

function sizeOf(type: IpsetType, shape: Shape): Pick<Ipset, 'maxElements' | 'hashSize'> {
  if (type === 'bitmap:port') return { maxElements: BITMAP_ELEMENTS_MAX, hashSize: 0 }
  return { maxElements: shape.maxElements ?? 0, hashSize: shape.hashSize ?? 0 }
}

/**
 * Appends the entries of a message to `into`. Skips exceptions (nomatch), which kprobe never writes. Throws
 * NetlinkError for an entry without the fields of the set's type.
 */
export function appendEntries(into: IpsetEntry[], type: IpsetType, message: SetMessage): void {
  for (const entry of message.entries ?? []) {
    if (((entry.flags ?? 0) & IPSET_FLAG_NOMATCH) === 0) into.push(entryOf(type, entry))
  }
}

type EntryAttributes = ValuesOf<typeof ENTRY>

function entryOf(type: IpsetType, attributes: EntryAttributes): IpsetEntry {
  switch (type) {
    case 'bitmap:port':
      return { port: present(attributes.port) }
    case 'hash:ip':
      return { ip: addressOf(attributes.ip) }
    case 'hash:ip,port':
      return { ip: addressOf(attributes.ip), ...servedBy(attributes) }
    case 'hash:ip,port,ip':
      return { ip: addressOf(attributes.ip), ...servedBy(attributes), ip2: addressOf(attributes.ip2) }
    case 'hash:ip,port,net': {
      const ip2 = addressOf(attributes.ip2)
      const { prefix2 = ip2.length * 8 } = attributes
      return { ip: addressOf(attributes.ip), ...servedBy(attributes), ip2, prefix2 }
    }
  }
}

function servedBy({ protocol, port }: EntryAttributes): { protocol: number; port: number } {
  return { protocol: present(protocol), port: present(port) }
}

function addressOf(address: EntryAttributes['ip']): Ip {
  const ip = present(address?.v4 ?? address?.v6)
  const length = address?.v4 === undefined ? 16 : 4
  if (ip.length !== length) throw malformed(`an address of ${ip.length} bytes in an entry`, 0)
  return ip
}

function present<T>(value: T | undefined): T {
  if (value === undefined) throw malformed('an entry without the fields of its type', 0)
  return value
}
