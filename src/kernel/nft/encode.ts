import { Pauses, type Steps } from '../../base/steps.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import { Batch } from '../../netlink/batch.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import * as netlink from '../../netlink/constants.ts'
import { NFGENMSG_LENGTH, writeNfGenMsg } from '../../netlink/message.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { type ElementRun, EncodedTransaction, type MessageTag } from './encoded-transaction.ts'
import { isCompiled } from './expression.ts'
import type { IndexOfIpset } from './ipsets.ts'
import {
  ELEMENT_BYTES_MAX,
  OBJECT_MESSAGES,
  type ObjectContext,
  type ObjectOperation,
  writeElement,
  writeElementKey,
  writeObject,
} from './messages.ts'
import {
  addsRule,
  type ElementOperation,
  familyNumber,
  isOnElements,
  type Operation,
  type Transaction,
} from './operation.ts'
import { SET_ELEMENTS } from './schema.ts'
import type { NftFamily } from './state.ts'

interface EncodeOptions {
  /** Sequence number of the batch's first message; later messages count up. */
  readonly firstSequence: number
  /** NFNL_BATCH_GENID: the kernel rejects the batch (ERESTART) when it is at another generation. */
  readonly generation?: number | undefined
  /** Maximum bytes of elements in one message; below the default only for a socket with a small limit. */
  readonly elementListBytesMax?: number
  /** Looks up ipsets for rules about them. */
  readonly indexOfIpset?: IndexOfIpset
  /** An empty buffer to write into. */
  readonly out?: ByteWriter
}

/** Bytes of elements in one message: nla_len of the list has 16 bits. */
const ELEMENT_LIST_BYTES_MAX = 64_000
/** Estimate for a rule, for a verdict, and for all headers of an element with their padding. */
const OBJECT_BYTES = 512
const VERDICT_BYTES = 32
const ELEMENT_OVERHEAD = 44
/** Elements of one piece: about 0.2 ms. */
const PIECE_ELEMENTS = 2048

export function elementsIn(transaction: Transaction): number {
  let count = 0
  for (const operation of transaction) if (isOnElements(operation)) count += operation.elements.length
  return count
}

/**
 * Encodes a transaction as one batch. Only its last message requests an acknowledgement (kernels before 6.2 send none
 * for batch end). Throws NetlinkError for a value that does not fit its attribute, and for an ipset without a number.
 */
export function* encodeBatch(transaction: Transaction, options: EncodeOptions): Steps<EncodedTransaction> {
  const { out = new ByteWriter(0) } = options
  out.reserve(expectedBytes(transaction))
  const batch = new TransactionWriter(out, options)
  batch.begin(options.generation)
  const pauses = new Pauses()
  let setId = 0
  for (let i = 0; i < transaction.length; ) {
    const operation = transaction[i]
    if (operation === undefined) break
    if (isOnElements(operation)) {
      const run = elementRunAt(transaction, i)
      for (const segment of segmentsOf(run)) yield* encodeElements(batch, segment)
      i += run.length
    } else {
      if (operation.verb === 'add-set') setId++
      encodeObject(batch, operation, { setId, indexOfIpset: options.indexOfIpset })
      i++
      if (pauses.due()) yield
    }
  }
  return batch.end()
}

/** After the headers of the batch's begin and of the attribute. */
const GENERATION_OFFSET = netlink.NLMSG_HDRLEN + NFGENMSG_LENGTH + netlink.NLA_HDRLEN

/** Replaces the generation in an encoded batch that has one. */
export function nameGeneration(bytes: Uint8Array, generation: number): void {
  for (let i = 0; i < 4; i++) bytes[GENERATION_OFFSET + i] = generation >>> (24 - 8 * i)
}

function compiledBytesOf(operation: Operation): number {
  return addsRule(operation) && isCompiled(operation.rule) ? operation.rule.compiled.length : 0
}

/** Estimates the size; it suffices for nearly all transactions, and untouched pages cost nothing. */
function expectedBytes(transaction: Transaction): number {
  let bytes = 1024
  for (const operation of transaction) {
    bytes += OBJECT_BYTES + compiledBytesOf(operation)
    if (!isOnElements(operation)) continue
    const { elements } = operation
    const first = elements[0]
    if (first === undefined) continue
    const dataLength = typeof first.data === 'string' ? first.data.length : VERDICT_BYTES
    bytes += elements.length * (ELEMENT_OVERHEAD + first.key.length + dataLength + first.comment.length)
  }
  return bytes
}

function elementRunAt(transaction: Transaction, start: number): readonly ElementOperation[] {
  const run: ElementOperation[] = []
  for (let i = start; i < transaction.length; i++) {
    const operation = transaction[i]
    if (operation === undefined || !isOnElements(operation)) break
    run.push(operation)
  }
  return run
}

/** Operations with one verb on one set; they share messages. */
type Segment = readonly [ElementOperation, ...ElementOperation[]]

/**
 * Sorts consecutive element operations by set: operations on different sets do not affect each other within a
 * transaction. Operations on one set keep their order, and consecutive ones with one verb are joined.
 */
