import { PersistentMap } from '../../base/persistent-map.ts'
import { Pauses, type Steps } from '../../base/steps.ts'
import { growthOf } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import type { Ipset, IpsetEntry } from '../../kernel/ipset/state.ts'
import { countEntries, type SetCounts } from './digest.ts'
import { groupOf, type SetChange } from './phases.ts'
import type { IpvsState, PlacedEntry } from './state.ts'

interface SetsDiff {
  readonly add: readonly SetChange[]
  readonly addEntries: readonly GroupedEntries[]
  /** Entries to delete. Entries of a deleted set are deleted with it. */
  readonly removeEntries: readonly GroupedEntries[]
  readonly remove: readonly string[]
  /** The sets as the kernel has them afterwards: a set never becomes smaller. */
  readonly after: ReadonlyMap<string, Ipset>
}

interface EntryPile {
  readonly entries: IpsetEntry[]
  readonly groups: string[]
}

type EntryPiles = ReadonlyMap<string, EntryPile>

export function* diffSets(from: IpvsState, to: IpvsState): Steps<SetsDiff> {
  const { added, removed } = yield* diffEntries(from, to)
  const changes = changesOf(from, to, added)
  const add: SetChange[] = []
  for (const { set, replaces } of changes) {
    if (replaces === undefined) add.push({ set, replaces })
    else {
      const growth = growthOf({ set, ...entriesOf(from, set.name) })
      add.push({ set: growth.set, replaces: { set: replaces, growth } })
      yield
    }
  }
  return {
    add,
    addEntries: grouped(added, to.sets),
    removeEntries: grouped(removed, to.sets),
    remove: [...from.sets.keys()].filter(name => !to.sets.has(name)),
    after: setsAfter(from, to, add),
  }
}

function* diffEntries(from: IpvsState, to: IpvsState): Steps<{ added: EntryPiles; removed: EntryPiles }> {
  const added = new Map<string, EntryPile>()
  const removed = new Map<string, EntryPile>()
  const pauses = new Pauses()
  for (const [, before, after] of PersistentMap.differences(from.entries, to.entries)) {
    if (pauses.due()) yield
    // The kernel does not hold the users of an entry.
    if (before === undefined && after !== undefined) put(added, after)
    else if (before !== undefined && after === undefined) put(removed, before)
  }
  return { added, removed }
}

function put(piles: Map<string, EntryPile>, { set, entry, services }: PlacedEntry): void {
  let pile = piles.get(set)
  if (pile === undefined) {
    pile = { entries: [], groups: [] }
    piles.set(set, pile)
  }
  pile.entries.push(entry)
  pile.groups.push(groupOf(services))
}

function grouped(piles: EntryPiles, sets: ReadonlyMap<string, Ipset>): readonly GroupedEntries[] {
  return [...piles].flatMap(([name, pile]) => {
    const set = sets.get(name)
    return set === undefined ? [] : [{ set, ...pile }]
  })
}

interface SizedChange {
  readonly set: Ipset
  readonly replaces: Ipset | undefined
}

/** Gives the sets that are missing, and those too small for the added entries beside those deleted later. */
function changesOf(from: IpvsState, to: IpvsState, added: EntryPiles): readonly SizedChange[] {
  const before: SetCounts = countEntries(from)
  const touched = from.sets === to.sets ? added.keys() : to.sets.keys()
  const changes: SizedChange[] = []
  for (const name of touched) {
    const [present, wanted] = [from.sets.get(name), to.sets.get(name)]
    if (wanted === undefined) continue
    if (present === undefined || !isOfOneKind(present, wanted)) {
      // The kernel rejects a set beside one of another type with the same name. Another program may need that
      // set.
      changes.push({ set: wanted, replaces: undefined })
      continue
    }
    const count = (before.get(name) ?? 0) + (added.get(name)?.entries.length ?? 0)
    const maxElements = Math.max(wanted.maxElements, count)
    if (maxElements <= present.maxElements) continue
    const set = { ...wanted, maxElements: 2 ** Math.ceil(Math.log2(maxElements)) }
    changes.push({ set, replaces: present })
  }
  return changes
}

function isOfOneKind(a: Ipset, b: Ipset): boolean {
  return a.type === b.type && a.family === b.family
}

function setsAfter(
  from: IpvsState,
  to: IpvsState,
  changes: readonly SetChange[],
): ReadonlyMap<string, Ipset> {
  if (from.sets === to.sets && changes.length === 0) return to.sets
  const after = new Map(to.sets)
  for (const [name, wanted] of to.sets) {
    const present = from.sets.get(name)
    if (present !== undefined && isOfOneKind(present, wanted) && present.maxElements > wanted.maxElements)
      after.set(name, present)
  }
  for (const { set } of changes) after.set(set.name, set)
  for (const [name, set] of after) if (to.sets.get(name) !== set) return after
  return to.sets
}

function entriesOf({ entries }: IpvsState, name: string): EntryPile {
  const pile: EntryPile = { entries: [], groups: [] }
  for (const { set, entry, services } of entries.values()) {
    if (set !== name) continue
    pile.entries.push(entry)
    pile.groups.push(groupOf(services))
  }
  return pile
}
