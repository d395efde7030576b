import { stepsOver } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import { type AttributeWriter, ByteWriter } from '../../netlink/attribute.ts'
import * as netlink from '../../netlink/constants.ts'
import { writeNfGenMsg } from '../../netlink/message.ts'
import {
  type SourcesOf,
  type ValuesOf,
  type Writer,
  writeAttributes,
  writerOf,
} from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import { attributesOf } from './expression-attributes.ts'
import type { IndexOfIpset } from './ipset-match.ts'
import {
  CHAIN,
  COMPILED_RULE,
  LIST_ELEMENT,
  RULE,
  SET,
  type SET_ELEMENT,
  SET_ELEMENTS,
  TABLE,
} from './schema.ts'
import {
  type Chain,
  type CompiledRule,
  type Element,
  isCompiled,
  type NftFamily,
  type NftSet,
  type Rule,
} from './state.ts'
import {
  type ElementOperation,
  type ElementRun,
  EncodedTransaction,
  familyNumber,
  isOnElements,
  type Operation,
  type Transaction,
} from './transaction.ts'
import { commentUserdata } from './userdata.ts'

interface EncodeOptions {
  readonly firstSequence: number
  /** NFNL_BATCH_GENID: the kernel rejects the batch (ERESTART) when it is at another generation. */
  readonly generation?: number | undefined
  /** Maximum bytes of elements in one message; below the default only for a socket with a small limit. */
  readonly elementListBytesMax?: number
  readonly indexOfIpset?: IndexOfIpset
  /** An empty buffer to write into. */
  readonly out?: ByteWriter
}

/** Bytes of elements in one message: nla_len of the list has 16 bits. */
const ELEMENT_LIST_BYTES_MAX = 64_000
/** Estimates for an object, and for an element. */
const OBJECT_BYTES = 512
const ELEMENT_SIZE = 128
/** Elements of one piece: about 0.2 ms. */
const PIECE_ELEMENTS = 2048

/**
 * Encodes a transaction as one batch. Only its last message requests an acknowledgement (kernels before 6.2 send none
 * for batch end). Throws NetlinkError for a value that does not fit its attribute, and for an ipset without a number.
 */
export function encodeBatch(transaction: Transaction, options: EncodeOptions) {
  const { out = new ByteWriter(0), firstSequence, generation, indexOfIpset } = options
  const listBytesMax = Math.min(options.elementListBytesMax ?? ELEMENT_LIST_BYTES_MAX, ELEMENT_LIST_BYTES_MAX)
  out.reserve(expectedBytes(transaction))
  const batch = new EncodedTransaction(firstSequence, out)
  openBorder(batch, netlink.NFNL_MSG_BATCH_BEGIN)
  if (generation !== undefined) batch.out.u32be(netlink.NFNL_BATCH_GENID, generation)
  batch.close(undefined)
  let setId = 0
  const elements = new ElementMessages(batch, listBytesMax)
  return stepsOver(piecesOf(transaction), {
    each(piece) {
      if ('operation' in piece) {
        elements.add(piece)
        return
      }
      elements.close()
      if (piece.verb === 'add-set') setId++
      encodeObject(batch, piece, { setId, indexOfIpset })
    },
    result() {
      elements.close()
      if (batch.messages > 1) batch.acknowledgeLast()
      openBorder(batch, netlink.NFNL_MSG_BATCH_END)
      batch.close(undefined)
      return batch
    },
  })
}

/** Estimates the size; it suffices for nearly all transactions, and untouched pages cost nothing. */
function expectedBytes(transaction: Transaction): number {
  let bytes = 1024
  for (const operation of transaction) {
    bytes += OBJECT_BYTES
    if (isOnElements(operation)) bytes += operation.elements.length * ELEMENT_SIZE
  }
  return bytes
}

function openBorder(batch: EncodedTransaction, type: number): void {
  batch.open(type)
  writeNfGenMsg(batch.out.out, { family: 0, resourceId: netlink.NFNL_SUBSYS_NFTABLES })
}

function openMessage(batch: EncodedTransaction, message: number, flags: number, family: NftFamily): void {
  batch.open((netlink.NFNL_SUBSYS_NFTABLES << 8) | message, flags)
  writeNfGenMsg(batch.out.out, { family: familyNumber(family), resourceId: 0 })
}

/** Yields the parts of a batch between which the encoder may pause. */
function* piecesOf(transaction: Transaction): IterableIterator<ObjectOperation | ElementRun> {
  for (const operation of transaction) {
    if (!isOnElements(operation)) {
      yield operation
      continue
    }
    const { length } = operation.elements
    for (let from = 0; from < length; from += PIECE_ELEMENTS)
      yield { operation, from, to: Math.min(length, from + PIECE_ELEMENTS) }
  }
}

const CLOSED = -1

