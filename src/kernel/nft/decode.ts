import { bytesFromOctets, type Octets } from '../../base/octets.ts'
import { type ByteView, forEachAttribute, viewOf } from '../../netlink/attribute.ts'
import { NLA_HDRLEN } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, nfSpan, readNfGenMsg } from '../../netlink/message.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  readAttributes,
  type ValuesOf,
} from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import { expressionOf, verdictOf } from './expression-attributes.ts'
import type { NameOfIpset } from './ipset-match.ts'
import {
  CHAIN,
  COUNTER_EXPRESSION,
  type DATA,
  EXPRESSION_LIST,
  GENERATION,
  RULE,
  RULE_BYTES,
  RULE_PLACE,
  SET,
  type SET_ELEMENT,
  SET_ELEMENTS,
  TABLE,
  TABLE_MEMBER,
} from './schema.ts'
import type {
  Chain,
  ChainHook,
  CompiledRule,
  Element,
  ElementData,
  HookFamily,
  NftSet,
  Rule,
  Table,
} from './state.ts'
import { commentOf } from './userdata.ts'

/* Decoders from messages of dumps to values. They drop everything that the kernel adds to a value, so that a value
   read back equals the one written. All of them throw NetlinkError for bytes that are not such a message. */

function attributesIn<F extends Fields>(
  view: ByteView,
  message: Message,
  set: AttributeSet<F>,
): Attributes<F> {
  return readAttributes(view, set, nfSpan(message))
}

function required<T>(value: T | undefined, name: string, message: Message): T {
  if (value === undefined) throw malformed(`a message without its ${name}`, message.start)
  return value
}

/** Returns the family of an NFT_MSG_NEW* message; undefined for families whose chains see no IP packets. */
export function familyOf(view: ByteView, message: Message): HookFamily | undefined {
  const { family } = readNfGenMsg(view, message)
  if (family === nft.NFPROTO_IPV4) return 'ip'
  if (family === nft.NFPROTO_INET) return 'inet'
  return family === nft.NFPROTO_IPV6 ? 'ip6' : undefined
}

export function decodeTable(view: ByteView, message: Message): Pick<Table, 'name' | 'flags' | 'comment'> {
  const { name, flags = 0, userdata } = attributesIn(view, message, TABLE)
  const comment = commentOf(datatypes.NFTNL_UDATA_TABLE_COMMENT, userdata)
  return { name: required(name, 'name', message), flags, comment: comment === '' ? undefined : comment }
}

interface Placed<T> {
  readonly table: string
  readonly value: T
}

/** Decodes NFT_MSG_NEWCHAIN, with the number of its rules and of references to it. Rules come in separate messages. */
export function decodeChain(view: ByteView, message: Message): Placed<Chain> & { readonly use: number } {
  const { table, name, use = 0, ...base } = attributesIn(view, message, CHAIN)
  const chain = { name: required(name, 'name', message), hook: hookOf(base), rules: [] }
  return { table: required(table, 'table', message), value: chain, use }
}

function hookOf({ type, hook, policy = nft.NF_ACCEPT }: ValuesOf<typeof CHAIN>): ChainHook | undefined {
  if (hook?.hooknum === undefined || hook.priority === undefined) return undefined
  if (type !== 'nat' && type !== 'filter' && type !== 'route') return undefined
  const place: ChainHook = { type, hooknum: hook.hooknum, priority: hook.priority }
  return policy === nft.NF_ACCEPT ? place : { ...place, policy }
}

/** Decodes NFT_MSG_NEWRULE, with the name of its chain. */
export function decodeRule(
  view: ByteView,
  message: Message,
  nameOf?: NameOfIpset,
): Placed<Rule> & { readonly chain: string } {
  const { table, chain, expressions = [], userdata } = attributesIn(view, message, RULE)
  const comment = commentOf(datatypes.NFTNL_UDATA_RULE_COMMENT, userdata)
  return {
    table: required(table, 'table', message),
    chain: required(chain, 'chain', message),
    value: { expressions: expressions.map(each => expressionOf(each, nameOf)), comment },
  }
}

export interface RuleBytes {
  readonly table: string
  readonly chain: string
  readonly handle: bigint
  /** As CompiledRule.compiled. */
  readonly compiled: Octets
  readonly userdata: Octets | undefined
  /** The sum of its counters. */
  readonly packets: bigint
}

/**
 * Decodes NFT_MSG_NEWRULE to the bytes of its expressions, with counters at zero, which it clears in the message. No other
 * expression that kprobe compiles has a state: the kernel lists what xtables' structures keep for themselves (statistic,
 * nfacct) as zeros. A rule with `quota`, `limit` or `connlimit` is not kprobe's, and never equal to one that is.
 */
export function decodeRuleBytes(view: ByteView, message: Message): RuleBytes {
  const { table, chain, handle, expressions, userdata } = attributesIn(view, message, RULE_BYTES)
  const { start, end } = expressions ?? { start: message.end, end: message.end }
  let packets = 0n
  forEachAttribute(view, start, end, (_, from, to) => {
    packets += clearCounter(view, from, to)
  })
  return {
    table: required(table, 'table', message),
    chain: required(chain, 'chain', message),
    handle: required(handle, 'handle', message),
    compiled: view.bytes.toString('latin1', start, end),
    userdata,
    packets,
  }
}

