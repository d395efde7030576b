import type { Family, Ip } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Batch, encodeMessage, type Message, nfSpan, writeNfGenMsg } from '../../netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  readAttributes,
  type SourcesOf,
  type ValuesOf,
  type Writer,
  writeAttributes,
  writerOf,
} from '../../netlink/schema.ts'
import { NFPROTO_UNSPEC } from '../nft/constants.ts'
import * as ipset from './state.ts'
import {
  type ADDRESS,
  BITMAP_ELEMENTS_MAX,
  ENTRIES,
  type ENTRY,
  familyFromNumber,
  familyNumber,
  INDEX,
  type Ipset,
  type IpsetEntry,
  type IpsetHeader,
  type IpsetOperation,
  type IpsetType,
  KIND_OF_SET,
  LIST_ENTRY,
  SET,
  SET_TYPES,
  SWAP,
  setTypeOf,
  TYPE,
} from './state.ts'

/** The protocol version that every kernel with ipsets supports. */
const IPSET_PROTOCOL_MIN = 6
/** The only version that IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX accept (Linux 4.20). */
const IPSET_PROTOCOL = 7

function messageType(command: number): number {
  return (ipset.NFNL_SUBSYS_IPSET << 8) | command
}

/** Selects the sets of a list, and how much of each the kernel sends. */
export interface ListRequest {
  /** Undefined lists all sets. */
  readonly name?: string
  /** IPSET_FLAG_LIST_*; undefined lists everything. */
  readonly flags?: number
}

export function encodeList({ name, flags }: ListRequest, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_LIST, flags: NLM_F_DUMP, sequence }
  return request(head, SET, { protocol: IPSET_PROTOCOL_MIN, name, flags })
}

/** Encodes a query for the kernel's revisions of a type. */
export function encodeType(type: IpsetType, family: Ipset['family'], sequence: number): Uint8Array {
  const values = { protocol: IPSET_PROTOCOL_MIN, type, family: familyNumber(type, family) }
  return request({ command: ipset.IPSET_CMD_TYPE, flags: 0, sequence }, TYPE, values)
}

export function encodeIndexOf(name: string, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_GET_BYNAME, flags: 0, sequence }
  return request(head, INDEX, { protocol: IPSET_PROTOCOL, name })
}

export function encodeNameOf(index: number, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_GET_BYINDEX, flags: 0, sequence }
  return request(head, INDEX, { protocol: IPSET_PROTOCOL, index })
}

type SetOperation = Exclude<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/**
 * Opens the message of an operation and writes its attributes. `revision` applies to sets to create. NLM_F_EXCL is
 * necessary: without it, the kernel takes a set of the other family for the same one (ip_set_create compares the
 * families of the types, and each type has both). Throws NetlinkError for a value that does not fit.
 */
function writeSetOperation(batch: Batch<unknown>, operation: SetOperation, revision: number): void {
  const protocol = IPSET_PROTOCOL_MIN
  switch (operation.verb) {
    case 'create': {
      const { name, type, family, maxElements, hashSize } = operation.set
      const shape = type === 'bitmap:port' ? { portFrom: 0, portTo: 0xffff } : { hashSize, maxElements }
      const values = { protocol, name, type, revision, family: familyNumber(type, family), shape }
      openIpsetMessage(batch, ipset.IPSET_CMD_CREATE, NLM_F_EXCL)
      writeAttributes(batch.out, SET, values)
      break
    }
    case 'destroy':
      // Without a name, the command would apply to every set.
      openIpsetMessage(batch, ipset.IPSET_CMD_DESTROY)
      writeAttributes(batch.out, SET, { protocol, name: operation.name })
      break
    case 'swap':
      openIpsetMessage(batch, ipset.IPSET_CMD_SWAP)
      writeAttributes(batch.out, SWAP, { protocol, name: operation.name, with: operation.with })
      break
  }
}

function openIpsetMessage(batch: Batch<unknown>, command: number, flags = 0): void {
  batch.open(messageType(command), flags)
  writeNfGenMsg(batch.out.out, HEAD)
}

const HEAD = { family: NFPROTO_UNSPEC, resourceId: 0 } as const

interface Head {
  readonly command: number
  readonly flags: number
  readonly sequence: number
}

function request<F extends Fields>(
  { command, flags, sequence }: Head,
  table: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  return encodeMessage({ type: messageType(command), flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, HEAD)
    writeAttributes(out, table, values)
  })
}

/** Maximum length of an entry: two IPv6 addresses, port, protocol, prefix, line, and their headers. */
export const ENTRY_BYTES_MAX = 88

/** An entry and its position in the message, counted from 1. */
export interface NumberedEntry {
  readonly entry: IpsetEntry
  readonly line: number
}

/** Expects addresses of the set's family. */
function address(
  family: Family,
  ipOf: (source: NumberedEntry) => Ip | undefined,
): SourcesOf<typeof ADDRESS, NumberedEntry> {
  return family === 'IPv4' ? { v4: ipOf } : { v6: ipOf }
}