/** Writes the elements of an operation; a new message begins when one is full. */
class ElementMessages {
  readonly #batch: EncodedTransaction
  readonly #listBytesMax: number
  /** The elements of the open message. */
  #run: ElementRun | undefined
  /** Position from which another element may not fit; CLOSED without an open message. */
  #full = CLOSED

  constructor(batch: EncodedTransaction, listBytesMax: number) {
    this.#listBytesMax = listBytesMax
    this.#batch = batch
  }

  add({ operation, from, to }: ElementRun): void {
    if (this.#run?.operation !== operation) this.close()
    const { set, elements } = operation
    const { out } = this.#batch
    const adds = operation.verb === 'add-elements'
    let start = this.#run?.from ?? from
    for (let i = from; i < to; i++) {
      const element = elements[i]
      if (element === undefined) break
      if (out.out.length > this.#full) {
        this.#run = { operation, from: start, to: i }
        this.close()
        this.#open(operation)
        start = i
      }
      if (adds) writeElement(out, set, element)
      else writeElementKey(out, element.key)
    }
    this.#run = { operation, from: start, to }
  }

  #open({ verb, family, table, set }: ElementOperation): void {
    const { out } = this.#batch
    if (verb === 'add-elements')
      openMessage(this.#batch, nft.NFT_MSG_NEWSETELEM, netlink.NLM_F_CREATE, family)
    else openMessage(this.#batch, nft.NFT_MSG_DELSETELEM, 0, family)
    writeAttributes(out, SET_ELEMENTS, { table, set: set.name })
    this.#full = out.out.length + this.#listBytesMax - ELEMENT_BYTES_MAX
    out.openNest(nft.NFTA_SET_ELEM_LIST_ELEMENTS)
  }

  close(): void {
    if (this.#full === CLOSED) return
    this.#batch.out.close()
    this.#batch.close(this.#run)
    this.#run = undefined
    this.#full = CLOSED
  }
}

function encodeObject(batch: EncodedTransaction, operation: ObjectOperation, context: ObjectContext): void {
  const { type, flags } = OBJECT_MESSAGES[operation.verb]
  openMessage(batch, type, flags, operation.family)
  writeObject(batch.out, operation, context)
  batch.close(operation)
}

/** An operation that takes exactly one message. */
type ObjectOperation = Exclude<Operation, ElementOperation>

/** Message type and NLM_F_* of each verb; an existing object is not an error (no NLM_F_EXCL). */
const OBJECT_MESSAGES: Readonly<Record<ObjectOperation['verb'], { type: number; flags: number }>> = {
  'add-table': { type: nft.NFT_MSG_NEWTABLE, flags: netlink.NLM_F_CREATE },
  'delete-table': { type: nft.NFT_MSG_DELTABLE, flags: 0 },
  'add-chain': { type: nft.NFT_MSG_NEWCHAIN, flags: netlink.NLM_F_CREATE },
  // A rule deletion without a handle empties the chain.
  'flush-chain': { type: nft.NFT_MSG_DELRULE, flags: 0 },
  'delete-chain': { type: nft.NFT_MSG_DELCHAIN, flags: 0 },
  'add-rule': { type: nft.NFT_MSG_NEWRULE, flags: netlink.NLM_F_CREATE | netlink.NLM_F_APPEND },
  // Inserts before the first rule, because no position is named.
  'insert-rule': { type: nft.NFT_MSG_NEWRULE, flags: netlink.NLM_F_CREATE },
  'delete-rule': { type: nft.NFT_MSG_DELRULE, flags: 0 },
  'add-set': { type: nft.NFT_MSG_NEWSET, flags: netlink.NLM_F_CREATE },
  'delete-set': { type: nft.NFT_MSG_DELSET, flags: 0 },
}

interface ObjectContext {
  /** Distinguishes the sets of one batch (NFTA_SET_ID). */
  readonly setId: number
  readonly indexOfIpset: IndexOfIpset | undefined
}

/** Appends an operation's attributes. Throws NetlinkError for a value that does not fit its attribute. */
export function writeObject(
  out: AttributeWriter,
  operation: ObjectOperation,
  { setId, indexOfIpset }: ObjectContext,
): void {
  const { table } = operation
  switch (operation.verb) {
    case 'add-table': {
      const userdata = commentUserdata(datatypes.NFTNL_UDATA_TABLE_COMMENT, operation.comment ?? '')
      writeAttributes(out, TABLE, { name: table, flags: operation.flags, userdata })
      break
    }
    case 'delete-table':
      writeAttributes(out, TABLE, { name: table })
      break
    case 'add-chain':
      writeAttributes(out, CHAIN, { table, ...chainAttributes(operation.chain) })
      break
    case 'flush-chain':
      writeAttributes(out, RULE, { table, chain: operation.chain })
      break
    case 'delete-chain':
      writeAttributes(out, CHAIN, { table, name: operation.chain })
      break
    case 'add-rule':
    case 'insert-rule': {
      const { chain, rule } = operation
      if (isCompiled(rule)) writeAttributes(out, COMPILED_RULE, { table, chain, ...compiledAttributes(rule) })
      else writeAttributes(out, RULE, { table, chain, ...ruleAttributes(rule, indexOfIpset) })
      break
    }
    case 'delete-rule':
      writeAttributes(out, RULE, { table, chain: operation.chain, handle: operation.handle })
      break
    case 'add-set':
      writeAttributes(out, SET, { table, ...setAttributes(operation.set), id: setId })
      break
    case 'delete-set':
      writeAttributes(out, SET, { table, name: operation.set })
      break
  }
}

function chainAttributes({ name, hook }: Chain): ValuesOf<typeof CHAIN> {
  if (hook === undefined) return { name }
  const { type, hooknum, priority, policy = nft.NF_ACCEPT } = hook
  return { name, hook: { hooknum, priority }, policy, type }
}

function ruleAttributes(
  { expressions, comment }: Rule,
  indexOfIpset: IndexOfIpset | undefined,
): ValuesOf<typeof RULE> {
  return {
    expressions: expressions.map(each => attributesOf(each, indexOfIpset)),
    userdata: commentUserdata(datatypes.NFTNL_UDATA_RULE_COMMENT, comment),
  }
}

function compiledAttributes({
  compiled,
  protocol,
  protocolInverted,
  userdata,
}: CompiledRule): ValuesOf<typeof COMPILED_RULE> {
  if (protocol === 0) return { expressions: compiled, userdata }
  const flags = protocolInverted ? nft.NFT_RULE_COMPAT_F_INV : 0
  return { expressions: compiled, compat: { protocol, flags }, userdata }
}

function setAttributes(set: NftSet): ValuesOf<typeof SET> {
  const isVerdictMap = set.dataType === nft.NFT_DATA_VERDICT
  return {
    name: set.name,
    flags: set.flags,
    keyType: set.keyType,
    keyLength: set.keyLength,
    dataType: set.dataType,
    dataLength: isVerdictMap ? undefined : set.dataLength,
    desc: set.size === 0 ? undefined : { size: set.size },
    timeout: set.timeoutMs === 0 ? undefined : BigInt(set.timeoutMs),
    userdata: set.userdata === '' ? undefined : set.userdata,
    expression: set.counted === true ? attributesOf({ kind: 'counter' }) : undefined,
  }
}

/** Maximum length of an element: key and data 64 bytes each, a chain's name and userdata 256 each, and their headers. */
export const ELEMENT_BYTES_MAX = 768

type Sources<S> = SourcesOf<typeof SET_ELEMENT, S>

const KEY_AND_COMMENT: Sources<Element> = {
  key: { value: ({ key }) => key },
  userdata: ({ comment }) =>
    comment === '' ? undefined : commentUserdata(datatypes.NFTNL_UDATA_SET_ELEM_COMMENT, comment),
}
const VALUE: Sources<Element> = {
  ...KEY_AND_COMMENT,
  data: { value: ({ data }) => (typeof data === 'string' ? data : undefined) },
}
const VERDICT: Sources<Element> = {
  ...KEY_AND_COMMENT,
  data: {
    verdict: {
      code: ({ data }) => (typeof data === 'object' ? data.code : undefined),
      chain: ({ data }) => (typeof data === 'object' ? data.chain : undefined),
    },
  },
}

/** Writers of one element of NFTA_SET_ELEM_LIST_ELEMENTS, by the kind of its data. */
const writeValue: Writer<Element> = writerOf(LIST_ELEMENT, { element: VALUE })
const writeVerdict: Writer<Element> = writerOf(LIST_ELEMENT, { element: VERDICT })

interface Expiring extends Element {
  readonly expiresMs: number
  /** The timeout of the element's set. */
  readonly timeoutMs: number
}
const writeExpiring: Writer<Expiring> = writerOf(LIST_ELEMENT, {
  element: {
    ...VALUE,
    data: { ...VALUE.data, ...VERDICT.data },
    // An expiration needs a timeout of at least its length: the set's, or otherwise one of the element's own.
    timeout: ({ expiresMs, timeoutMs }) => (expiresMs > timeoutMs ? BigInt(expiresMs) : undefined),
    expiration: ({ expiresMs }) => BigInt(expiresMs),
  },
})

/** Appends one element to NFTA_SET_ELEM_LIST_ELEMENTS. Throws NetlinkError for a value that does not fit. */
export function writeElement(out: AttributeWriter, { timeoutMs }: NftSet, element: Element): void {
  const { data, expiresMs = 0 } = element
  if (expiresMs > 0) writeExpiring(out, { ...element, expiresMs, timeoutMs })
  else if (typeof data === 'object') writeVerdict(out, element)
  else writeValue(out, element)
}

/** Appends the key of an element to delete. */
export const writeElementKey: Writer<Octets> = writerOf(LIST_ELEMENT, {
  element: { key: { value: key => key } },
})
