import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_MSG_DELRULE,
  NFT_MSG_NEWRULE,
  NFT_TABLE_F_DORMANT,
  NFTA_RULE_CHAIN,
  NFTA_RULE_HANDLE,
} from '../../../src/kernel/nft/constants.ts'
import { CHAIN, type ExpressionAttributes, RULE, TABLE } from '../../../src/kernel/nft/schema.ts'
import { NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL } from '../../../src/netlink/constants.ts'
import type { ValuesOf } from '../../../src/netlink/schema.ts'
import { dumpedExpressions } from './as-dumped.ts'
import { attributesOf, type Call, chainOf, nameIn, offsetOf, refuse, tableOf } from './call.ts'
import { checkExpressions } from './check-rule.ts'
import { chainNotice, ruleNotice, tableNotice } from './notices.ts'
import {
  chainReferences,
  type FakeChain,
  type FakeRule,
  type FakeTable,
  Handles,
  tableKey,
} from './objects.ts'

/** Tables, chains and rules, as net/netfilter/nf_tables_api.c treats them; every errno here was seen on Linux 6.18. */

export function newTable(call: Call): void {
  const { space, journal, message, family } = call
  const { name: given, flags = 0, userdata } = attributesOf(call, TABLE)
  const name = nameIn(call, given, TABLE.fields.name[0])
  // nft_supported_family.
  if (space.absent.has(`${family} table`)) refuse('EOPNOTSUPP')
  if ((flags & ~NFT_TABLE_F_DORMANT) !== 0) refuse('EOPNOTSUPP')
  const existing = space.tables.get(tableKey(family, name))
  if (existing === undefined) {
    const blank = { family, name, flags, userdata, handle: space.tableHandles.next() }
    const empty = { handles: new Handles(), chains: new Map(), sets: new Map() }
    journal.put(space.tables, tableKey(family, name), { ...blank, ...empty })
    return
  }
  if ((message.flags & NLM_F_EXCL) !== 0) refuse('EEXIST', offsetOf(call, TABLE.fields.name[0]))
  // The kernel switches a table off and on: this project never asks for that.
  if (flags !== existing.flags) refuse('EOPNOTSUPP')
}

/** Listeners hear of all its rules, then of its chains, then of itself. */
export function deleteTable(call: Call): void {
  const { space, journal } = call
  const table = tableOf(call, attributesOf(call, TABLE).name)
  for (const chain of table.chains.values()) flush(call, { table, chain })
  for (const chain of table.chains.values()) journal.notices.push(() => chainNotice(call, { table, chain }))
  journal.notices.push(() => tableNotice(call, table))
  journal.remove(space.tables, tableKey(table.family, table.name))
}

export function newChain(call: Call): void {
  const { journal, message } = call
  const values = attributesOf(call, CHAIN)
  const table = tableOf(call, values.table)
  const name = nameIn(call, values.name, CHAIN.fields.name[0])
  const existing = table.chains.get(name)
  if (existing !== undefined) {
    if ((message.flags & NLM_F_EXCL) !== 0) refuse('EEXIST', offsetOf(call, CHAIN.fields.name[0]))
    updateChain(call, existing, values)
    return
  }
  checkHook(values, call.space.absent)
  const { hook, type, policy, userdata } = values
  const chain = { name, hook, type, policy, userdata, handle: table.handles.next(), rules: [] }
  journal.put(table.chains, name, chain)
  if (hook !== undefined) journal.toValidate.add(table)
}

/** Policy and counters only; everything else stands. The kernel makes a new generation even for nothing. */
function updateChain(call: Call, chain: FakeChain, values: ValuesOf<typeof CHAIN>): void {
  const { hook, type, policy } = values
  if (hook !== undefined) {
    if (chain.hook === undefined) refuse('EOPNOTSUPP')
    if (type !== undefined && type !== chain.type) refuse('EEXIST', offsetOf(call, CHAIN.fields.name[0]))
    if (hook.hooknum !== chain.hook.hooknum || hook.priority !== chain.hook.priority) refuse('EOPNOTSUPP')
  }
  const before = chain.policy
  chain.policy = policy ?? before
  call.journal.did(() => {
    chain.policy = before
  })
}

