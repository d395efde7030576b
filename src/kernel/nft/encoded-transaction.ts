import { forEachAttribute } from '../../netlink/attribute.ts'
import type { Batch, BatchMessage } from '../../netlink/batch.ts'
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
import { addsRule, type ElementOperation, type Operation, type OwnedElement } from './operation.ts'

/** Elements `from` (inclusive) to `to` (exclusive) of an operation in one message. */
export interface ElementRun {
  readonly operation: ElementOperation
  readonly from: number
  readonly to: number
}

/** The content of a message: elements of several operations, or one other operation; undefined for begin and end. */
export type MessageTag = Operation | { readonly runs: readonly ElementRun[] } | undefined

/** A transaction as one datagram. It can name the part that the kernel rejected. */
export class EncodedTransaction {
  readonly #batch: Batch<MessageTag>
  readonly bytes: Uint8Array

  constructor(batch: Batch<MessageTag>) {
    this.#batch = batch
    this.bytes = batch.bytes
  }

  get messages(): number {
    return this.#batch.messages
  }

  get firstSequence(): number {
    return this.#batch.firstSequence
  }

  /** Returns whether one of its messages has the sequence number. */
  has(sequence: number): boolean {
    return this.#batch.has(sequence)
  }

  /**
   * Returns the operation of a message; undefined for batch begin and end. `offset` (into the message) selects one of
   * the merged operations.
   */
  operationAt(sequence: number, offset?: number): Operation | undefined {
    const tag = this.#batch.tagOf(sequence)
    if (tag === undefined || 'verb' in tag) return tag
    return (this.#culpritAt(sequence, offset) ?? tag.runs[0])?.operation
  }

  /** Returns the element at `offset` of the message, or all its elements if there is none at that offset. */
  elementsAt(sequence: number, offset?: number): readonly OwnedElement[] {
    const tag = this.#batch.tagOf(sequence)
    if (tag === undefined || 'verb' in tag) return []
    const culprit = this.#culpritAt(sequence, offset)
    return culprit === undefined ? tag.runs.flatMap(ownedBy) : ownedBy(culprit)
  }

  /** Returns the kernel's name of the expression at `offset` of a rule message. */
  expressionAt(sequence: number, offset: number): string | undefined {
    const message = this.#batch.at(sequence)
    const tag = message?.tag
    if (message === undefined || tag === undefined || !('verb' in tag) || !addsRule(tag)) return undefined
    return expressionNameAt(this.bytes, message, message.start + offset)
  }

  /** Returns a run of only the element at `offset` of a message. */
  #culpritAt(sequence: number, offset: number | undefined): ElementRun | undefined {
    const message = this.#batch.at(sequence)
    if (offset === undefined || message?.tag === undefined || 'verb' in message.tag) return undefined
    let index = elementIndexAt(this.bytes, message, message.start + offset)
    if (index === undefined) return undefined
    for (const { operation, from, to } of message.tag.runs) {
      if (index < to - from) return { operation, from: from + index, to: from + index + 1 }
      index -= to - from
    }
    return undefined
  }
}

function ownedBy({ operation, from, to }: ElementRun): readonly OwnedElement[] {
  return operation.elements
    .slice(from, to)
    .map((element, i) => ({ element, group: operation.groups[from + i] ?? '' }))
}

type Place = Pick<BatchMessage<unknown>, 'start' | 'end'>

/** Returns the index, from 0, of the list element that covers the byte at `position` of the batch. */
function elementIndexAt(bytes: Uint8Array, message: Place, position: number): number | undefined {
  let found: number | undefined
  forEachItem(bytes, { message, list: NFTA_SET_ELEM_LIST_ELEMENTS }, ({ index, from, to }) => {
    if (position >= from - NLA_HDRLEN && position < to) found = index
  })
  return found
}

function expressionNameAt(bytes: Uint8Array, message: Place, position: number): string | undefined {
  let found: string | undefined
  forEachItem(bytes, { message, list: NFTA_RULE_EXPRESSIONS }, ({ from, to }) => {
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
  { message, list }: { readonly message: Place; readonly list: number },
  visit: (item: Item) => void,
): void {
  const view = viewOf(bytes)
  const attributes = message.start + NLMSG_HDRLEN + NFGENMSG_LENGTH
  forEachAttribute(view, attributes, message.end, (type, start, end) => {
    if (type !== list) return
    let index = 0
    forEachAttribute(view, start, end, (item, from, to) => {
      if (item === NFTA_LIST_ELEM) visit({ index, from, to })
      index++
    })
  })
}
