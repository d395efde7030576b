import {
  type Codec,
  nestedOctets,
  octets,
  s32be,
  string,
  u8,
  u16be,
  u32be,
  u64be,
} from '../../netlink/codecs.ts'
import { malformed, unencodable } from '../../netlink/errors.ts'
import { attributeSet, listOf, nested, type Tagged, unionOf } from '../../netlink/schema.ts'
import * as nft from './constants.ts'

/**
 * The attribute sets of nf_tables, as linux/netfilter/nf_tables.h describes them. Attributes of expressions are in
 * the order of the kernel's listings. Only numbers with a use outside of their rows have a name in constants.ts.
 */

export const TABLE = attributeSet({
  name: [1, string],
  flags: [2, u32be],
  use: [3, u32be],
  handle: [4, u64be],
  userdata: [6, octets],
  owner: [7, u32be],
})

/** The common attributes of messages about objects within a table. */
export const TABLE_MEMBER = attributeSet({
  table: [1, string],
})

export const HOOK = attributeSet({
  hooknum: [1, u32be],
  priority: [2, s32be],
})

export const CHAIN = attributeSet({
  table: [1, string],
  handle: [2, u64be],
  name: [3, string],
  hook: [4, nested(HOOK)],
  policy: [5, u32be],
  use: [6, u32be],
  type: [7, string],
  flags: [10, u32be],
  userdata: [12, octets],
})

const VERDICT = attributeSet({
  code: [1, s32be],
  chain: [2, string],
})

export const DATA = attributeSet({
  value: [1, octets],
  verdict: [2, nested(VERDICT)],
})

const PAYLOAD = attributeSet({
  dreg: [1, u32be],
  base: [2, u32be],
  offset: [3, u32be],
  length: [4, u32be],
  sreg: [5, u32be],
  checksumType: [6, u32be],
  checksumOffset: [7, u32be],
  checksumFlags: [8, u32be],
})

const META = attributeSet({
  key: [2, u32be],
  dreg: [1, u32be],
  sreg: [3, u32be],
})

const CT = attributeSet({
  dreg: [1, u32be],
  key: [2, u32be],
  direction: [3, u8],
  sreg: [4, u32be],
})

const CMP = attributeSet({
  sreg: [1, u32be],
  op: [2, u32be],
  data: [3, nested(DATA)],
})

/** A comparison with a range, which only iptables writes. */
export const RANGE = attributeSet({
  sreg: [1, u32be],
  op: [2, u32be],
  from: [3, nested(DATA)],
  to: [4, nested(DATA)],
})

const BITWISE = attributeSet({
  sreg: [1, u32be],
  dreg: [2, u32be],
  length: [3, u32be],
  op: [6, u32be],
  mask: [4, nested(DATA)],
  xor: [5, nested(DATA)],
  data: [7, nested(DATA)],
})

const LOOKUP = attributeSet({
  set: [1, string],
  sreg: [2, u32be],
  dreg: [3, u32be],
  flags: [5, u32be],
})

const IMMEDIATE = attributeSet({
  dreg: [1, u32be],
  data: [2, nested(DATA)],
})

const NUMGEN = attributeSet({
  dreg: [1, u32be],
  modulus: [2, u32be],
  type: [3, u32be],
  offset: [4, u32be],
})

const HASH = attributeSet({
  sreg: [1, u32be],
  dreg: [2, u32be],
  length: [3, u32be],
  modulus: [4, u32be],
  seed: [5, u32be],
  offset: [6, u32be],
  type: [7, u32be],
})

const NAT = attributeSet({
  type: [1, u32be],
  family: [2, u32be],
  addressMin: [3, u32be],
  addressMax: [4, u32be],
  portMin: [5, u32be],
  portMax: [6, u32be],
  flags: [7, u32be],
})

const MASQ = attributeSet({
  flags: [1, u32be],
  portMin: [2, u32be],
  portMax: [3, u32be],
})

/** Only rules of other programs redirect. */
export const REDIR = attributeSet({
  portMin: [1, u32be],
  portMax: [2, u32be],
})

const REJECT = attributeSet({
  type: [1, u32be],
  code: [2, u8],
})

const FIB = attributeSet({
  dreg: [1, u32be],
  result: [2, u32be],
  flags: [3, u32be],
})

const DYNSET = attributeSet({
  set: [1, string],
  op: [3, u32be],
  keyReg: [4, u32be],
  dataReg: [5, u32be],
  timeout: [6, u64be],
  expression: [7, nestedOctets],
  flags: [9, u32be],
  expressions: [10, nestedOctets],
})

/** A match of xtables, by nft_compat: linux/netfilter/nf_tables_compat.h. */
const MATCH = attributeSet({
  name: [1, string],
  revision: [2, u32be],
  info: [3, octets],
})

const TARGET = attributeSet({
  name: [1, string],
  revision: [2, u32be],
  info: [3, octets],
})

const COUNTER = attributeSet({
  bytes: [nft.NFTA_COUNTER_BYTES, u64be],
  packets: [nft.NFTA_COUNTER_PACKETS, u64be],
})

const LIMIT = attributeSet({
  rate: [1, u64be],
  /** Seconds. */
  unit: [2, u64be],
  burst: [3, u32be],
  type: [4, u32be],
  flags: [5, u32be],
})

