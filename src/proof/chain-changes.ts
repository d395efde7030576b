import { Pauses, type Steps } from '../base/clock.ts'
import {
  type CompiledChain,
  type CompiledRule,
  type CompiledTable,
  compileInSteps,
} from '../kernel/evaluate/compiled.ts'
import type { AnyTable, Chain, NftSet } from '../kernel/nft/state.ts'
import type { Concerned, Reads } from './reads.ts'

/* What other versions of a table change, beside elements. */

export function headOf({ family, name }: AnyTable): string {
  return `${family} ${name}`
}

export function whyTables(before: readonly AnyTable[], after: readonly AnyTable[]): string {
  const [from, to] = [before.map(headOf), after.map(headOf)]
  const added = to.find(its => !from.includes(its))
  if (added !== undefined) return `table ${added} is new`
  const gone = from.find(its => !to.includes(its))
  return gone === undefined ? 'the order of the tables changed' : `table ${gone} is gone`
}

interface ChainChange {
  readonly compiled: CompiledTable
  readonly before: AnyTable
  readonly after: AnyTable
  readonly concerned: Concerned
}

/**
 * Takes over chains that a verdict may lead to, and finds what their changed rules concern. A chain at a hook concerns all
 * classes.
 */
export function* followChains(
  { compiled, before, after, concerned }: ChainChange,
  reads: Reads,
): Steps<string | undefined> {
  const pauses = new Pauses()
  if (before.chains === after.chains) return undefined
  for (const [name, chain] of before.chains) {
    const now = after.chains.get(name)
    if (now === chain) continue
    if (pauses.due(8)) yield
    if (now === undefined) {
      if (chain.hook !== undefined) return `chain ${compiled.name} ${name} is gone`
      compiled.chains.delete(name)
      continue
    }
    const isFollowed = chain.hook === undefined && now.hook === undefined && reads.followsRules
    if (!isFollowed) {
      if (yield* isSameChain(chain, now, compiled)) continue
      return `chain ${compiled.name} ${name} changed`
    }
    const wide = yield* followRules({ now, compiled, concerned }, reads)
    if (wide !== undefined) return wide
  }
  for (const [name, chain] of after.chains) {
    if (before.chains.has(name)) continue
    if (chain.hook !== undefined) return `chain ${compiled.name} ${name} is new`
    compiled.chains.set(name, yield* compileInSteps(chain, compiled))
    if (pauses.due(8)) yield
  }
  return undefined
}

/** Finds what the rules that came or went concern. */
function* followRules(
  {
    now,
    compiled,
    concerned,
  }: { readonly now: Chain; readonly compiled: CompiledTable; readonly concerned: Concerned },
  reads: Reads,
): Steps<string | undefined> {
  const where = `chain ${compiled.name} ${now.name}`
  const known = compiled.chains.get(now.name)
  if (known === undefined) return `${where} is new`
  const next = yield* compileInSteps(now, compiled, known)
  compiled.chains.set(now.name, next)
  const changed = yield* changedRules(known, next)
  if (changed === undefined) return `the rules of ${where} changed their order`
  for (const { guard } of changed) reads.concernRule(known, guard, concerned)
  return concerned.isWide ? `rules of ${where} changed that many classes meet` : undefined
}

/** Gives the rules that came or went; undefined where others changed their order. */
function* changedRules(
  before: CompiledChain,
  after: CompiledChain,
): Steps<readonly CompiledRule[] | undefined> {
  // Versions of a chain share most rules. Others are compared by their text.
  const shared = new Set(before.rules.map(({ expressions }) => expressions))
  const isShared = new Set(
    after.rules.flatMap(({ expressions }) => (shared.has(expressions) ? [expressions] : [])),
  )
  const names = new Map<CompiledRule, Name>()
  const pauses = new Pauses()
  for (const rule of [...before.rules, ...after.rules]) {
    const { expressions } = rule
    const isKnown = isShared.has(expressions)
    names.set(rule, isKnown ? expressions : JSON.stringify(expressions))
    if (pauses.due(isKnown ? 1 : 8)) yield
  }
  const nameOf = (rule: CompiledRule): Name => names.get(rule) ?? ''
  const counts = new Map<Name, number>()
  for (const rule of before.rules) counts.set(nameOf(rule), (counts.get(nameOf(rule)) ?? 0) + 1)
  const came = after.rules.filter(rule => !takes(counts, nameOf(rule)))
  // Of equal rules, the last ones went.
  const gone = [...before.rules].reverse().filter(rule => takes(counts, nameOf(rule)))
  const stayed = (rules: readonly CompiledRule[], but: readonly CompiledRule[]) => {
    const others = new Set(but)
    return rules.filter(rule => !others.has(rule)).map(nameOf)
  }
  const [from, to] = [stayed(before.rules, gone), stayed(after.rules, came)]
  return from.every((name, at) => name === to[at]) ? [...gone, ...came] : undefined
}

/** What is the same for equal rules. */
type Name = CompiledRule['expressions'] | string

function takes(counts: Map<Name, number>, name: Name): boolean {
  const count = counts.get(name) ?? 0
  if (count === 0) return false
  counts.set(name, count - 1)
  return true
}

export function* haveSameChains(compiled: CompiledTable, before: AnyTable, after: AnyTable): Steps<boolean> {
  const pauses = new Pauses()
  if (before.chains.size !== after.chains.size) return false
  for (const [name, chain] of before.chains) {
    const now = after.chains.get(name)
    if (pauses.due(8)) yield
    if (now === undefined || !(yield* isSameChain(chain, now, compiled))) return false
  }
  return true
}

/** Tests whether another version of a chain does the same. Nothing of it is kept. */
function* isSameChain(before: Chain, after: Chain, compiled: CompiledTable): Steps<boolean> {
  const known = compiled.chains.get(before.name)?.rules ?? []
  if (JSON.stringify(before.hook) !== JSON.stringify(after.hook)) return false
  const { rules } = yield* compileInSteps(after, { ...compiled, known: new WeakMap() })
  return (
    known.length === rules.length &&
    known.every(({ place, expressions }, at) => {
      const other = rules[at]
      if (other === undefined || place.rule !== other.place.rule) return false
      return JSON.stringify(expressions) === JSON.stringify(other.expressions)
    })
  )
}

/** The size of a set does not matter: full sets that packets fill are followed in any case. */
export function whySets({ name }: CompiledTable, before: AnyTable, after: AnyTable): string | undefined {
  if (before.sets === after.sets) return undefined
  const text = ({ sets }: AnyTable, set: string) => kindOf(sets.get(set))
  for (const set of new Set([...before.sets.keys(), ...after.sets.keys()]))
    if (text(before, set) !== text(after, set)) return `set ${set} of ${name} changed`
  return undefined
}

function kindOf(set: NftSet | undefined): string {
  if (set === undefined) return ''
  const { flags, keyLength, dataType, dataLength, timeoutMs } = set
  return [flags, keyLength, dataType, dataLength, timeoutMs].join()
}
