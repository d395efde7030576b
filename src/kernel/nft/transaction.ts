import { forEachAttribute, viewOf } from '../../netlink/attribute.ts'
import { string } from '../../netlink/codecs.ts'
import { NLA_HDRLEN, NLM_F_ACK, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import type { Words } from '../../netlink/conversation.ts'
import { groupsText } from '../../netlink/errors.ts'
import { Batch, type BatchMessage, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import * as nft from './constants.ts'
import type { Chain, CompiledRule, Element, HookFamily, NftFamily, NftSet, Rule } from './state.ts'

/** One step of a transaction, in nft's verbs. The order within a transaction matters to the kernel. */
export type Operation = TableOperation &
  (
    | { readonly verb: 'add-table'; readonly flags: number; readonly comment: string | undefined }
    | { readonly verb: 'delete-table' }
    | { readonly verb: 'add-chain'; readonly chain: Chain }
    | { readonly verb: 'flush-chain'; readonly chain: string }
    | { readonly verb: 'delete-chain'; readonly chain: string }
    /** Appends after the rules of the chain. */
    | (RuleAddition & { readonly verb: 'add-rule' })
    /** Inserts before the rules of the chain. */
    | (RuleAddition & { readonly verb: 'insert-rule' })
    | { readonly verb: 'delete-rule'; readonly chain: string; readonly handle: bigint }
    | { readonly verb: 'add-set'; readonly set: NftSet }
    | { readonly verb: 'delete-set'; readonly set: string }
    | (OwnedElements & { readonly verb: 'add-elements'; readonly set: NftSet })
    | (OwnedElements & { readonly verb: 'delete-elements'; readonly set: NftSet })
  )

export interface TableOperation {
  readonly family: NftFamily
  readonly table: string
}

export interface RuleAddition {
  readonly chain: string
  readonly rule: Rule | CompiledRule
}

/**
 * Elements with the groups that they belong to, so that an error can name the Service. A full load has 100,000 and
 * more.
 */
export interface OwnedElements {
  readonly elements: readonly Element[]
  /** Group of the element with the same index. */
  readonly groups: readonly string[]
}

export interface OwnedElement {
  readonly element: Element
  readonly group: string
}

/** Operations that the kernel applies entirely or not at all. */
export type Transaction = readonly Operation[]

export type ElementOperation = Extract<Operation, { readonly verb: 'add-elements' | 'delete-elements' }>
type RuleOperation = Extract<Operation, { readonly verb: 'add-rule' | 'insert-rule' }>

export function isOnElements(operation: Operation): operation is ElementOperation {
  return operation.verb === 'add-elements' || operation.verb === 'delete-elements'
}

/** Returns the number of a family in struct nfgenmsg. */
export function familyNumber(family: HookFamily): number {
  return family === 'ip' ? nft.NFPROTO_IPV4 : family === 'ip6' ? nft.NFPROTO_IPV6 : nft.NFPROTO_INET
}

/** Returns the generation after one commit. The kernel's counter skips 0 when it wraps. */
export function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}

export function elementsIn(transaction: Transaction): number {
  let count = 0
  for (const operation of transaction) if (isOnElements(operation)) count += operation.elements.length
  return count
}

export function addsRule(operation: Operation): operation is RuleOperation {
  return operation.verb === 'add-rule' || operation.verb === 'insert-rule'
}

/** Returns the words for an operation in errors: `add element` and `ip kube-proxy frontends (ns1/web)`. */
export function errorWordsOf(operation: Operation, elements: readonly OwnedElement[]): Words {
  const words = wordsOf(operation)
  const owners = groupsText(
    elements.map(({ group }) => group),
    'elements',
  )
  return owners === '' ? words : { ...words, object: `${words.object} ${owners}` }
}

/** Returns an operation in nft's words: the verb with its noun, and the object. */
export function wordsOf(operation: Operation): Words {
  const place = `${operation.family} ${operation.table}`
  const object = objectOf(operation)
  const verb = operation.verb.replace('-', ' ').replace(/elements$/, 'element')
  return { operation: verb, object: object === '' ? place : `${place} ${object}` }
}

function objectOf(operation: Operation): string {
  switch (operation.verb) {
    case 'add-table':
    case 'delete-table':
      return ''
    case 'add-chain':
      return operation.chain.name
    case 'flush-chain':
    case 'delete-chain':
    case 'add-rule':
    case 'insert-rule':
      return operation.chain
    case 'delete-rule':
      return `${operation.chain} handle ${operation.handle}`
    case 'add-set':
      return operation.set.name
    case 'delete-set':
      return operation.set
    case 'add-elements':
    case 'delete-elements':
      return operation.set.name
  }
}

/** Elements `from` (inclusive) to `to` (exclusive) of an operation in one message. */
export interface ElementRun {
  readonly operation: ElementOperation
  readonly from: number
  readonly to: number
}

/** The content of a message: elements of an operation, or another operation; undefined for begin and end. */
type MessageTag = Operation | ElementRun | undefined

/** A transaction as one datagram. It can name the part that the kernel rejected. */
export class EncodedTransaction extends Batch<MessageTag> {
  /** Returns the operation of a message; undefined for batch begin and end. */
  operationAt(sequence: number): Operation | undefined {
    const tag = this.tagOf(sequence)
    return tag === undefined || 'verb' in tag ? tag : tag.operation
  }

  /** Returns the element at `offset` of the message, or all its elements if there is none at that offset. */
  elementsAt(sequence: number, offset?: number): readonly OwnedElement[] {
    const message = this.at(sequence)
    if (message?.tag === undefined || 'verb' in message.tag) return []
    const all = ownedBy(message.tag)
    const index = offset === undefined ? -1 : elementIndexAt(this.bytes, message, message.start + offset)
    const culprit = all[index]
    return culprit === undefined ? all : [culprit]
  }

  /** Returns the kernel's name of the expression at `offset` of a rule message. */
  expressionAt(sequence: number, offset: number): string | undefined {
    const message = this.at(sequence)
    const tag = message?.tag
    if (message === undefined || tag === undefined || !('verb' in tag) || !addsRule(tag)) return undefined
    return expressionNameAt(this.bytes, message, message.start + offset)
  }
}

function ownedBy({ operation, from, to }: ElementRun): readonly OwnedElement[] {
  return operation.elements
    .slice(from, to)
    .map((element, i) => ({ element, group: operation.groups[from + i] ?? '' }))
}

type Place = Pick<BatchMessage<unknown>, 'start' | 'end'>

/** Returns the index of the list element that covers the byte at `position` of the batch; -1 for none. */
function elementIndexAt(bytes: Uint8Array, message: Place, position: number): number {
  let found = -1
  forEachItem(bytes, { message, list: nft.NFTA_SET_ELEM_LIST_ELEMENTS }, ({ index, from, to }) => {
    if (position >= from - NLA_HDRLEN && position < to) found = index
  })
  return found
}

function expressionNameAt(bytes: Uint8Array, message: Place, position: number): string | undefined {
  let found: string | undefined
  forEachItem(bytes, { message, list: nft.NFTA_RULE_EXPRESSIONS }, ({ from, to }) => {
    if (position < from - NLA_HDRLEN || position >= to) return
    forEachAttribute(viewOf(bytes), from, to, (type, start, end) => {
      if (type === nft.NFTA_EXPR_NAME) found = string.read(viewOf(bytes), start, end, 0)
    })
  })
  return found
}

interface Item {
  readonly index: number
  readonly from: number
  readonly to: number
}

/** The items of one of the message's lists. */
function forEachItem(
  bytes: Uint8Array,
  { message, list }: { readonly message: Place; readonly list: number },
  visit: (item: Item) => void,
): void {
  const view = viewOf(bytes)
  const attributes = message.start + NLMSG_HDRLEN + NFGENMSG_LENGTH
  forEachAttribute(view, attributes, message.end, (type, start, end) => {
    if (type !== list) return
    let index = 0
    forEachAttribute(view, start, end, (item, from, to) => {
      if (item === nft.NFTA_LIST_ELEM) visit({ index, from, to })
      index++
    })
  })
}

/** Batch begin and end without attributes. */
const BORDER_LENGTH = NLMSG_HDRLEN + NFGENMSG_LENGTH
/** NFNL_BATCH_GENID, their only attribute, big endian. */
const GENERATION_OFFSET = BORDER_LENGTH + NLA_HDRLEN
const FLAGS_OFFSET = 6

export function nameGeneration(bytes: Uint8Array, generation: number): void {
  for (let i = 0; i < 4; i++) bytes[GENERATION_OFFSET + i] = generation >>> (24 - 8 * i)
}

/**
 * Splits a batch that is longer than the socket's limit into several that are committed one after the other. The
 * messages keep their sequence numbers and order; each part has its own begin, end and acknowledgement. The first
 * part names the generation of the batch. A later part names the generation that the part before it leads to, if it
 * has a message for which `isBound` (by its index in the batch) returns true. A single message that is too long stays
 * whole.
 */
export function splitBatch(
  bytes: Uint8Array,
  limitBytes: number,
  isBound: (message: number) => boolean,
): readonly Uint8Array[] {
  if (bytes.length <= limitBytes) return [bytes]
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const borders = messageStarts(view)
  const first = borders[1] ?? bytes.length
  const last = borders.at(-1) ?? first
  const begin = bytes.subarray(0, first)
  const end = bytes.subarray(last)
  const parts: Uint8Array[] = []
  let from = first
  let bound = false
  const close = (to: number): void => {
    const isNamed = parts.length === 0 || bound
    const head = isNamed ? beginOf(begin, parts.length) : begin.subarray(0, BORDER_LENGTH)
    parts.push(partOf(bytes, { head, end, from, to }))
    from = to
    bound = false
  }
  for (let i = 1; i < borders.length - 1; i++) {
    const next = borders[i + 1] ?? last
    const start = borders[i] ?? from
    if (start > from && begin.length + (next - from) + end.length > limitBytes) close(start)
    bound ||= isBound(i)
  }
  close(last)
  return parts
}

/** Returns a batch's begin. A generation in the original is raised by our own `commits`. */
function beginOf(begin: Uint8Array, commits: number): Uint8Array {
  const named = begin.slice()
  if (named.length < GENERATION_OFFSET + 4) return named
  const view = new DataView(named.buffer)
  let generation = view.getUint32(GENERATION_OFFSET)
  for (let i = 0; i < commits; i++) generation = nextGeneration(generation)
  view.setUint32(GENERATION_OFFSET, generation)
  return named
}

/** Returns the offsets of all messages. Lengths are not checked, because the batch is our own. */
function messageStarts(view: DataView): readonly number[] {
  const starts: number[] = []
  for (let at = 0; at < view.byteLength; at += (view.getUint32(at, true) + 3) & ~3) starts.push(at)
  return starts
}

interface Part {
  readonly head: Uint8Array
  readonly end: Uint8Array
  readonly from: number
  readonly to: number
}

function partOf(bytes: Uint8Array, { head, end, from, to }: Part): Uint8Array {
  const part = new Uint8Array(head.length + (to - from) + end.length)
  part.set(head)
  part.set(bytes.subarray(from, to), head.length)
  part.set(end, head.length + to - from)
  const view = new DataView(part.buffer)
  view.setUint32(0, head.length, true)
  const starts = messageStarts(view)
  const lastMessage = starts.at(-2) ?? 0
  const flags = view.getUint16(lastMessage + FLAGS_OFFSET, true)
  view.setUint16(lastMessage + FLAGS_OFFSET, flags | NLM_F_ACK, true)
  return part
}
