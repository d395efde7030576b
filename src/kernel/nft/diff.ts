import { PersistentMap } from '../../base/collections.ts'
import * as nft from './constants.ts'
import { type DiffOptions, diffElements, filledByPackets, LATE_GROUP } from './diff-elements.ts'
import {
  type Chain,
  type Element,
  type ElementGroup,
  type Expression,
  type NftSet,
  type Rule,
  type Ruleset,
  type Table,
  targetsOf,
} from './state.ts'
import type { Operation, TableOperation, Transaction } from './transaction.ts'
import { sameUserdata } from './userdata.ts'

export interface RulesetDiff {
  readonly transaction: Transaction
  /** The kernel's state after the transaction. */
  readonly after: Ruleset
  /** False when something waits for a later transaction: diffing `after` with the wanted state gives the rest. */
  readonly complete: boolean
}

/** A part of the result: operations on one table, and that table afterwards. */
interface TableDiff {
  readonly operations: readonly Operation[]
  readonly after: Table
}

/**
 * Computes the operations on each table, in an order that the kernel accepts, and at low cost. Sets come before the
 * rules that use them, chains before references to them, and rules before elements, because a new rule with a map
 * lookup walks all elements of the map. Elements of a set are deleted before others are added, so that it never needs
 * room for both.
 */
export function diffRulesets(from: Ruleset, to: Ruleset, options: DiffOptions): RulesetDiff {
  const transaction: Operation[] = []
  const tables: Table[] = []
  for (const table of from.tables) {
    if (findTable(to, table) === undefined) transaction.push({ ...targetOf(table), verb: 'delete-table' })
  }
  for (const table of to.tables) {
    const before = findTable(from, table)
    if (before === table) {
      tables.push(table)
      continue
    }
    const { operations, after } = diffTable(before, table, options)
    for (const operation of operations) transaction.push(operation)
    tables.push(after)
  }
  const complete = tables.every((table, i) => table === to.tables[i])
  return { transaction, after: complete ? to : { tables }, complete }
}

function findTable({ tables }: Ruleset, { family, name }: Table): Table | undefined {
  for (const table of tables) if (table.family === family && table.name === name) return table
  return undefined
}

function diffTable(from: Table | undefined, to: Table, options: DiffOptions): TableDiff {
  if (from === undefined) return createTable(to)
  if (needsReplacing(from, to)) return replaceTable(from, to)
  return changeTable(from, to, options)
}

function createTable(to: Table): TableDiff {
  const add: Operation = { ...targetOf(to), verb: 'add-table', flags: to.flags, comment: to.comment }
  const blank: Table = { ...to, chains: new Map(), sets: new Map(), elements: PersistentMap.empty() }
  const { operations } = changeTable(blank, to, { lateSets: new Set() })
  return { operations: [add, ...operations], after: to }
}

/**
 * Replaces a table in one transaction. It adds the table first, so that deleting it works even if it has gone
 * meanwhile.
 */
function replaceTable(from: Table, to: Table): TableDiff {
  const add: Operation = { ...targetOf(to), verb: 'add-table', flags: to.flags, comment: to.comment }
  const addAsItWas: Operation = { ...add, flags: from.flags, comment: from.comment }
  const { operations } = createTable(to)
  const kept = keepWhatPacketsMade(from, to)
  return {
    operations: [addAsItWas, { ...targetOf(to), verb: 'delete-table' }, ...operations, ...kept],
    after: to,
  }
}

/**
 * Keeps the elements that packets created (session affinity) with their remaining time, where the new set can hold
 * them.
 */
