import { PersistentMap } from '../../base/collections.ts'
import { NFT_SET_EVAL } from './constants.ts'
import type { Element, ElementData, ElementGroup, NftSet, Table } from './state.ts'
import type { OwnedElements } from './transaction.ts'

/** The group of elements whose removal waits for the next transaction. No Service, and so no wanted state, has it. */
export const LATE_GROUP = '\0late'

export interface DiffOptions {
  /**
   * Sets with elements that a packet may still reach through another set that it read a moment before. Elements that
   * leave a group which still exists are removed one transaction later, as are chains that nothing wanted uses any
   * more.
   */
  readonly lateSets: ReadonlySet<string>
  /** Names the elements of late sets that leave at once: a packet that misses one reads the first set again. */
  readonly leavesAtOnce?: (element: Element) => boolean
}

interface SetChanges {
  readonly set: NftSet
  /** Elements to delete, and the old form of elements to replace. */
  readonly remove: OwnedElements
  /** New elements, and the new form of elements to replace; added after `remove` is deleted. */
  readonly add: OwnedElements
}

interface ElementChanges {
  /** Sets in the order of additions: those that a packet reads last come first. */
  readonly sets: readonly SetChanges[]
  /** Elements that are no longer wanted, and stay until the next transaction. */
  readonly late: ElementGroup
  /** Chains that the changed, removed or waiting elements of `from` lead to. */
  readonly referenced: ReadonlySet<string>
}

interface Pile extends OwnedElements {
  readonly elements: Element[]
  readonly groups: string[]
}

interface Collected {
  readonly set: NftSet
  readonly removed: Pile
  readonly added: Pile
}

const NO_ELEMENTS: ElementGroup = []
const NONE: OwnedElements = { elements: [], groups: [] }

/**
 * Compares the elements of two tables that declare equal sets (or none in `from`). It skips elements of sets that
 * packets fill, and elements of sets that only `from` has: the kernel removes them with their set.
 */
export function diffElements(
  from: Table,
  to: Table,
  { lateSets, leavesAtOnce }: DiffOptions,
): ElementChanges {
  const piles: Piles = { sets: to.sets, collected: new Map(), referenced: new Set() }
  for (const [group, before, after] of PersistentMap.differences(from.elements, to.elements))
    collect(group, before ?? NO_ELEMENTS, after ?? NO_ELEMENTS, piles)
  const late: Element[] = []
  const waits = (element: Element, group: string) =>
    lateSets.has(element.set) && leavesAtOnce?.(element) !== true && to.elements.has(group)
  const sets: SetChanges[] = []
  for (const name of to.sets.keys()) {
    const pile = piles.collected.get(name)
    if (pile !== undefined) sets.push(settle(pile, { waits, late }))
  }
  sets.sort((a, b) => Number(lateSets.has(b.set.name)) - Number(lateSets.has(a.set.name)))
  return { sets, late, referenced: piles.referenced }
}

export function filledByPackets(set: NftSet): boolean {
  return (set.flags & NFT_SET_EVAL) !== 0
}

function sameElementData(a: ElementData, b: ElementData): boolean {
  if (a === b) return true
  if (typeof a !== 'object' || typeof b !== 'object') return false
  return a.code === b.code && a.chain === b.chain
}

function emptyPile(): Pile {
  return { elements: [], groups: [] }
}

function put(pile: Pile, element: Element, group: string): void {
  pile.elements.push(element)
  pile.groups.push(group)
}

/** Elements that are no longer wanted, and whose removal waits. */
interface Late {
  readonly waits: (element: Element, group: string) => boolean
  readonly late: Element[]
}

interface Piles {
  readonly sets: Table['sets']
  /** Collected elements by set; only sets with changes. */
  readonly collected: Map<string, Collected>
  readonly referenced: Set<string>
}

/** Returns the pile of a set; undefined if its elements are not compared. */
function pileOf({ sets, collected }: Piles, name: string): Collected | undefined {
  const known = collected.get(name)
  const set = sets.get(name)
  if (known !== undefined || set === undefined || filledByPackets(set)) return known
  const pile: Collected = { set, removed: emptyPile(), added: emptyPile() }
  collected.set(name, pile)
  return pile
}

/**
 * Puts the difference between two versions of a group on the piles of its sets, without their common beginning and
 * end.
 */
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
  for (const element of before.slice(start, before.length - ends)) {
    if (typeof element.data === 'object' && element.data.chain !== undefined)
      piles.referenced.add(element.data.chain)
    const pile = pileOf(piles, element.set)
    if (pile !== undefined) put(pile.removed, element, group)
  }
  for (const element of after.slice(start, after.length - ends)) {
    const pile = pileOf(piles, element.set)
    if (pile !== undefined) put(pile.added, element, group)
  }
}

export function sameElement(a: Element | undefined, b: Element | undefined): boolean {
  if (a === b) return true
  if (a === undefined || b === undefined) return false
  return a.set === b.set && a.key === b.key && sameContent(a, b)
}

function sameContent(a: Element, b: Element): boolean {
  return a.comment === b.comment && sameElementData(a.data, b.data)
}

/** Matches elements that left one group with elements that entered another, so that only real differences remain. */
function settle({ set, removed, added }: Collected, late: Late): SetChanges {
  // A load and an unload have nothing to match, so they need no index.
  if (removed.elements.length === 0) return { set, remove: NONE, add: added }
  const remove = emptyPile()
  if (added.elements.length === 0) {
    for (const i of removed.elements.keys()) leave(removed, i, { remove, late })
    return { set, remove, add: NONE }
  }
  const unmatched = new Map<string, number>()
  const add = emptyPile()
  for (const [i, { key }] of removed.elements.entries()) unmatched.set(key, i)
  for (const [i, element] of added.elements.entries()) {
    const at = unmatched.get(element.key)
    const old = at === undefined ? undefined : removed.elements[at]
    if (at !== undefined && old !== undefined) {
      unmatched.delete(element.key)
      if (sameContent(old, element)) continue
      put(remove, old, removed.groups[at] ?? '')
    }
    put(add, element, added.groups[i] ?? '')
  }
  for (const i of unmatched.values()) leave(removed, i, { remove, late })
  return { set, remove, add }
}

function leave(removed: Pile, i: number, to: { readonly remove: Pile; readonly late: Late }): void {
  const element = removed.elements[i]
  const group = removed.groups[i]
  if (element === undefined || group === undefined) return
  if (to.late.waits(element, group)) to.late.late.push(element)
  else put(to.remove, element, group)
}
