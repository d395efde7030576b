import {
  NFPROTO_UNSPEC,
  NFT_CHAIN_BASE,
  NFT_DATA_VERDICT,
  NFT_MSG_GETCHAIN,
  NFT_MSG_GETRULE,
  NFT_MSG_GETSET,
  NFT_MSG_GETSETELEM,
  NFT_MSG_GETTABLE,
  NFT_MSG_NEWCHAIN,
  NFT_MSG_NEWRULE,
  NFT_MSG_NEWSET,
  NFT_MSG_NEWSETELEM,
  NFT_MSG_NEWTABLE,
  NFTA_RULE_CHAIN,
  NFTA_RULE_EXPRESSIONS,
  NFTA_RULE_HANDLE,
} from '../../../src/kernel/nft/constants.ts'
import { CHAIN, RULE, SET, type SET_ELEMENT, SET_ELEMENTS, TABLE } from '../../../src/kernel/nft/schema.ts'
import type { AttributeWriter } from '../../../src/netlink/attribute.ts'
import { type ValuesOf, writeAttributes } from '../../../src/netlink/schema.ts'
import { attributesOf, type Call, chainOf, offsetOf, refuse, tableOf } from './call.ts'
import type { FakeChain, FakeElement, FakeRule, FakeSet, FakeTable } from './objects.ts'
import { messageOf, type ObjectHead, objectMessage } from './replies.ts'

/** Makes the head of one more message of the dump: what it says of the generation is current when it is made. */
type Heads = (message: number, family: number) => ObjectHead

/** Messages of a dump, made one by one while the reader reads, from what is there at that moment. */
export type Dump = IterableIterator<Uint8Array>

/** Refuses what the kernel refuses before the first datagram. */
export function dumpOf(kind: number, call: Call, heads: Heads): Dump {
  switch (kind) {
    case NFT_MSG_GETTABLE:
      return tables(call, heads)
    case NFT_MSG_GETCHAIN:
      return chains(call, heads)
    case NFT_MSG_GETRULE: {
      const { table, chain } = attributesOf(call, RULE)
      return rules(call, heads, { table, chain })
    }
    case NFT_MSG_GETSET: {
      const { table } = attributesOf(call, SET)
      if (table !== undefined) tableOf(call, table)
      return sets(call, heads, table)
    }
    case NFT_MSG_GETSETELEM: {
      const values = attributesOf(call, SET_ELEMENTS)
      const table = tableOf(call, values.table)
      return elements(call, heads, { table, set: table.sets.get(values.set ?? '') ?? refuse('ENOENT') })
    }
    default:
      return refuse('EINVAL')
  }
}

function* tablesAsked(call: Call, name?: string): IterableIterator<FakeTable> {
  for (const table of call.space.tables.values()) {
    const isAsked = call.family === NFPROTO_UNSPEC || call.family === table.family
    if (isAsked && (name === undefined || name === table.name)) yield table
  }
}

function* tables(call: Call, heads: Heads): Dump {
  for (const table of tablesAsked(call)) {
    const { name, flags, handle, userdata } = table
    const use = table.chains.size + table.sets.size
    yield objectMessage(heads(NFT_MSG_NEWTABLE, table.family), TABLE, { name, flags, use, handle, userdata })
  }
}

function* chains(call: Call, heads: Heads): Dump {
  for (const table of tablesAsked(call)) {
    for (const chain of table.chains.values()) {
      yield objectMessage(heads(NFT_MSG_NEWCHAIN, table.family), CHAIN, chainValues(table, chain))
    }
  }
}

export function chainValues(table: FakeTable, chain: FakeChain): ValuesOf<typeof CHAIN> {
  const { name, handle, hook, userdata } = chain
  const common = { table: table.name, name, handle, use: chain.rules.length, userdata }
  if (hook === undefined) return common
  return { ...common, hook, policy: chain.policy ?? 1, type: chain.type, flags: NFT_CHAIN_BASE }
}

