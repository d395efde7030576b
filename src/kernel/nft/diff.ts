import { PersistentMap } from '../../base/persistent-map.ts'
import type { Steps } from '../../base/steps.ts'
import { NFT_DATA_VERDICT, NFT_SET_ANONYMOUS } from './constants.ts'
import { diffChains, retireChains } from './diff-chains.ts'
import { diffElements, filledByPackets, LATE_GROUP } from './diff-elements.ts'
import type { Operation, TableOperation, Transaction } from './operation.ts'
import type { Element, NftSet, Ruleset, Table } from './state.ts'

export interface RulesetDiff {
  readonly transaction: Transaction
  /** What the kernel holds once the transaction is committed. */
  readonly after: Ruleset
  /** False when something had to wait for a later transaction: then diffing `after` with the goal gives the rest. */
  readonly complete: boolean
}

export interface DiffOptions {
  /**
   * Sets whose elements a packet may reach through another set read a moment before: elements leaving a group that
   * lives on are removed one transaction later than the rest. So are chains that nothing wanted uses any more.
   */
  readonly lateSets: ReadonlySet<string>
}

export type DiffRulesets = (from: Ruleset, to: Ruleset, options: DiffOptions) => Steps<RulesetDiff>

/** A part of the answer: operations on one table, and that table afterwards. */
interface TableDiff {
  readonly operations: readonly Operation[]
  readonly after: Table
}

/**
 * Operations on one table come in an order that the kernel accepts, and that it accepts cheaply: sets before the rules
 * that use them, chains before what leads to them, and rules before elements, because a new rule that looks into a map
 * walks all its elements. A key that changes is deleted before it is added, and other deletes come before additions
 * too, so that a set never needs room for both.
 */
export const diffRulesets: DiffRulesets = function* (from, to, options) {
  const transaction: Operation[] = []
  const tables: Table[] = []
  const wanted = new Set(to.tables.map(nameOf))
  const present = new Map(from.tables.map(table => [nameOf(table), table] as const))
  for (const table of from.tables) {
    if (!wanted.has(nameOf(table))) transaction.push({ ...targetOf(table), verb: 'delete-table' })
  }
  for (const table of to.tables) {
    const { operations, after } = yield* diffTable(present.get(nameOf(table)), table, options)
    for (const operation of operations) transaction.push(operation)
    tables.push(after)
  }
  const complete = tables.every((table, i) => table === to.tables[i])
  return { transaction, after: complete ? to : { tables }, complete }
}

function* diffTable(from: Table | undefined, to: Table, options: DiffOptions): Steps<TableDiff> {
  if (from === to) return { operations: [], after: to }
  if (from === undefined) return yield* createTable(to)
  if (needsReplacing(from, to)) return yield* replaceTable(from, to)
  return yield* changeTable(from, to, options)
}

function* createTable(to: Table): Steps<TableDiff> {
  const add: Operation = { ...targetOf(to), verb: 'add-table', flags: to.flags, comment: to.comment }
  const blank: Table = { ...to, chains: new Map(), sets: new Map(), elements: PersistentMap.empty() }
  const { operations } = yield* changeTable(blank, to, { lateSets: new Set() })
  return { operations: [add, ...operations], after: to }
}

/** Everything anew, in one transaction: adding the table first makes deleting it work even if it is gone meanwhile. */
function* replaceTable(from: Table, to: Table): Steps<TableDiff> {
  const add: Operation = { ...targetOf(to), verb: 'add-table', flags: to.flags, comment: to.comment }
  const addAsItWas: Operation = { ...add, flags: from.flags, comment: from.comment }
  const { operations } = yield* createTable(to)
  const kept = yield* keepWhatPacketsMade(from, to)
  return {
    operations: [addAsItWas, { ...targetOf(to), verb: 'delete-table' }, ...operations, ...kept],
    after: to,
  }
}