function segmentsOf(run: readonly ElementOperation[]): readonly Segment[] {
  const bySet: [ElementOperation, ...ElementOperation[]][][] = []
  for (const operation of run) {
    const segments = bySet.find(([segment]) => segment !== undefined && isOnSet(operation, segment[0]))
    const last = segments?.at(-1)
    if (last !== undefined && last[0].verb === operation.verb) last.push(operation)
    else if (segments !== undefined) segments.push([operation])
    else bySet.push([[operation]])
  }
  return bySet.flat()
}

function isOnSet({ set, family, table }: ElementOperation, other: ElementOperation): boolean {
  return set.name === other.set.name && family === other.family && table === other.table
}

/** Writes the batch, with its begin and end messages. */
class TransactionWriter {
  readonly out: AttributeWriter
  readonly elementListBytesMax: number
  readonly #batch: Batch<MessageTag>

  constructor(out: ByteWriter, options: EncodeOptions) {
    const { firstSequence, elementListBytesMax = ELEMENT_LIST_BYTES_MAX } = options
    this.#batch = new Batch(firstSequence, out)
    this.out = this.#batch.out
    this.elementListBytesMax = Math.min(elementListBytesMax, ELEMENT_LIST_BYTES_MAX)
  }

  begin(generation: number | undefined): void {
    this.#openBorder(netlink.NFNL_MSG_BATCH_BEGIN)
    if (generation !== undefined) this.out.u32be(netlink.NFNL_BATCH_GENID, generation)
    this.close(undefined)
  }

  open(message: number, flags: number, family: NftFamily): void {
    this.#batch.open((netlink.NFNL_SUBSYS_NFTABLES << 8) | message, flags)
    writeNfGenMsg(this.out.out, { family: familyNumber(family), resourceId: 0 })
  }

  close(tag: MessageTag): void {
    this.#batch.close(tag)
  }

  end(): EncodedTransaction {
    if (this.#batch.messages > 1) this.#batch.acknowledgeLast()
    this.#openBorder(netlink.NFNL_MSG_BATCH_END)
    this.close(undefined)
    return new EncodedTransaction(this.#batch)
  }

  #openBorder(type: number): void {
    this.#batch.open(type)
    writeNfGenMsg(this.out.out, { family: 0, resourceId: netlink.NFNL_SUBSYS_NFTABLES })
  }
}

function* encodeElements(batch: TransactionWriter, segment: Segment): Steps<void> {
  const message = new ElementMessage(batch, segment[0])
  for (const operation of segment) {
    const { length } = operation.elements
    for (let from = 0; from < length; from += PIECE_ELEMENTS) {
      message.add({ operation, from, to: Math.min(length, from + PIECE_ELEMENTS) })
      if (from > 0) yield
    }
  }
  message.close()
  yield
}

const CLOSED = -1

/** The message that receives the elements of a segment; a new one begins when it is full. */
class ElementMessage {
  readonly #batch: TransactionWriter
  readonly #head: ElementOperation
  #runs: ElementRun[] = []
  /** Position from which another element may not fit; CLOSED without an open message. */
  #full = CLOSED

  constructor(batch: TransactionWriter, head: ElementOperation) {
    this.#batch = batch
    this.#head = head
  }

  add({ operation, from, to }: ElementRun): void {
    const { set, elements } = operation
    const { out } = this.#batch
    const adds = operation.verb === 'add-elements'
    let start = from
    for (let i = from; i < to; i++) {
      const element = elements[i]
      if (element === undefined) break
      if (out.out.length > this.#full) {
        this.#note({ operation, from: start, to: i })
        this.close()
        this.#open()
        start = i
      }
      if (adds) writeElement(out, set, element)
      else writeElementKey(out, element.key)
    }
    this.#note({ operation, from: start, to })
  }

  #note(run: ElementRun): void {
    if (run.to > run.from) this.#runs.push(run)
  }

  #open(): void {
    const { out, elementListBytesMax } = this.#batch
    const { verb, family, table, set } = this.#head
    if (verb === 'add-elements') this.#batch.open(nft.NFT_MSG_NEWSETELEM, netlink.NLM_F_CREATE, family)
    else this.#batch.open(nft.NFT_MSG_DELSETELEM, 0, family)
    writeAttributes(out, SET_ELEMENTS, { table, set: set.name })
    this.#full = out.out.length + elementListBytesMax - ELEMENT_BYTES_MAX
    out.openNest(nft.NFTA_SET_ELEM_LIST_ELEMENTS)
  }

  close(): void {
    if (this.#full === CLOSED) return
    this.#batch.out.close()
    this.#batch.close({ runs: this.#runs })
    this.#runs = []
    this.#full = CLOSED
  }
}

function encodeObject(batch: TransactionWriter, operation: ObjectOperation, context: ObjectContext): void {
  const { type, flags } = OBJECT_MESSAGES[operation.verb]
  const echoes = 'echo' in operation && operation.echo === true
  batch.open(type, echoes ? flags | netlink.NLM_F_ECHO : flags, operation.family)
  writeObject(batch.out, operation, context)
  batch.close(operation)
}
