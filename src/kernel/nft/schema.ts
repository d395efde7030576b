import { nestedOctets, octets, s32be, string, u8, u16be, u32be, u64be } from '../../netlink/attribute.ts'
import { attributeSet, listOf, nested, type Tagged, unionOf } from '../../netlink/schema.ts'
import * as nft from './constants.ts'

/**
 * The attribute sets of nf_tables, as linux/netfilter/nf_tables.h describes them. Attributes of expressions are in
 * the order of the kernel's listings.
 */

export const TABLE = attributeSet({
  name: [nft.NFTA_TABLE_NAME, string],
  flags: [nft.NFTA_TABLE_FLAGS, u32be],
  use: [nft.NFTA_TABLE_USE, u32be],
  handle: [nft.NFTA_TABLE_HANDLE, u64be],
  userdata: [nft.NFTA_TABLE_USERDATA, octets],
  owner: [nft.NFTA_TABLE_OWNER, u32be],
})

/** The common attributes of messages about objects within a table. */
export const TABLE_MEMBER = attributeSet({
  table: [nft.NFTA_CHAIN_TABLE, string],
})

export const HOOK = attributeSet({
  hooknum: [nft.NFTA_HOOK_HOOKNUM, u32be],
  priority: [nft.NFTA_HOOK_PRIORITY, s32be],
})

export const CHAIN = attributeSet({
  table: [nft.NFTA_CHAIN_TABLE, string],
  handle: [nft.NFTA_CHAIN_HANDLE, u64be],
  name: [nft.NFTA_CHAIN_NAME, string],
  hook: [nft.NFTA_CHAIN_HOOK, nested(HOOK)],
  policy: [nft.NFTA_CHAIN_POLICY, u32be],
  use: [nft.NFTA_CHAIN_USE, u32be],
  type: [nft.NFTA_CHAIN_TYPE, string],
  flags: [nft.NFTA_CHAIN_FLAGS, u32be],
  userdata: [nft.NFTA_CHAIN_USERDATA, octets],
})

const VERDICT = attributeSet({
  code: [nft.NFTA_VERDICT_CODE, s32be],
  chain: [nft.NFTA_VERDICT_CHAIN, string],
})

export const DATA = attributeSet({
  value: [nft.NFTA_DATA_VALUE, octets],
  verdict: [nft.NFTA_DATA_VERDICT, nested(VERDICT)],
})

const PAYLOAD = attributeSet({
  dreg: [nft.NFTA_PAYLOAD_DREG, u32be],
  base: [nft.NFTA_PAYLOAD_BASE, u32be],
  offset: [nft.NFTA_PAYLOAD_OFFSET, u32be],
  length: [nft.NFTA_PAYLOAD_LEN, u32be],
  sreg: [nft.NFTA_PAYLOAD_SREG, u32be],
  checksumType: [nft.NFTA_PAYLOAD_CSUM_TYPE, u32be],
  checksumOffset: [nft.NFTA_PAYLOAD_CSUM_OFFSET, u32be],
  checksumFlags: [nft.NFTA_PAYLOAD_CSUM_FLAGS, u32be],
})

const META = attributeSet({
  key: [nft.NFTA_META_KEY, u32be],
  dreg: [nft.NFTA_META_DREG, u32be],
  sreg: [nft.NFTA_META_SREG, u32be],
})

const CT = attributeSet({
  dreg: [nft.NFTA_CT_DREG, u32be],
  key: [nft.NFTA_CT_KEY, u32be],
  direction: [nft.NFTA_CT_DIRECTION, u8],
  sreg: [nft.NFTA_CT_SREG, u32be],
})

const CMP = attributeSet({
  sreg: [nft.NFTA_CMP_SREG, u32be],
  op: [nft.NFTA_CMP_OP, u32be],
  data: [nft.NFTA_CMP_DATA, nested(DATA)],
})

const BITWISE = attributeSet({
  sreg: [nft.NFTA_BITWISE_SREG, u32be],
  dreg: [nft.NFTA_BITWISE_DREG, u32be],
  length: [nft.NFTA_BITWISE_LEN, u32be],
  op: [nft.NFTA_BITWISE_OP, u32be],
  mask: [nft.NFTA_BITWISE_MASK, nested(DATA)],
  xor: [nft.NFTA_BITWISE_XOR, nested(DATA)],
  data: [nft.NFTA_BITWISE_DATA, nested(DATA)],
})

const LOOKUP = attributeSet({
  set: [nft.NFTA_LOOKUP_SET, string],
  sreg: [nft.NFTA_LOOKUP_SREG, u32be],
  dreg: [nft.NFTA_LOOKUP_DREG, u32be],
  flags: [nft.NFTA_LOOKUP_FLAGS, u32be],
})