function* rules(
  call: Call,
  heads: Heads,
  asked: { readonly table: string | undefined; readonly chain: string | undefined },
): Dump {
  for (const table of tablesAsked(call, asked.table)) {
    for (const chain of table.chains.values()) {
      if (asked.chain !== undefined && asked.chain !== chain.name) continue
      let position: bigint | undefined
      for (const rule of chain.rules) {
        const place = { table, chain, rule, position }
        yield messageOf(heads(NFT_MSG_NEWRULE, table.family), out => writeRule(out, place))
        position = rule.handle
      }
    }
  }
}

export interface RulePlace {
  readonly table: FakeTable
  readonly chain: FakeChain
  readonly rule: FakeRule
  /** The handle of the rule before. */
  readonly position?: bigint | undefined
}

/** nf_tables_fill_rule_info: the expressions go out as they are kept. */
export function writeRule(out: AttributeWriter, { table, chain, rule, position }: RulePlace): void {
  writeAttributes(out, RULE, { table: table.name, chain: chain.name, handle: rule.handle, position })
  out.octets(NFTA_RULE_EXPRESSIONS, rule.dumped)
  writeAttributes(out, RULE, { userdata: rule.userdata })
}

/** NFT_MSG_GETRULE of one rule. */
export function ruleByHandle(call: Call, head: ObjectHead): Uint8Array {
  const values = attributesOf(call, RULE)
  const table = tableOf(call, values.table)
  const chain = chainOf(call, table, { value: values.chain, attribute: NFTA_RULE_CHAIN })
  if (values.handle === undefined) refuse('EINVAL')
  const index = chain.rules.findIndex(({ handle }) => handle === values.handle)
  const rule = chain.rules[index] ?? refuse('ENOENT', offsetOf(call, NFTA_RULE_HANDLE))
  const position = chain.rules[index - 1]?.handle
  return messageOf(head, out => writeRule(out, { table, chain, rule, position }))
}

function* sets(call: Call, heads: Heads, name: string | undefined): Dump {
  for (const table of tablesAsked(call, name)) {
    for (const set of table.sets.values()) {
      yield objectMessage(heads(NFT_MSG_NEWSET, table.family), SET, setValues(table, set))
    }
  }
}

/** sizeof(struct nft_verdict): what the kernel says of the data of verdict maps. */
const VERDICT_LENGTH = 16

function setValues(table: FakeTable, set: FakeSet): ValuesOf<typeof SET> {
  const { name, handle, flags, keyType, keyLength, dataType, userdata, size, timeoutMs, expression } = set
  return {
    table: table.name,
    name,
    handle,
    flags: flags === 0 ? undefined : flags,
    keyType,
    keyLength,
    dataType,
    dataLength: dataType === NFT_DATA_VERDICT ? VERDICT_LENGTH : set.dataLength,
    timeout: timeoutMs === 0n ? undefined : timeoutMs,
    desc: { size: size === 0 ? undefined : size },
    userdata,
    expression,
  }
}

/** About as many as the kernel puts into one message. */
const ELEMENTS_PER_MESSAGE = 128

function* elements(
  call: Call,
  heads: Heads,
  { table, set }: { readonly table: FakeTable; readonly set: FakeSet },
): Dump {
  let list: ValuesOf<typeof SET_ELEMENT>[] = []
  const flush = () => {
    const values = { table: table.name, set: set.name, elements: list }
    list = []
    return objectMessage(heads(NFT_MSG_NEWSETELEM, table.family), SET_ELEMENTS, values)
  }
  for (const element of set.elements.values()) {
    const left = (element.expiresAtMs ?? Number.POSITIVE_INFINITY) - call.space.nowMs()
    if (left <= 0) continue
    list.push(elementValues(element, left))
    if (list.length === ELEMENTS_PER_MESSAGE) yield flush()
  }
  if (list.length > 0) yield flush()
}

function elementValues(element: FakeElement, leftMs: number): ValuesOf<typeof SET_ELEMENT> {
  const { key, data, userdata, timeoutMs, expiresAtMs } = element
  const expiration = expiresAtMs === undefined ? undefined : BigInt(Math.ceil(leftMs))
  return { key: { value: key }, data, timeout: timeoutMs, expiration, userdata }
}
