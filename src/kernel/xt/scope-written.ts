import { append } from '../../base/collections.ts'
import { isSame } from '../../base/plain-data.ts'
import {
  chainKey,
  type FixedRules,
  type ScopeOperations,
  type ServiceRules,
  tableKey,
  type XtChain,
  type XtEntry,
  type XtJump,
} from './scope.ts'
import { type OwnedEntry, ScopeDraft } from './scope-draft.ts'

/** The entries of chains, by chainKey. */
export type EntryLists = ReadonlyMap<string, readonly OwnedEntry[]>

const NO_ENTRIES: readonly OwnedEntry[] = []

/**
 * Computes the changes from what the last commit wrote. It compares only Services that may have changed, so it does
 * not know the entries of the others: the caller gives all entries of the chains that are written anew. Jumps that are
 * not wanted any more stay.
 */
export class WrittenDiff {
  readonly #draft = new ScopeDraft()
  readonly #before: FixedRules
  readonly #after: FixedRules
  readonly #changed = new Set<string>()
  /** The number of entries that each chain has lost, less those that it got. */
  readonly #lost = new Map<string, number>()

  constructor(before: FixedRules, after: FixedRules) {
    this.#before = before
    this.#after = after
    if (before.chains === after.chains) return
    for (const key of new Set([...before.chains.keys(), ...after.chains.keys()]))
      if (!sameChains(before.chains.get(key), after.chains.get(key))) this.#changed.add(key)
  }

  /** The fixed chains that differ, by chainKey. */
  get changedChains(): ReadonlySet<string> {
    return this.#changed
  }

  compare(owner: string, before: ServiceRules, after: ServiceRules): void {
    const going = new Map(before.chains.map(chain => [chainKey(chain, chain.name), chain]))
    for (const chain of after.chains) {
      const key = chainKey(chain, chain.name)
      const was = going.get(key)
      going.delete(key)
      if (was === undefined || !sameChains(was, chain))
        this.#draft.write({ chain, owner, entries: NO_ENTRIES, replaces: was && sizeOf(was) })
    }
    for (const chain of going.values()) this.#remove(chain, { owner, rules: sizeOf(chain) })
    this.#compareEntries(before.entries, after.entries)
  }

  #compareEntries(before: readonly XtEntry[], after: readonly XtEntry[]): void {
    const [were, are] = [byChain(before), byChain(after)]
    for (const key of new Set([...were.keys(), ...are.keys()])) {
      const [was, is] = [were.get(key) ?? [], are.get(key) ?? []]
      if (isSame(was, is)) continue
      this.#changed.add(key)
      this.#lost.set(key, (this.#lost.get(key) ?? 0) + was.length - is.length)
    }
  }

  #remove(
    { family, table, name }: XtChain,
    going: { readonly owner?: string; readonly rules: number },
  ): void {
    this.#draft.removeChain({ family, table, chain: name, owner: going.owner, rules: going.rules })
  }

  /** Ends the diff with all entries of the changed chains. */
  finish(lists: EntryLists): ScopeOperations {
    for (const key of this.#changed) {
      const [was, chain] = [this.#before.chains.get(key), this.#after.chains.get(key)]
      const entries = lists.get(key) ?? NO_ENTRIES
      const rules = was && sizeOf(was) + entries.length + (this.#lost.get(key) ?? 0)
      if (chain !== undefined) this.#draft.write({ chain, owner: undefined, entries, replaces: rules })
      else if (was !== undefined) this.#remove(was, { rules: rules ?? 0 })
      else throw new Error(`${key}: entries in a chain that does not exist`)
    }
    this.#finishJumps()
    return this.#draft.finish()
  }

  #finishJumps(): void {
    const { chains, jumps } = this.#before
    if (jumps === this.#after.jumps) return
    const written = new Set(jumps.map(jump => JSON.stringify(jump)))
    const known = new Set([...chains.keys(), ...this.#after.chains.keys(), ...jumps.flatMap(chainsAround)])
    const tables = new Set([...chains.values(), ...jumps].map(tableKey))
    for (const jump of this.#after.jumps) {
      if (written.has(JSON.stringify(jump))) continue
      if (!tables.has(tableKey(jump))) this.#draft.addTable(jump)
      if (!known.has(chainKey(jump, jump.chain))) this.#draft.addFoundation(jump, jump.chain)
      this.#draft.insertJump(jump)
    }
  }
}

function sameChains(a: XtChain | undefined, b: XtChain | undefined): boolean {
  return a !== undefined && b !== undefined && isSame(a.rules, b.rules) && isSame(a.last, b.last)
}

function sizeOf({ rules, last }: XtChain): number {
  return rules.length + last.length
}

function byChain(entries: readonly XtEntry[]): ReadonlyMap<string, readonly XtEntry['rule'][]> {
  const rules = new Map<string, XtEntry['rule'][]>()
  for (const { rule, ...place } of entries) append(rules, chainKey(place, place.chain), rule)
  return rules
}

function chainsAround(jump: XtJump): readonly string[] {
  const { target } = jump.rule
  const from = chainKey(jump, jump.chain)
  return target?.kind === 'jump' ? [from, chainKey(jump, target.chain)] : [from]
}