/** Compiles a writer that skips the fields that the type does not use. */
function writerFor(type: IpsetType, family: Family): Writer<NumberedEntry> {
  const { fields } = SET_TYPES[type]
  const sources: SourcesOf<typeof ENTRY, NumberedEntry> = {
    ip: address(family, ({ entry }) => entry.ip),
    port: ({ entry }) => entry.port,
    protocol: ({ entry }) => entry.protocol,
    ip2: address(family, ({ entry }) => entry.ip2),
    prefix2: ({ entry }) => entry.prefix2,
  }
  const its = Object.entries(sources).filter(([name]) => fields.some(field => field === name))
  return writerOf(LIST_ENTRY, { entry: { ...Object.fromEntries(its), line: ({ line }) => line } })
}

function writersFor(type: IpsetType): Readonly<Record<Family, Writer<NumberedEntry>>> {
  return { IPv4: writerFor(type, 'IPv4'), IPv6: writerFor(type, 'IPv6') }
}

const WRITERS: Readonly<Record<IpsetType, ReturnType<typeof writersFor>>> = {
  'hash:ip': writersFor('hash:ip'),
  'hash:ip,port': writersFor('hash:ip,port'),
  'hash:ip,port,ip': writersFor('hash:ip,port,ip'),
  'hash:ip,port,net': writersFor('hash:ip,port,net'),
  'bitmap:port': writersFor('bitmap:port'),
}

/** Returns the writer for entries of IPSET_ATTR_ADT. */
export function entryWriter({ type, family }: Ipset): Writer<NumberedEntry> {
  return WRITERS[type][family]
}

export type EntryOperation = Extract<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/** The content of one message: a set, or entries `from` (inclusive) to `to` (exclusive) of an operation. */
export type Piece =
  | { readonly kind: 'set'; readonly operation: SetOperation; readonly revision: number }
  | {
      readonly kind: 'entries'
      readonly operation: EntryOperation
      readonly from: number
      readonly to: number
    }
type EntryPiece = Extract<Piece, { readonly kind: 'entries' }>

/** IPSET_ATTR_ADT could hold three times as many. More are no faster, and an error repeats the whole message. */
const ENTRIES_PER_MESSAGE = 500
const MESSAGE_OVERHEAD_BYTES = 128

/** Splits an operation on entries into pieces, each for one message. */
export function entryPieces(operation: EntryOperation): readonly EntryPiece[] {
  const { length } = operation.entries
  const pieces: EntryPiece[] = []
  for (let from = 0; from < length; from += ENTRIES_PER_MESSAGE)
    pieces.push({ kind: 'entries', operation, from, to: Math.min(from + ENTRIES_PER_MESSAGE, length) })
  return pieces
}

export function entriesIn(piece: Piece): number {
  return piece.kind === 'entries' ? piece.to - piece.from : 0
}

/** Maximum bytes of an IPv4 entry; an IPv6 entry has at most ENTRY_BYTES_MAX. */
const V4_ENTRY_BYTES_MAX = 64

export function bytesMax(piece: Piece): number {
  if (piece.kind === 'set') return MESSAGE_OVERHEAD_BYTES
  const each = piece.operation.set.family === 'IPv4' ? V4_ENTRY_BYTES_MAX : ENTRY_BYTES_MAX
  return MESSAGE_OVERHEAD_BYTES + entriesIn(piece) * each
}

/** Appends the message of a piece. Throws NetlinkError for a name that does not fit. */
export function writePiece(batch: Batch<Piece>, piece: Piece): void {
  if (piece.kind === 'entries') writeEntries(batch, piece)
  else writeSetOperation(batch, piece.operation, piece.revision)
  batch.close(piece)
}

function writeEntries(batch: Batch<Piece>, { operation, from, to }: EntryPiece): void {
  const { out } = batch
  // Without NLM_F_EXCL: an entry that exists, or is gone, already is no error.
  openIpsetMessage(batch, operation.verb === 'add-entries' ? ipset.IPSET_CMD_ADD : ipset.IPSET_CMD_DEL)
  // The kernel writes the line of the rejected entry here, in the copy that its answer contains.
  writeAttributes(out, ENTRIES, { protocol: IPSET_PROTOCOL_MIN, name: operation.set.name, line: 0 })
  const write = entryWriter(operation.set)
  out.openNest(ipset.IPSET_ATTR_ADT)
  for (let i = from; i < to; i++) {
    const entry = operation.entries[i]
    if (entry !== undefined) write(out, { entry, line: i - from + 1 })
  }
  out.close()
}

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
  return readAttributes(view, table, nfSpan(message))
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

/** Appends the entries of a message to `into`. Throws NetlinkError for an entry without the fields of the set's type. */
export function appendEntries(into: IpsetEntry[], type: IpsetType, message: SetMessage): void {
  for (const entry of message.entries ?? []) {
    const isException = ((entry.flags ?? 0) & ipset.IPSET_FLAG_NOMATCH) !== 0
    const its = entryOf(type, entry)
    into.push(isException ? { ...its, nomatch: true } : its)
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
