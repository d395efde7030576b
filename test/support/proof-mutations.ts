import { PersistentMap } from '../../src/base/collections.ts'
import { NF_DROP, NF_INET_PRE_ROUTING, NFT_PAYLOAD_TRANSPORT_HEADER } from '../../src/kernel/nft/constants.ts'
import type { Chain, Element, ElementGroup, Expression, Rule, Table } from '../../src/kernel/nft/state.ts'

/** A changed state of the kernel, and what was changed. */
export interface Mutation {
  readonly what: string
  readonly tables: readonly Table[]
}

type Random = (bound: number) => number

/** Changes one thing in the tables, chosen by `random`; undefined where there is nothing of the chosen kind. */
export function mutate(tables: readonly Table[], random: Random): Mutation | undefined {
  const at = random(tables.length)
  const table = tables[at]
  const kind = KINDS[random(KINDS.length)]
  const changed = table === undefined || kind === undefined ? undefined : kind(table, random)
  if (changed === undefined || table === undefined) return undefined
  const its = changed.beside === true ? [table, changed.table] : [changed.table]
  return {
    what: `${table.family}: ${changed.what}`,
    tables: [...tables.slice(0, at), ...its, ...tables.slice(at + 1)],
  }
}

interface Changed {
  readonly what: string
  readonly table: Table
  /** The table is one more. */
  readonly beside?: true
}

type Kind = (table: Table, random: Random) => Changed | undefined

const removedElement: Kind = (table, random) =>
  withElement(table, random, element => ({ what: `removed ${text(element)}`, by: [] }))

const changedData: Kind = (table, random) =>
  withElement(table, random, element => {
    if (typeof element.data === 'string') {
      const position = random(element.data.length)
      const octet = String.fromCharCode(element.data.charCodeAt(position) ^ (1 << random(8)))
      const data = element.data.slice(0, position) + octet + element.data.slice(position + 1)
      return { what: `a bit of the data of ${text(element)}`, by: [{ ...element, data }] }
    }
    if (element.data === undefined) return undefined
    const chains = [...table.chains.values()].filter(({ hook }) => hook === undefined)
    const chain = chains[random(chains.length)]?.name
    return {
      what: `${text(element)} leads to ${chain}`,
      by: [{ ...element, data: { ...element.data, code: -4, chain } }],
    }
  })

const changedKey: Kind = (table, random) =>
  withElement(table, random, element => {
    const position = random(element.key.length)
    const octet = String.fromCharCode(element.key.charCodeAt(position) ^ (1 << random(8)))
    const key = element.key.slice(0, position) + octet + element.key.slice(position + 1)
    const isTaken = elementsOf(table).some(its => its.set === element.set && its.key === key)
    return isTaken ? undefined : { what: `a bit of the key of ${text(element)}`, by: [{ ...element, key }] }
  })

function withElement(
  table: Table,
  random: Random,
  change: (element: Element) => { readonly what: string; readonly by: ElementGroup } | undefined,
): Changed | undefined {
  const all = elementsOf(table)
  const at = random(all.length)
  const element = all[at]
  const changed = element === undefined ? undefined : change(element)
  if (changed === undefined) return undefined
  const elements = PersistentMap.from([['all', [...all.slice(0, at), ...changed.by, ...all.slice(at + 1)]]])
  return { what: changed.what, table: { ...table, elements } }
}

function elementsOf(table: Table): readonly Element[] {
  return table.elements.values().flat()
}

function text({ set, key, comment }: Element): string {
  return `an element of ${set} (${comment === '' ? Buffer.from(key, 'latin1').toString('hex') : comment})`
}

const removedRule: Kind = (table, random) =>
  withChain(table, random, ({ name, rules }) => {
    const at = random(rules.length)
    return rules.length === 0
      ? undefined
      : { what: `removed rule ${at + 1} of ${name}`, rules: rules.filter((_, index) => index !== at) }
  })

