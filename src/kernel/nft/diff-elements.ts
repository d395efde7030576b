import { PersistentMap } from '../../base/persistent-map.ts'
import type { Steps } from '../../base/steps.ts'
import { NFT_SET_EVAL } from './constants.ts'
import type { OwnedElement } from './operation.ts'
import type { Element, ElementData, ElementGroup, NftSet, Table } from './state.ts'

/** Holds the elements whose removal waits for the next transaction. No Service, and so no goal, has this group. */
export const LATE_GROUP = '\0late'

/** What becomes of the elements of one set. */
export interface SetChanges {
  readonly set: NftSet
  /** Elements to delete, and the old form of those to replace. */
  readonly remove: OwnedElement[]
  /** New elements, and the new form of those to replace. To be added after `remove` is deleted. */
  readonly add: OwnedElement[]
}

export interface ElementChanges {
  /** Sets with additions first that a packet reads last. */
  readonly sets: readonly SetChanges[]
  /** Elements that nobody wants, and that stay until the next transaction. */
  readonly late: ElementGroup
  /** Chains to which elements of `from` lead that change, go, or wait to go. */
  readonly referenced: ReadonlySet<string>
}

/** Groups or elements between two offers to pause: well below a millisecond of work. */
const GROUPS_PER_STEP = 256
const ELEMENTS_PER_STEP = 4096

interface Collected {
  readonly set: NftSet
  readonly removed: OwnedElement[]
  readonly added: OwnedElement[]
}

/**
 * Compares the elements of two tables that declare equal sets (or none in `from`). Elements of sets that packets fill
 * are left out on both sides, and so are those of sets that only `from` has: they go with their set.
 */
export function* diffElements(from: Table, to: Table, lateSets: ReadonlySet<string>): Steps<ElementChanges> {
  const collected = new Map<string, Collected>()
  for (const set of to.sets.values()) {
    if (!filledByPackets(set)) collected.set(set.name, { set, removed: [], added: [] })
  }
  const referenced = new Set<string>()
  let groups = 0
  for (const [group, before, after] of PersistentMap.differences(from.elements, to.elements)) {
    collect(group, before ?? [], after ?? [], { collected, referenced })
    if (++groups % GROUPS_PER_STEP === 0) yield
  }
  const late: Element[] = []
  const takes = ({ element, group }: OwnedElement) => {
    const waits = lateSets.has(element.set) && to.elements.has(group)
    if (waits) late.push(element)
    return waits
  }
  const sets: SetChanges[] = []
  for (const pile of collected.values()) sets.push(yield* settle(pile, { takes }))
  sets.sort((a, b) => Number(lateSets.has(b.set.name)) - Number(lateSets.has(a.set.name)))
  return { sets, late, referenced }
}

export function filledByPackets(set: NftSet): boolean {
  return (set.flags & NFT_SET_EVAL) !== 0
}

export function sameElementData(a: ElementData, b: ElementData): boolean {
  if (a === b) return true
  if (typeof a !== 'object' || typeof b !== 'object') return false
  return a.code === b.code && a.chain === b.chain
}

/** Takes an element that nobody wants, if it is one whose removal has to wait. */
interface Late {
  readonly takes: (gone: OwnedElement) => boolean
}

interface Piles {
  readonly collected: ReadonlyMap<string, Collected>
  readonly referenced: Set<string>
}

/** Puts what differs between two versions of a group on the piles of its sets, less what both begin or end with. */
function collect(group: string, before: ElementGroup, after: ElementGroup, piles: Piles): void {
  let start = 0
  let ends = 0
  const shorter = Math.min(before.length, after.length)
  while (start < shorter && sameElement(before[start], after[start])) start++
  while (
    ends < shorter - start &&
    sameElement(before[before.length - 1 - ends], after[after.length - 1 - ends])
  )
    ends++
  for (let i = start; i < before.length - ends; i++) {
    const element = before[i]
    if (element === undefined) continue
    if (typeof element.data === 'object' && element.data.chain !== undefined)
      piles.referenced.add(element.data.chain)
    piles.collected.get(element.set)?.removed.push({ element, group })
  }
  for (let i = start; i < after.length - ends; i++) {
    const element = after[i]
    if (element !== undefined) piles.collected.get(element.set)?.added.push({ element, group })
  }
}

function sameElement(a: Element | undefined, b: Element | undefined): boolean {
  if (a === b) return true
  if (a === undefined || b === undefined) return false
  return a.set === b.set && a.key === b.key && sameContent(a, b)
}

function sameContent(a: Element, b: Element): boolean {
  return a.comment === b.comment && sameElementData(a.data, b.data)
}

/** Matches what left one group with what entered another, so that only real differences are left. */
function* settle(pile: Collected, late: Late): Steps<SetChanges> {
  const { set, removed, added } = pile
  // A load and an unload have nothing to match: no index is made for them.
  if (removed.length === 0) return { set, remove: [], add: added }
  if (added.length === 0) return { set, remove: removed.filter(gone => !late.takes(gone)), add: [] }
  const unmatched = new Map<string, OwnedElement>()
  const remove: OwnedElement[] = []
  const add: OwnedElement[] = []
  let elements = 0
  for (const gone of removed) {
    unmatched.set(gone.element.key, gone)
    if (++elements % ELEMENTS_PER_STEP === 0) yield
  }
  for (const entry of added) {
    if (++elements % ELEMENTS_PER_STEP === 0) yield
    const old = unmatched.get(entry.element.key)
    if (old !== undefined) {
      unmatched.delete(entry.element.key)
      if (sameContent(old.element, entry.element)) continue
      remove.push(old)
    }
    add.push(entry)
  }
  for (const gone of unmatched.values()) if (!late.takes(gone)) remove.push(gone)
  return { set, remove, add }
}