const LOG = attributeSet({
  prefix: [2, string],
  group: [1, u16be],
  /** Bytes of the packet that are copied. */
  snaplen: [3, u32be],
  /** Messages that the kernel collects before it sends them. */
  threshold: [4, u16be],
  level: [5, u32be],
  flags: [6, u32be],
})

/** The tables of the expressions that kprobe writes, by nft_expr_type.name. */
export const EXPRESSIONS = {
  payload: PAYLOAD,
  meta: META,
  ct: CT,
  cmp: CMP,
  bitwise: BITWISE,
  lookup: LOOKUP,
  immediate: IMMEDIATE,
  numgen: NUMGEN,
  hash: HASH,
  nat: NAT,
  masq: MASQ,
  reject: REJECT,
  fib: FIB,
  dynset: DYNSET,
  match: MATCH,
  target: TARGET,
  counter: COUNTER,
  limit: LIMIT,
  log: LOG,
} as const

export const EXPRESSION_FIELDS = {
  tag: [nft.NFTA_EXPR_NAME, string],
  data: [nft.NFTA_EXPR_DATA, nestedOctets],
} as const

export const EXPRESSION = unionOf(EXPRESSION_FIELDS, EXPRESSIONS)
export type ExpressionAttributes = Tagged<typeof EXPRESSIONS>

const SET_DESC = attributeSet({
  size: [1, u32be],
})

export const SET = attributeSet({
  table: [1, string],
  name: [2, string],
  flags: [3, u32be],
  keyType: [4, u32be],
  keyLength: [5, u32be],
  dataType: [6, u32be],
  dataLength: [7, u32be],
  policy: [8, u32be],
  desc: [9, nested(SET_DESC)],
  id: [10, u32be],
  timeout: [11, u64be],
  gcInterval: [12, u32be],
  userdata: [13, octets],
  objectType: [15, u32be],
  handle: [16, u64be],
  /** Created for every element. */
  expression: [17, EXPRESSION],
  expressions: [18, nestedOctets],
})

export const SET_ELEMENT = attributeSet({
  key: [1, nested(DATA)],
  data: [2, nested(DATA)],
  flags: [3, u32be],
  timeout: [4, u64be],
  expiration: [5, u64be],
  userdata: [6, octets],
  expression: [7, EXPRESSION],
  keyEnd: [10, nested(DATA)],
})

export const LIST_ELEMENT = attributeSet({ element: [nft.NFTA_LIST_ELEM, nested(SET_ELEMENT)] })

export const SET_ELEMENTS = attributeSet({
  table: [1, string],
  set: [2, string],
  elements: [nft.NFTA_SET_ELEM_LIST_ELEMENTS, listOf(nft.NFTA_LIST_ELEM, nested(SET_ELEMENT))],
})

const COMPAT = attributeSet({
  protocol: [1, u32be],
  flags: [2, u32be],
})

export const EXPRESSION_LIST = listOf(nft.NFTA_LIST_ELEM, EXPRESSION)

export const RULE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  handle: [nft.NFTA_RULE_HANDLE, u64be],
  expressions: [nft.NFTA_RULE_EXPRESSIONS, EXPRESSION_LIST],
  compat: [5, nested(COMPAT)],
  position: [6, u64be],
  userdata: [7, octets],
})

/** A rule whose expressions are sent as given. */
export const COMPILED_RULE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  expressions: [nft.NFTA_RULE_EXPRESSIONS, nestedOctets],
  compat: [5, nested(COMPAT)],
  userdata: [nft.NFTA_RULE_USERDATA, octets],
})

/** The position of an attribute's payload in its message, which is only read. */
const position: Codec<{ readonly start: number; readonly end: number }> = {
  write: notWritten,
  read: (_view, start, end) => ({ start, end }),
}

/** The position of a number of eight bytes, which is only read. */
export const positionOfWide: Codec<number> = {
  write: notWritten,
  read(_view, start, end) {
    if (end - start !== 8) throw malformed(`a number of ${end - start} bytes instead of 8`, start)
    return start
  },
}

function notWritten(): never {
  throw unencodable('a position in a message')
}

/** A rule whose expressions are kept as bytes: a shared table has a hundred thousand rules. */
export const RULE_BYTES = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  handle: [nft.NFTA_RULE_HANDLE, u64be],
  expressions: [nft.NFTA_RULE_EXPRESSIONS, position],
  userdata: [nft.NFTA_RULE_USERDATA, octets],
})

const COUNTER_POSITIONS = attributeSet({
  bytes: [nft.NFTA_COUNTER_BYTES, positionOfWide],
  packets: [nft.NFTA_COUNTER_PACKETS, positionOfWide],
})

/** An expression that is a counter. */
export const COUNTER_EXPRESSION = attributeSet({
  counter: [nft.NFTA_EXPR_DATA, nested(COUNTER_POSITIONS)],
})

export const RULE_PLACE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  handle: [nft.NFTA_RULE_HANDLE, u64be],
})

export const GENERATION = attributeSet({
  id: [1, u32be],
  processId: [2, u32be],
  processName: [3, string],
})

/** NFT_MSG_TRACE: one step of a packet. */
export const TRACE = attributeSet({
  table: [1, string],
  chain: [2, string],
  handle: [3, u64be],
  type: [4, u32be],
  verdict: [5, nested(VERDICT)],
  id: [6, u32be],
  network: [8, octets],
  transport: [9, octets],
  inputInterface: [10, u32be],
  outputInterface: [12, u32be],
  policy: [16, u32be],
})
