import type { Octets } from '../../base/octets.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import { NLM_F_APPEND, NLM_F_CREATE } from '../../netlink/constants.ts'
import {
  type SourcesOf,
  type ValuesOf,
  type Writer,
  writeAttributes,
  writerOf,
} from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import {
  NFTNL_UDATA_RULE_COMMENT,
  NFTNL_UDATA_SET_ELEM_COMMENT,
  NFTNL_UDATA_TABLE_COMMENT,
} from './datatypes.ts'
import { type CompiledRule, isCompiled, type Rule } from './expression.ts'
import { attributesOf } from './expression-attributes.ts'
import type { IndexOfIpset } from './ipsets.ts'
import type { ElementOperation, Operation } from './operation.ts'
import { CHAIN, COMPILED_RULE, LIST_ELEMENT, RULE, SET, type SET_ELEMENT, TABLE } from './schema.ts'
import type { Chain, Element, NftSet } from './state.ts'
import { commentUserdata } from './userdata.ts'

/** An operation that takes exactly one message. */
export type ObjectOperation = Exclude<Operation, ElementOperation>

/** Message type and NLM_F_* of each verb; an existing object is not an error (no NLM_F_EXCL). */
export const OBJECT_MESSAGES: Readonly<Record<ObjectOperation['verb'], { type: number; flags: number }>> = {
  'add-table': { type: nft.NFT_MSG_NEWTABLE, flags: NLM_F_CREATE },
  'delete-table': { type: nft.NFT_MSG_DELTABLE, flags: 0 },
  'add-chain': { type: nft.NFT_MSG_NEWCHAIN, flags: NLM_F_CREATE },
  // A rule deletion without a handle empties the chain.
  'flush-chain': { type: nft.NFT_MSG_DELRULE, flags: 0 },
  'delete-chain': { type: nft.NFT_MSG_DELCHAIN, flags: 0 },
  'add-rule': { type: nft.NFT_MSG_NEWRULE, flags: NLM_F_CREATE | NLM_F_APPEND },
  // Inserts before the first rule, because no position is named.
  'insert-rule': { type: nft.NFT_MSG_NEWRULE, flags: NLM_F_CREATE },
  'delete-rule': { type: nft.NFT_MSG_DELRULE, flags: 0 },
  'add-set': { type: nft.NFT_MSG_NEWSET, flags: NLM_F_CREATE },
  'delete-set': { type: nft.NFT_MSG_DELSET, flags: 0 },
}

export interface ObjectContext {
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
      const userdata = commentUserdata(NFTNL_UDATA_TABLE_COMMENT, operation.comment ?? '')
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
    userdata: commentUserdata(NFTNL_UDATA_RULE_COMMENT, comment),
  }
}

function compiledAttributes({
  compiled,
  protocol,
  protocolInverted,
}: CompiledRule): ValuesOf<typeof COMPILED_RULE> {
  if (protocol === 0) return { expressions: compiled }
  const flags = protocolInverted ? nft.NFT_RULE_COMPAT_F_INV : 0
  return { expressions: compiled, compat: { protocol, flags } }
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

/**
 * Maximum length of an element: key and data 64 bytes each, a chain's name and userdata 256 each, and their headers.
 */
export const ELEMENT_BYTES_MAX = 768

type Sources<S> = SourcesOf<typeof SET_ELEMENT, S>

const KEY_AND_COMMENT: Sources<Element> = {
  key: { value: ({ key }) => key },
  userdata: ({ comment }) =>
    comment === '' ? undefined : commentUserdata(NFTNL_UDATA_SET_ELEM_COMMENT, comment),
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