function keepWhatPacketsMade(from: Table, to: Table): readonly Operation[] {
  const kept = new Map<string, { readonly elements: Element[]; readonly groups: string[] }>()
  for (const set of to.sets.values()) {
    const before = from.sets.get(set.name)
    if (before !== undefined && filledByPackets(set) && sameShape(before, set))
      kept.set(set.name, { elements: [], groups: [] })
  }
  if (kept.size === 0) return []
  for (const [group, elements] of from.elements.entries()) {
    for (const element of elements) {
      const pile = kept.get(element.set)
      // Without a remaining time, the element would never expire.
      if (pile === undefined || (element.expiresMs ?? 0) === 0) continue
      pile.elements.push(element)
      pile.groups.push(group)
    }
  }
  return [...to.sets.values()].flatMap(set => {
    const pile = kept.get(set.name)
    if (pile === undefined || pile.elements.length === 0) return []
    return [{ ...targetOf(to), verb: 'add-elements' as const, set, ...pile }]
  })
}

function changeTable(from: Table, to: Table, options: DiffOptions): TableDiff {
  const target = targetOf(to)
  const changes = diffElements(from, to, options)
  const stale = retireChains(from, to, changes)
  const operations: Operation[] = []
  for (const set of onlyIn(to.sets, from.sets)) operations.push({ ...target, verb: 'add-set', set })
  for (const operation of diffChains(from, to)) operations.push(operation)
  for (const { set, remove, add } of changes.sets) {
    if (remove.elements.length > 0) operations.push({ ...target, verb: 'delete-elements', set, ...remove })
    if (add.elements.length > 0) operations.push({ ...target, verb: 'add-elements', set, ...add })
  }
  operations.push(...stale.flush)
  for (const set of onlyIn(from.sets, to.sets)) {
    // The kernel removes an anonymous set with the rule that uses it.
    if ((set.flags & nft.NFT_SET_ANONYMOUS) !== 0) continue
    operations.push({ ...target, verb: 'delete-set', set: set.name })
  }
  operations.push(...stale.remove)
  if (changes.late.length === 0 && stale.left.length === 0) return { operations, after: to }
  const chains = new Map([...to.chains, ...stale.left.map(chain => [chain.name, chain] as const)])
  const pending = changes.late.length === 0 ? undefined : changes.late
  return { operations, after: { ...to, chains, elements: to.elements.with([[LATE_GROUP, pending]]) } }
}

/** Returns the sets of `these` that `those` lack. Most changes have no set that came or went. */
function onlyIn(these: Table['sets'], those: Table['sets']): readonly NftSet[] {
  return these === those ? [] : [...these.values()].filter(({ name }) => !those.has(name))
}

/** Returns true when the kernel cannot change a difference in place. */
function needsReplacing(from: Table, to: Table): boolean {
  if (from.flags !== to.flags) return true
  if (from.sets !== to.sets && [...to.sets.values()].some(set => isDeclaredAnew(from, set))) return true
  if (from.chains === to.chains) return false
  for (const chain of to.chains.values()) {
    const before = from.chains.get(chain.name)
    // Only deleting a chain makes it a base chain or a regular one, and references to it prevent that.
    if (before !== undefined && (before.hook === undefined) !== (chain.hook === undefined)) return true
  }
  return false
}

function isDeclaredAnew({ sets }: Table, set: NftSet): boolean {
  const before = sets.get(set.name)
  return before !== undefined && before !== set && !sameDeclaration(before, set)
}

function targetOf(table: Table): TableOperation {
  return { family: table.family, table: table.name }
}

/** Returns the operations that turn the chains and rules of `from` into those of `to`. They remove no chains. */
function diffChains(from: Table, to: Table): readonly Operation[] {
  if (from.chains === to.chains) return []
  const target: TableOperation = { family: to.family, table: to.name }
  const chains: Operation[] = []
  const rules: Operation[] = []
  for (const chain of to.chains.values()) {
    const before = from.chains.get(chain.name)
    if (before === chain) continue
    const remade = before !== undefined && !sameHook(before, chain)
    if (before !== undefined && (remade || !sameRules(before.rules, chain.rules))) {
      const flush: Operation = { ...target, verb: 'flush-chain', chain: chain.name }
      // The kernel cannot change a hook in place (EOPNOTSUPP), and deletes only empty chains.
      if (remade)
        chains.push(...emptied(before, flush), { ...target, verb: 'delete-chain', chain: chain.name })
      else rules.push(...emptied(before, flush))
    } else if (before !== undefined) continue
    if (before === undefined || remade) chains.push({ ...target, verb: 'add-chain', chain })
    for (const rule of chain.rules) rules.push({ ...target, verb: 'add-rule', chain: chain.name, rule })
  }
  return [...chains, ...rules]
}