/** `counter` and its NUL, as two words in host order. */
const [COUN, TER] = [0x6e756f63, 0x00726574]

/** Clears an expression that is a counter. Returns its packets; 0 for any other expression. */
function clearCounter(view: ByteView, start: number, end: number): bigint {
  const { data } = view
  // The kernel writes the name first: most expressions need no more than a glance at it.
  const name = start + NLA_HDRLEN
  if (end - name < 8 || data.getUint32(name, true) !== COUN || data.getUint32(name + 4, true) !== TER)
    return 0n
  const { counter } = readAttributes(view, COUNTER_EXPRESSION, { start, end })
  if (counter?.packets === undefined || counter.bytes === undefined) return 0n
  const packets = data.getBigUint64(counter.packets)
  data.setBigUint64(counter.packets, 0n)
  data.setBigUint64(counter.bytes, 0n)
  return packets
}

export function readCompiled({ compiled }: CompiledRule, nameOf?: NameOfIpset): Rule {
  const view = viewOf(bytesFromOctets(compiled))
  const expressions = EXPRESSION_LIST.read(view, 0, compiled.length, 0)
  return { expressions: expressions.map(each => expressionOf(each, nameOf)), comment: '' }
}

/** Decodes NFT_MSG_NEWSET. A verdict map has no dataLength: the kernel reports the size of its own structure. */
export function decodeSet(view: ByteView, message: Message): Placed<NftSet> {
  const values = attributesIn(view, message, SET)
  const isVerdictMap = values.dataType === nft.NFT_DATA_VERDICT
  const set = {
    name: required(values.name, 'name', message),
    flags: values.flags ?? 0,
    keyType: values.keyType ?? 0,
    keyLength: values.keyLength ?? 0,
    dataType: values.dataType,
    dataLength: isVerdictMap ? undefined : values.dataLength,
    size: values.desc?.size ?? 0,
    timeoutMs: Number(values.timeout ?? 0n),
    userdata: values.userdata ?? '',
    ...(values.expression?.tag === 'counter' ? { counted: true as const } : {}),
  }
  return { table: required(values.table, 'table', message), value: set }
}

interface ElementsOptions {
  /** Elements get their remaining time. Only sets that packets fill need it. */
  readonly expirations: boolean
}

/** Decodes NFT_MSG_NEWSETELEM: as many elements of one set as fit into one message. */
export function decodeElements(
  view: ByteView,
  message: Message,
  options: ElementsOptions,
): Placed<Element[]> {
  const { table, set: name, elements = [] } = attributesIn(view, message, SET_ELEMENTS)
  const set = required(name, 'set', message)
  const value = elements.map(attributes => elementOf(set, attributes, options))
  return { table: required(table, 'table', message), value }
}

/** Decodes the packet counts of the elements of a counted set in this message. */
export function decodeCounters(
  view: ByteView,
  message: Message,
): Placed<readonly (readonly [key: Octets, packets: bigint])[]> {
  const { table, elements = [] } = attributesIn(view, message, SET_ELEMENTS)
  const value: (readonly [Octets, bigint])[] = []
  for (const { key, expression } of elements) {
    if (key?.value === undefined || expression?.tag !== 'counter') continue
    value.push([key.value, expression.data.packets ?? 0n])
  }
  return { table: required(table, 'table', message), value }
}

/** Catch-all elements have an empty key, as do elements whose key is not a value. */
function elementOf(set: string, attributes: ValuesOf<typeof SET_ELEMENT>, options: ElementsOptions): Element {
  const { keyEnd, flags = 0 } = attributes
  const element = {
    set,
    key: attributes.key?.value ?? '',
    ...(keyEnd?.value === undefined ? {} : { keyEnd: keyEnd.value }),
    ...((flags & nft.NFT_SET_ELEM_INTERVAL_END) === 0 ? {} : { isEnd: true as const }),
    data: attributes.data === undefined ? undefined : dataOf(attributes.data),
    comment: commentOf(datatypes.NFTNL_UDATA_SET_ELEM_COMMENT, attributes.userdata),
  }
  if (!options.expirations || attributes.expiration === undefined) return element
  return { ...element, expiresMs: Number(attributes.expiration) }
}

function dataOf(data: ValuesOf<typeof DATA>): ElementData {
  return data.value ?? verdictOf(data)
}

interface Generation {
  readonly id: number
  /** Id of the process that made this generation; undefined in answers to NFT_MSG_GETGEN of old kernels. */
  readonly processId: number | undefined
  readonly processName: string | undefined
}

export function decodeGeneration(view: ByteView, message: Message): Generation {
  const { id, processId, processName } = attributesIn(view, message, GENERATION)
  return { id: required(id, 'id', message), processId, processName }
}

/** Decodes the position of a rule, without its expressions. */
export function decodeRulePlace(view: ByteView, message: Message): ValuesOf<typeof RULE_PLACE> {
  return attributesIn(view, message, RULE_PLACE)
}

/** Decodes the table name of a message about a table or anything in it. */
export function decodeTableName(view: ByteView, message: Message): string {
  return required(attributesIn(view, message, TABLE_MEMBER).table, 'table', message)
}
