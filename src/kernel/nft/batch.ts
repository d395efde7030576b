import { forEachAttribute } from '../../netlink/attribute.ts'
import { viewOf } from '../../netlink/bytes.ts'
import { string } from '../../netlink/codec.ts'
import { NLA_HDRLEN, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { NFGENMSG_LENGTH } from '../../netlink/message.ts'
import {
  NFTA_EXPR_NAME,
  NFTA_LIST_ELEM,
  NFTA_RULE_EXPRESSIONS,
  NFTA_SET_ELEM_LIST_ELEMENTS,
} from './constants.ts'
import type { Operation, OwnedElement } from './operation.ts'

export type ElementOperation = Extract<Operation, { readonly verb: 'add-elements' | 'delete-elements' }>

/** Elements `from` (inclusive) to `to` (exclusive) of an operation, that one message carries. */
export interface ElementRun {
  readonly operation: ElementOperation
  readonly from: number
  readonly to: number
}

/** Where a message lies in the batch, and what it does; batch begin and end do nothing of their own. */
interface MessageRecord {
  readonly start: number
  readonly end: number
  readonly operation: Operation | undefined
  readonly runs: readonly ElementRun[]
}

const NO_RUNS: readonly ElementRun[] = []

/** The messages of a batch, in order. A full load has tens of thousands: none has an object of its own. */
export class MessageRecords {
  readonly #starts: number[] = []
  readonly #operations: (Operation | undefined)[] = []
  readonly #runs = new Map<number, readonly ElementRun[]>()

  get length(): number {
    return this.#starts.length
  }

  /** One that begins where the one before ended. */
  add(start: number, operation: Operation | undefined, runs: readonly ElementRun[] = NO_RUNS): void {
    if (runs.length > 0) this.#runs.set(this.#starts.length, runs)
    this.#starts.push(start)
    this.#operations.push(operation)
  }

  /** `length` is that of the whole batch. */
  at(index: number, length: number): MessageRecord | undefined {
    const start = this.#starts[index]
    if (start === undefined) return undefined
    const end = this.#starts[index + 1] ?? length
    return { start, end, operation: this.#operations[index], runs: this.#runs.get(index) ?? NO_RUNS }
  }
}

/** A transaction as one datagram, with what it takes to say which part of it the kernel refused. */
export interface Batch {
  readonly bytes: Uint8Array
  readonly messages: number
  readonly firstSequence: number
  /** Whether the sequence number is that of one of its messages. */
  has(sequence: number): boolean
  /** What a message does; undefined for batch begin and end. `offset` (into the message) picks among merged operations. */
  operationAt(sequence: number, offset?: number): Operation | undefined
  /** The element that lies at `offset` of the message, or all its elements where that points at none. */
  elementsAt(sequence: number, offset?: number): readonly OwnedElement[]
  /** The kernel's name of the expression that lies at `offset` of a message about a rule. */
  expressionAt(sequence: number, offset: number): string | undefined
}

export function batchOf(bytes: Uint8Array, firstSequence: number, records: MessageRecords): Batch {
  const recordAt = (sequence: number): MessageRecord | undefined =>
    records.at(sequence - firstSequence, bytes.length)
  return {
    bytes,
    messages: records.length,
    firstSequence,
    has: sequence => sequence >= firstSequence && sequence < firstSequence + records.length,
    operationAt(sequence, offset) {
      const record = recordAt(sequence)
      return (record && culpritOf(bytes, record, offset)?.operation) ?? record?.operation
    },
    elementsAt(sequence, offset) {
      const record = recordAt(sequence)
      if (record === undefined) return []
      const culprit = culpritOf(bytes, record, offset)
      if (culprit !== undefined) return [culprit.element]
      return record.runs.flatMap(ownedBy)
    },
    expressionAt(sequence, offset) {
      const record = recordAt(sequence)
      const isRule = record?.operation?.verb === 'add-rule' || record?.operation?.verb === 'insert-rule'
      return record !== undefined && isRule
        ? expressionNameAt(bytes, record, record.start + offset)
        : undefined
    },
  }
}

function ownedBy({ operation, from, to }: ElementRun): readonly OwnedElement[] {
  return operation.elements
    .slice(from, to)
    .map((element, i) => ({ element, group: operation.groups[from + i] ?? '' }))
}

interface Culprit {
  readonly operation: ElementOperation
  readonly element: OwnedElement
}

function culpritOf(
  bytes: Uint8Array,
  record: MessageRecord,
  offset: number | undefined,
): Culprit | undefined {
  if (offset === undefined || record.runs.length === 0) return undefined
  let index = elementIndexAt(bytes, record, record.start + offset)
  if (index === undefined) return undefined
  for (const { operation, from, to } of record.runs) {
    if (index < to - from) {
      const [element] = ownedBy({ operation, from: from + index, to: from + index + 1 })
      return element && { operation, element }
    }
    index -= to - from
  }
  return undefined
}

/** Which element of the message's list, counted from 0, covers the byte at `position` of the batch. */
function elementIndexAt(bytes: Uint8Array, record: MessageRecord, position: number): number | undefined {
  let found: number | undefined
  forEachItem(bytes, { record, list: NFTA_SET_ELEM_LIST_ELEMENTS }, ({ index, from, to }) => {
    if (position >= from - NLA_HDRLEN && position < to) found = index
  })
  return found
}

function expressionNameAt(bytes: Uint8Array, record: MessageRecord, position: number): string | undefined {
  let found: string | undefined
  forEachItem(bytes, { record, list: NFTA_RULE_EXPRESSIONS }, ({ from, to }) => {
    if (position < from - NLA_HDRLEN || position >= to) return
    forEachAttribute(viewOf(bytes), from, to, (type, start, end) => {
      if (type === NFTA_EXPR_NAME) found = string.read(viewOf(bytes), start, end, 0)
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
  { record, list }: { readonly record: MessageRecord; readonly list: number },
  visit: (item: Item) => void,
): void {
  const view = viewOf(bytes)
  forEachAttribute(view, record.start + NLMSG_HDRLEN + NFGENMSG_LENGTH, record.end, (type, start, end) => {
    if (type !== list) return
    let index = 0
    forEachAttribute(view, start, end, (item, from, to) => {
      if (item === NFTA_LIST_ELEM) visit({ index, from, to })
      index++
    })
  })
}