const IMMEDIATE = attributeSet({
  dreg: [nft.NFTA_IMMEDIATE_DREG, u32be],
  data: [nft.NFTA_IMMEDIATE_DATA, nested(DATA)],
})

const NUMGEN = attributeSet({
  dreg: [nft.NFTA_NG_DREG, u32be],
  modulus: [nft.NFTA_NG_MODULUS, u32be],
  type: [nft.NFTA_NG_TYPE, u32be],
  offset: [nft.NFTA_NG_OFFSET, u32be],
})

const NAT = attributeSet({
  type: [nft.NFTA_NAT_TYPE, u32be],
  family: [nft.NFTA_NAT_FAMILY, u32be],
  addressMin: [nft.NFTA_NAT_REG_ADDR_MIN, u32be],
  addressMax: [nft.NFTA_NAT_REG_ADDR_MAX, u32be],
  portMin: [nft.NFTA_NAT_REG_PROTO_MIN, u32be],
  portMax: [nft.NFTA_NAT_REG_PROTO_MAX, u32be],
  flags: [nft.NFTA_NAT_FLAGS, u32be],
})

const MASQ = attributeSet({
  flags: [nft.NFTA_MASQ_FLAGS, u32be],
  portMin: [nft.NFTA_MASQ_REG_PROTO_MIN, u32be],
  portMax: [nft.NFTA_MASQ_REG_PROTO_MAX, u32be],
})

const REJECT = attributeSet({
  type: [nft.NFTA_REJECT_TYPE, u32be],
  code: [nft.NFTA_REJECT_ICMP_CODE, u8],
})

const FIB = attributeSet({
  dreg: [nft.NFTA_FIB_DREG, u32be],
  result: [nft.NFTA_FIB_RESULT, u32be],
  flags: [nft.NFTA_FIB_FLAGS, u32be],
})

const DYNSET = attributeSet({
  set: [nft.NFTA_DYNSET_SET_NAME, string],
  op: [nft.NFTA_DYNSET_OP, u32be],
  keyReg: [nft.NFTA_DYNSET_SREG_KEY, u32be],
  dataReg: [nft.NFTA_DYNSET_SREG_DATA, u32be],
  timeout: [nft.NFTA_DYNSET_TIMEOUT, u64be],
  expression: [nft.NFTA_DYNSET_EXPR, nestedOctets],
  flags: [nft.NFTA_DYNSET_FLAGS, u32be],
  expressions: [nft.NFTA_DYNSET_EXPRESSIONS, nestedOctets],
})

/** A match of xtables, by nft_compat: linux/netfilter/nf_tables_compat.h. */
const MATCH = attributeSet({
  name: [nft.NFTA_MATCH_NAME, string],
  revision: [nft.NFTA_MATCH_REV, u32be],
  info: [nft.NFTA_MATCH_INFO, octets],
})

const TARGET = attributeSet({
  name: [nft.NFTA_TARGET_NAME, string],
  revision: [nft.NFTA_TARGET_REV, u32be],
  info: [nft.NFTA_TARGET_INFO, octets],
})

const COUNTER = attributeSet({
  bytes: [nft.NFTA_COUNTER_BYTES, u64be],
  packets: [nft.NFTA_COUNTER_PACKETS, u64be],
})

const LIMIT = attributeSet({
  rate: [nft.NFTA_LIMIT_RATE, u64be],
  /** Seconds. */
  unit: [nft.NFTA_LIMIT_UNIT, u64be],
  burst: [nft.NFTA_LIMIT_BURST, u32be],
  type: [nft.NFTA_LIMIT_TYPE, u32be],
  flags: [nft.NFTA_LIMIT_FLAGS, u32be],
})

const LOG = attributeSet({
  prefix: [nft.NFTA_LOG_PREFIX, string],
  group: [nft.NFTA_LOG_GROUP, u16be],
  /** Bytes of the packet that are copied. */
  snaplen: [nft.NFTA_LOG_SNAPLEN, u32be],
  /** Messages that the kernel collects before it sends them. */
  threshold: [nft.NFTA_LOG_QTHRESHOLD, u16be],
  level: [nft.NFTA_LOG_LEVEL, u32be],
  flags: [nft.NFTA_LOG_FLAGS, u32be],
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
  size: [nft.NFTA_SET_DESC_SIZE, u32be],
})