/** Elements that packets made (session affinity) with the time they have left, where the new set can hold them. */
function* keepWhatPacketsMade(from: Table, to: Table): Steps<readonly Operation[]> {
  const kept = new Map<string, { readonly elements: Element[]; readonly groups: string[] }>()
  for (const set of to.sets.values()) {
    const before = from.sets.get(set.name)
    if (before !== undefined && filledByPackets(set) && sameShape(before, set))
      kept.set(set.name, { elements: [], groups: [] })
  }
  if (kept.size === 0) return []
  let groups = 0
  for (const [group, elements] of from.elements.entries()) {
    for (const element of elements) {
      const pile = kept.get(element.set)
      // Without time left it would stay for ever.
      if (pile === undefined || (element.expiresMs ?? 0) === 0) continue
      pile.elements.push(element)
      pile.groups.push(group)
    }
    if (++groups % 256 === 0) yield
  }
  return [...to.sets.values()].flatMap(set => {
    const pile = kept.get(set.name)
    if (pile === undefined || pile.elements.length === 0) return []
    return [{ ...targetOf(to), verb: 'add-elements' as const, set, ...pile }]
  })
}

function* changeTable(from: Table, to: Table, options: DiffOptions): Steps<TableDiff> {
  const target = targetOf(to)
  const elements = yield* diffElements(from, to, options.lateSets)
  const stale = retireChains(from, to, elements)
  const operations: Operation[] = []
  for (const set of to.sets.values()) {
    if (!from.sets.has(set.name)) operations.push({ ...target, verb: 'add-set', set })
  }
  for (const operation of diffChains(from, to)) operations.push(operation)
  for (const { set, remove } of elements.sets) {
    if (remove.elements.length > 0) operations.push({ ...target, verb: 'delete-elements', set, ...remove })
  }
  for (const { set, add } of elements.sets) {
    if (add.elements.length > 0) operations.push({ ...target, verb: 'add-elements', set, ...add })
  }
  operations.push(...stale.flush)
  for (const set of from.sets.values()) {
    // An anonymous set goes with the rule that uses it.
    if (to.sets.has(set.name) || (set.flags & NFT_SET_ANONYMOUS) !== 0) continue
    operations.push({ ...target, verb: 'delete-set', set: set.name })
  }
  operations.push(...stale.remove)
  if (elements.late.length === 0 && stale.left.length === 0) return { operations, after: to }
  const chains = new Map([...to.chains, ...stale.left.map(chain => [chain.name, chain] as const)])
  const pending = elements.late.length === 0 ? undefined : elements.late
  return { operations, after: { ...to, chains, elements: to.elements.with([[LATE_GROUP, pending]]) } }
}

/** True when something differs that the kernel cannot change in place. */
function needsReplacing(from: Table, to: Table): boolean {
  if (from.flags !== to.flags) return true
  for (const set of to.sets.values()) {
    const before = from.sets.get(set.name)
    if (before !== undefined && before !== set && !sameDeclaration(before, set)) return true
  }
  for (const chain of to.chains.values()) {
    const before = from.chains.get(chain.name)
    // A chain becomes a base chain, or ceases to be one, only by being deleted, which what leads to it forbids.
    if (before !== undefined && (before.hook === undefined) !== (chain.hook === undefined)) return true
  }
  return false
}

function sameDeclaration(a: NftSet, b: NftSet): boolean {
  return sameShape(a, b) && a.size === b.size && a.timeoutMs === b.timeoutMs && a.userdata === b.userdata
}

function sameShape(a: NftSet, b: NftSet): boolean {
  return (
    a.flags === b.flags &&
    a.keyType === b.keyType &&
    a.keyLength === b.keyLength &&
    a.counted === b.counted &&
    a.dataType === b.dataType &&
    // The kernel reports the size of its own structure for verdicts.
    (a.dataLength === b.dataLength || a.dataType === NFT_DATA_VERDICT)
  )
}

function nameOf(table: Table): string {
  return `${table.family} ${table.name}`
}

function targetOf(table: Table): TableOperation {
  return { family: table.family, table: table.name }
}