function emptied(chain: Chain, flush: Operation): readonly Operation[] {
  return chain.rules.length === 0 ? [] : [flush]
}

function sameHook(a: Chain, b: Chain): boolean {
  if (a.hook === undefined || b.hook === undefined) return a.hook === b.hook
  return (
    a.hook.type === b.hook.type &&
    a.hook.hooknum === b.hook.hooknum &&
    a.hook.priority === b.hook.priority &&
    a.hook.policy === b.hook.policy
  )
}

interface StaleChains {
  readonly flush: readonly Operation[]
  readonly remove: readonly Operation[]
  /** Chains that remain after this transaction, with their content at that time. */
  readonly left: readonly Chain[]
}

const NONE_STALE: StaleChains = { flush: [], remove: [], left: [] }

/**
 * Removes chains that only `from` has, in up to two steps. A chain that an element still uses afterwards stays
 * unchanged. A chain that any reference in `from` leads to is emptied, and the next transaction removes it: kernels
 * before 6.2 refuse (EBUSY) to delete a chain in the transaction that drops its last reference. All other chains are
 * removed at once.
 */
function retireChains(
  from: Table,
  to: Table,
  elements: { readonly referenced: ReadonlySet<string>; readonly late: ElementGroup },
): StaleChains {
  if (from.chains === to.chains) return NONE_STALE
  const stale = [...from.chains.values()].filter(chain => !to.chains.has(chain.name))
  if (stale.length === 0) return NONE_STALE
  const target: TableOperation = { family: to.family, table: to.name }
  const referenced = new Set([...elements.referenced, ...[...from.chains.values()].flatMap(targetsOfChain)])
  const used = inUse(from, to, elements.late)
  const flush: Operation[] = []
  const remove: Operation[] = []
  const left: Chain[] = []
  for (const chain of stale) {
    if (used.has(chain.name)) {
      left.push(chain)
      continue
    }
    if (chain.rules.length > 0) flush.push({ ...target, verb: 'flush-chain', chain: chain.name })
    if (referenced.has(chain.name)) left.push({ ...chain, rules: [] })
    else remove.push({ ...target, verb: 'delete-chain', chain: chain.name })
  }
  return { flush, remove, left }
}

/** Returns the stale chains that a packet may still reach through an element whose removal waits. */
function inUse(from: Table, to: Table, late: ElementGroup): ReadonlySet<string> {
  // Rules that use a set must be removed together with the set, wherever they are.
  for (const name of from.sets.keys()) if (!to.sets.has(name)) return new Set()
  const used = new Set<string>()
  const pending: string[] = []
  for (const { data } of late)
    if (typeof data === 'object' && data.chain !== undefined) pending.push(data.chain)
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    const chain = from.chains.get(name)
    if (used.has(name) || chain === undefined) continue
    used.add(name)
    pending.push(...targetsOfChain(chain))
  }
  return used
}

function targetsOfChain({ rules }: Chain): readonly string[] {
  return rules.flatMap(({ expressions }) => targetsOf(expressions))
}

/** A register has four bytes. */
const REGISTERS = nft.NFT_REG32_15 - nft.NFT_REG32_00 + 1

/* What makes two rules, or two sets, equal: whatever nft loads from its own listing equals what was listed. */

export function sameDeclaration(a: NftSet, b: NftSet): boolean {
  return (
    sameShape(a, b) &&
    a.size === b.size &&
    a.timeoutMs === b.timeoutMs &&
    sameUserdata(a.userdata, b.userdata)
  )
}