export const SET = attributeSet({
  table: [nft.NFTA_SET_TABLE, string],
  name: [nft.NFTA_SET_NAME, string],
  flags: [nft.NFTA_SET_FLAGS, u32be],
  keyType: [nft.NFTA_SET_KEY_TYPE, u32be],
  keyLength: [nft.NFTA_SET_KEY_LEN, u32be],
  dataType: [nft.NFTA_SET_DATA_TYPE, u32be],
  dataLength: [nft.NFTA_SET_DATA_LEN, u32be],
  policy: [nft.NFTA_SET_POLICY, u32be],
  desc: [nft.NFTA_SET_DESC, nested(SET_DESC)],
  id: [nft.NFTA_SET_ID, u32be],
  timeout: [nft.NFTA_SET_TIMEOUT, u64be],
  gcInterval: [nft.NFTA_SET_GC_INTERVAL, u32be],
  userdata: [nft.NFTA_SET_USERDATA, octets],
  objectType: [nft.NFTA_SET_OBJ_TYPE, u32be],
  handle: [nft.NFTA_SET_HANDLE, u64be],
  /** Created for every element. */
  expression: [nft.NFTA_SET_EXPR, EXPRESSION],
})

export const SET_ELEMENT = attributeSet({
  key: [nft.NFTA_SET_ELEM_KEY, nested(DATA)],
  data: [nft.NFTA_SET_ELEM_DATA, nested(DATA)],
  flags: [nft.NFTA_SET_ELEM_FLAGS, u32be],
  timeout: [nft.NFTA_SET_ELEM_TIMEOUT, u64be],
  expiration: [nft.NFTA_SET_ELEM_EXPIRATION, u64be],
  userdata: [nft.NFTA_SET_ELEM_USERDATA, octets],
  expression: [nft.NFTA_SET_ELEM_EXPR, EXPRESSION],
  keyEnd: [nft.NFTA_SET_ELEM_KEY_END, nested(DATA)],
})

export const LIST_ELEMENT = attributeSet({ element: [nft.NFTA_LIST_ELEM, nested(SET_ELEMENT)] })

export const SET_ELEMENTS = attributeSet({
  table: [nft.NFTA_SET_ELEM_LIST_TABLE, string],
  set: [nft.NFTA_SET_ELEM_LIST_SET, string],
  elements: [nft.NFTA_SET_ELEM_LIST_ELEMENTS, listOf(nft.NFTA_LIST_ELEM, nested(SET_ELEMENT))],
})

const COMPAT = attributeSet({
  protocol: [nft.NFTA_RULE_COMPAT_PROTO, u32be],
  flags: [nft.NFTA_RULE_COMPAT_FLAGS, u32be],
})

export const EXPRESSION_LIST = listOf(nft.NFTA_LIST_ELEM, EXPRESSION)

export const RULE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  handle: [nft.NFTA_RULE_HANDLE, u64be],
  expressions: [nft.NFTA_RULE_EXPRESSIONS, EXPRESSION_LIST],
  compat: [nft.NFTA_RULE_COMPAT, nested(COMPAT)],
  position: [nft.NFTA_RULE_POSITION, u64be],
  userdata: [nft.NFTA_RULE_USERDATA, octets],
})

/** A rule whose expressions are sent as given. */
export const COMPILED_RULE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  expressions: [nft.NFTA_RULE_EXPRESSIONS, nestedOctets],
  compat: [nft.NFTA_RULE_COMPAT, nested(COMPAT)],
})

/** Identifies a rule. */
export const RULE_PLACE = attributeSet({
  table: [nft.NFTA_RULE_TABLE, string],
  chain: [nft.NFTA_RULE_CHAIN, string],
  handle: [nft.NFTA_RULE_HANDLE, u64be],
})

export const GENERATION = attributeSet({
  id: [nft.NFTA_GEN_ID, u32be],
  processId: [nft.NFTA_GEN_PROC_PID, u32be],
  processName: [nft.NFTA_GEN_PROC_NAME, string],
})

/** NFT_MSG_TRACE: one step of a packet. */
export const TRACE = attributeSet({
  table: [nft.NFTA_TRACE_TABLE, string],
  chain: [nft.NFTA_TRACE_CHAIN, string],
  handle: [nft.NFTA_TRACE_RULE_HANDLE, u64be],
  type: [nft.NFTA_TRACE_TYPE, u32be],
  verdict: [nft.NFTA_TRACE_VERDICT, nested(VERDICT)],
  id: [nft.NFTA_TRACE_ID, u32be],
  network: [nft.NFTA_TRACE_NETWORK_HEADER, octets],
  transport: [nft.NFTA_TRACE_TRANSPORT_HEADER, octets],
  inputInterface: [nft.NFTA_TRACE_IIF, u32be],
  outputInterface: [nft.NFTA_TRACE_OIF, u32be],
  policy: [nft.NFTA_TRACE_POLICY, u32be],
})
