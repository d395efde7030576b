import type { Octets } from '../../base/octets.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { byRolled } from './random.ts'
import { difference, includes, isSameRegion, type Region, union } from './region.ts'
import { chosen, type Field, regionOfIps } from './values.ts'

/* Entries that packets are looked up by, field by field. */

/** Values of fields in the order of the levels; below the last one what an entry holds. */
export class Tree<T> extends Map<Octets, Tree<T> | Leaf<T>> {
  /** The last level keeps how it divides a region of packets, because many classes have the same region. */
  readonly divisions = new WeakMap<Region, Division<T>>()
}

interface Division<T> {
  readonly parts: readonly { readonly below: Tree<T> | Leaf<T>; readonly part: Region }[]
  readonly rest: Region
}

class Leaf<T> {
  readonly value: T

  constructor(value: T) {
    this.value = value
  }
}

/** A tree and the fields of its levels. */
export interface Index<T> {
  readonly fields: readonly Field[]
  readonly tree: Tree<T>
}

/** Puts what `holding` gives for the value at a path. */
export function plant<T>(tree: Tree<T>, path: readonly Octets[], holding: (known: T | undefined) => T): void {
  const [key, ...rest] = path
  if (key === undefined) return
  const known = tree.get(key)
  if (rest.length > 0) {
    const below: Tree<T> = known instanceof Tree ? known : new Tree()
    plant(below, rest, holding)
    tree.set(key, below)
    return
  }
  tree.set(key, new Leaf(holding(known instanceof Leaf ? known.value : undefined)))
}

interface Descent<T> {
  readonly fields: readonly Field[]
  readonly level: number
  readonly found: (machine: ClassMachine, value: T | undefined) => Effect
}

/** Follows packets that have the fields of entries, and those of no entry. */
export function descend<T>(
  machine: ClassMachine,
  node: Tree<T> | Leaf<T> | undefined,
  at: Descent<T>,
): Effect {
  const field = at.fields[at.level]
  if (!(node instanceof Tree) || field === undefined)
    return at.found(machine, node instanceof Leaf ? node.value : undefined)
  const next = { ...at, level: at.level + 1 }
  const known = machine.known(field)
  if (typeof known === 'string') return descend(machine, node.get(known), next)
  if (known === undefined) return divide(machine, node, { field, next })
  return byRolled(
    machine,
    number => (node.has(chosen(known, number)) ? chosen(known, number) : ''),
    (key, copy) => descend(copy, node.get(key), next),
  )
}

/** Divides packets by the values of a field that lead to entries. Values that lead to the same stay together. */
function divide<T>(
  machine: ClassMachine,
  node: Tree<T>,
  { field, next }: { readonly field: Field; readonly next: Descent<T> },
): Effect {
  const region = machine.region(field)
  const isLast = next.level === next.fields.length
  const kept = isLast ? node.divisions.get(region) : undefined
  const division = kept ?? divisionOf(region, node, below => isMet(machine, below, next))
  if (isLast) node.divisions.set(region, division)
  const { parts, rest } = division
  const branches = [...parts, { below: undefined, part: rest }].flatMap(({ below, part }) =>
    part.length === 0
      ? []
      : [
          {
            narrowed: [[field, part] as const],
            take: (copy: ClassMachine) =>
              below === undefined ? next.found(copy, undefined) : descend(copy, below, next),
          },
        ],
  )
  return parts.length === 0 ? next.found(machine, undefined) : { kind: 'split', branches }
}

function divisionOf<T>(
  region: Region,
  node: Tree<T>,
  isMet: (below: Tree<T> | Leaf<T>) => boolean,
): Division<T> {
  const groups = new Map<unknown, { readonly below: Tree<T> | Leaf<T>; readonly values: Octets[] }>()
  for (const [value, below] of node) {
    if (!includes(region, value) || !isMet(below)) continue
    const key = below instanceof Leaf ? below.value : below
    const group = groups.get(key) ?? { below, values: [] }
    group.values.push(value)
    groups.set(key, group)
  }
  const parts = [...groups.values()].map(({ below, values }) => {
    const part = regionOfIps(values)
    return { below, part: isSameRegion(part, region) ? region : part }
  })
  return { parts, rest: difference(region, union(parts.flatMap(({ part }) => part))) }
}

/** Tests whether some packets of a class have the fields of an entry. */
function isMet<T>(machine: ClassMachine, node: Tree<T> | Leaf<T>, at: Descent<T>): boolean {
  const field = at.fields[at.level]
  if (!(node instanceof Tree) || field === undefined) return true
  const next = { ...at, level: at.level + 1 }
  const known = machine.known(field)
  if (typeof known === 'string') {
    const below = node.get(known)
    return below !== undefined && isMet(machine, below, next)
  }
  const region = known === undefined ? machine.region(field) : undefined
  for (const [value, below] of node)
    if ((region === undefined || includes(region, value)) && isMet(machine, below, next)) return true
  return false
}