/** Returns whether a set can hold the elements of another one. */
function sameShape(a: NftSet, b: NftSet): boolean {
  return (
    a.flags === b.flags &&
    a.keyType === b.keyType &&
    a.keyLength === b.keyLength &&
    a.counted === b.counted &&
    a.dataType === b.dataType &&
    // The kernel reports the size of its own structure for verdicts.
    (a.dataLength === b.dataLength || a.dataType === nft.NFT_DATA_VERDICT)
  )
}

function sameRules(a: readonly Rule[], b: readonly Rule[]): boolean {
  if (a === b) return true
  if (a.length !== b.length) return false
  return a.every((rule, i) => {
    const other = b[i]
    return rule === other || (other !== undefined && ruleKey(rule) === ruleKey(other))
  })
}

/** Returns a key that is equal exactly for equal rules, whatever the order of their objects' fields. */
export function ruleKey({ comment, expressions }: Rule): string {
  return JSON.stringify([comment, withoutDataRegisters(expressions).map(canonical)])
}

/** Returns fields sorted by name, without absent ones; verdicts and lists are the only objects within an expression. */
function canonical(value: object): readonly unknown[] {
  return Object.entries(value)
    .filter(([, field]) => field !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, field]) => [name, typeof field === 'object' && field !== null ? canonical(field) : field])
}

/**
 * Returns expressions without the number of a register that holds only the data of `update @map` and the like: nft
 * 1.0.6 takes the register behind the longest key there can be, and later versions the one behind the key.
 */
function withoutDataRegisters(expressions: readonly Expression[]): readonly object[] {
  const data = new Set<number>()
  const others = new Set<number | undefined>()
  for (const [i, each] of expressions.entries()) {
    if (isDataOf(each, expressions[i + 1])) data.add(each.dreg)
    else for (const register of registersOf(each, expressions[i - 1])) others.add(register)
  }
  for (const register of others) if (register !== undefined) data.delete(register)
  if (data.size === 0) return expressions
  return expressions.map((each, i) => {
    if (each.kind === 'dynset' && each.dataReg !== undefined && data.has(each.dataReg))
      return { ...each, dataReg: 'data' }
    return isDataOf(each, expressions[i + 1]) && data.has(each.dreg) ? { ...each, dreg: 'data' } : each
  })
}

/** Returns whether an expression loads the data for the dynamic set that follows. */
function isDataOf(
  load: Expression | undefined,
  next: Expression | undefined,
): load is Extract<Expression, { kind: 'meta' }> {
  return load?.kind === 'meta' && next?.kind === 'dynset' && next.dataReg === load.dreg
}

/** Returns the registers that an expression names, and all those that it fills, or reads more than four octets of. */
function registersOf(
  expression: Expression,
  before: Expression | undefined,
): readonly (number | undefined)[] {
  switch (expression.kind) {
    case 'payload':
      return registersFrom(expression.dreg, expression.length)
    case 'meta':
      return registersFrom(expression.dreg, NAMES.includes(expression.key) ? NAME_LENGTH : 4)
    case 'cmp':
      return registersFrom(expression.sreg, expression.data.length)
    case 'dynset':
      return [expression.keyReg, isDataOf(before, expression) ? undefined : expression.dataReg]
    case 'lookup':
      return [expression.sreg, expression.dreg === 'verdict' ? undefined : expression.dreg]
    case 'bitwise':
      return [
        ...registersFrom(expression.sreg, expression.mask.length),
        ...registersFrom(expression.dreg, expression.mask.length),
      ]
    case 'dnat':
      return [expression.addressReg, expression.portReg]
    default:
      return 'dreg' in expression ? [expression.dreg] : 'sreg' in expression ? [expression.sreg] : []
  }
}

const NAMES: readonly number[] = [nft.NFT_META_IIFNAME, nft.NFT_META_OIFNAME]
const NAME_LENGTH = 16

/** A foreign rule may name any length. */
function registersFrom(first: number, octets: number): readonly number[] {
  return Array.from({ length: Math.min(Math.ceil(octets / 4), REGISTERS) }, (_, i) => first + i)
}