const swappedRules: Kind = (table, random) =>
  withChain(table, random, ({ name, rules }) => {
    const at = random(Math.max(1, rules.length - 1))
    const [first, second] = [rules[at], rules[at + 1]]
    if (first === undefined || second === undefined) return undefined
    return {
      what: `swapped rules ${at + 1} and ${at + 2} of ${name}`,
      rules: [...rules.slice(0, at), second, first, ...rules.slice(at + 2)],
    }
  })

const changedRule: Kind = (table, random) =>
  withChain(table, random, ({ name, rules }) => {
    const at = random(rules.length)
    const rule = rules[at]
    const changed = rule === undefined ? undefined : changedExpression(rule, random)
    if (changed === undefined) return undefined
    return {
      what: `changed ${changed.what} of rule ${at + 1} of ${name}`,
      rules: rules.map((its, index) => (index === at ? changed.rule : its)),
    }
  })

function changedExpression(rule: Rule, random: Random) {
  const at = random(rule.expressions.length)
  const expression = rule.expressions[at]
  const other = expression === undefined ? undefined : otherThan(expression)
  if (expression === undefined || other === undefined) return undefined
  const expressions = rule.expressions.map((its, index) => (index === at ? other : its))
  return { what: expression.kind, rule: { ...rule, expressions } }
}

function otherThan(expression: Expression): Expression | undefined {
  switch (expression.kind) {
    case 'cmp':
      return { ...expression, op: expression.op === 'eq' ? 'neq' : 'eq' }
    case 'numgen':
    case 'jhash':
      return { ...expression, modulus: expression.modulus + 1 }
    case 'bitwise':
      return { ...expression, mask: '\0'.repeat(expression.mask.length) }
    case 'verdict':
      return { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } }
    case 'dynset':
      return { ...expression, timeoutMs: expression.timeoutMs + 1000 }
    case 'reject':
      return { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } }
    default:
      return undefined
  }
}

function withChain(
  table: Table,
  random: Random,
  change: (chain: Chain) => { readonly what: string; readonly rules: readonly Rule[] } | undefined,
): Changed | undefined {
  const all = [...table.chains.values()]
  const chain = all[random(all.length)]
  const changed = chain === undefined ? undefined : change(chain)
  if (chain === undefined || changed === undefined) return undefined
  const chains = new Map(table.chains).set(chain.name, { ...chain, rules: changed.rules })
  return { what: changed.what, table: { ...table, chains } }
}

const otherHook: Kind = (table, random) => {
  const bases = [...table.chains.values()].filter(({ hook }) => hook !== undefined)
  const chain = bases[random(bases.length)]
  if (chain?.hook === undefined) return undefined
  const hook =
    random(2) === 0
      ? { ...chain.hook, priority: 150 - chain.hook.priority }
      : { ...chain.hook, policy: NF_DROP }
  const what = hook.policy === NF_DROP ? 'drops by policy' : `has priority ${hook.priority}`
  return {
    what: `${chain.name} ${what}`,
    table: { ...table, chains: new Map(table.chains).set(chain.name, { ...chain, hook }) },
  }
}

/** A chain of another program before ours, that drops what goes to a port of a Service. */
const foreignChain: Kind = (table, random) => {
  const frontends = elementsOf(table).filter(({ set }) => set === 'frontends')
  const key = frontends[random(Math.max(1, frontends.length))]?.key
  if (key === undefined) return undefined
  const rule: Rule = {
    expressions: [
      { kind: 'payload', base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2, dreg: 0 },
      { kind: 'cmp', op: 'eq', sreg: 0, data: key.slice(-4, -2) },
      { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } },
    ],
    comment: '',
  }
  const hook = { type: 'filter', hooknum: NF_INET_PRE_ROUTING, priority: -200 + random(400) } as const
  const chains = new Map([['first', { name: 'first', hook, rules: [rule] }]])
  const other = {
    ...table,
    name: 'other',
    comment: undefined,
    chains,
    sets: new Map(),
    elements: PersistentMap.empty<ElementGroup>(),
  }
  return { what: `a chain of another program at priority ${hook.priority}`, table: other, beside: true }
}

const KINDS: readonly Kind[] = [
  removedElement,
  changedData,
  changedKey,
  removedRule,
  swappedRules,
  changedRule,
  otherHook,
  foreignChain,
]