const HOOKS_OF_TYPE: ReadonlyMap<string, readonly number[]> = new Map([
  [
    'filter',
    [NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING],
  ],
  ['nat', [NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING]],
  ['route', [NF_INET_LOCAL_OUT]],
])
/** NF_IP_PRI_CONNTRACK: addresses cannot be translated before connections are known. */
const PRIORITY_CONNTRACK = -200

function checkHook({ hook, type }: ValuesOf<typeof CHAIN>, absent: ReadonlySet<string>): void {
  if (hook === undefined) return
  const { hooknum, priority } = hook
  if (hooknum === undefined || priority === undefined) refuse('EINVAL')
  if (absent.has(`${type ?? 'filter'} chain`)) refuse('ENOENT')
  const hooks = HOOKS_OF_TYPE.get(type ?? 'filter') ?? refuse('ENOENT')
  if (!hooks.includes(hooknum)) refuse('EOPNOTSUPP')
  if (type === 'nat' && priority <= PRIORITY_CONNTRACK) refuse('EOPNOTSUPP')
}

/** With its rules; EBUSY while anything leads to it. */
export function deleteChain(call: Call): void {
  const { table: tableName, name } = attributesOf(call, CHAIN)
  const table = tableOf(call, tableName)
  const chain = chainOf(call, table, { value: name, attribute: CHAIN.fields.name[0] })
  flush(call, { table, chain })
  for (const reference of chainReferences(table)) {
    if (reference === chain.name) refuse('EBUSY', offsetOf(call, CHAIN.fields.name[0]))
  }
  call.journal.notices.push(() => chainNotice(call, { table, chain }))
  call.journal.remove(table.chains, chain.name)
}

/** Behind the chain's rules, or before them; replacing, and places among them, are not modelled. */
export function newRule(call: Call): void {
  const { space, journal, message } = call
  const values = attributesOf(call, RULE)
  const table = tableOf(call, values.table)
  const chain = chainOf(call, table, { value: values.chain, attribute: NFTA_RULE_CHAIN })
  if ((message.flags & NLM_F_CREATE) === 0) refuse('EINVAL')
  const { expressions = [], userdata, compat } = values
  const handle = table.handles.next()
  checkExpressions(call, { space, table, chain, protocol: compat?.protocol ?? 0 }, expressions)
  const dumped = dumpedExpressions(expressions, table.family)
  const rule: FakeRule = { handle, expressions, userdata, dumped, targets: expressions.flatMap(targetOf) }
  const { rules } = chain
  if ((message.flags & NLM_F_APPEND) !== 0) rules.push(rule)
  else rules.unshift(rule)
  journal.did(() => rules.splice(rules.indexOf(rule), 1))
  journal.notices.push(() => ruleNotice(call, { table, chain, rule, kind: NFT_MSG_NEWRULE }))
  journal.toValidate.add(table)
}

function targetOf(expression: ExpressionAttributes): readonly string[] {
  const name = expression.tag === 'immediate' ? expression.data.data?.verdict?.chain : undefined
  return name === undefined ? [] : [name]
}

/** One rule by its handle, or all of a chain. */
export function deleteRule(call: Call): void {
  const values = attributesOf(call, RULE)
  const table = tableOf(call, values.table)
  const chain = chainOf(call, table, { value: values.chain, attribute: NFTA_RULE_CHAIN })
  if (values.handle === undefined) {
    flush(call, { table, chain })
    return
  }
  const { rules } = chain
  const index = rules.findIndex(({ handle }) => handle === values.handle)
  const rule = rules[index]
  // Of one that went in the same batch the kernel does not say which attribute is wrong.
  if (rule === undefined)
    refuse('ENOENT', call.journal.wentBefore(values.handle) ? undefined : offsetOf(call, NFTA_RULE_HANDLE))
  rules.splice(index, 1)
  call.journal.went(rule.handle)
  call.journal.did(() => rules.splice(index, 0, rule))
  call.journal.notices.push(() => ruleNotice(call, { table, chain, rule, kind: NFT_MSG_DELRULE }))
}

function flush(call: Call, { table, chain }: { readonly table: FakeTable; readonly chain: FakeChain }): void {
  const before = chain.rules
  if (before.length === 0) return
  chain.rules = []
  call.journal.did(() => {
    chain.rules = before
  })
  for (const rule of before) {
    call.journal.went(rule.handle)
    call.journal.notices.push(() => ruleNotice(call, { table, chain, rule, kind: NFT_MSG_DELRULE }))
  }
}
