import type { Octets } from '../../base/octets.ts'
import { difference, type Interval, intersection, type Region, union } from '../../base/region.ts'
import type { ElementData } from '../nft/state.ts'
import type { Branch, ClassMachine, Effect } from './machine.ts'
import { byRolled, found } from './random.ts'
import type { Range } from './ranges.ts'
import { BeyondEvaluator, type Field, isChoice, type Of, octetsAt, type Value, type Word } from './values.ts'

/* Lookups among intervals, which only other programs have in their sets. */

/** Overlapping fields of more elements than these divide a class too often. */
const RANGES_MAX = 64

type Wanted = readonly (readonly [Field, Interval])[]

export function lookupRange(machine: ClassMachine, key: Value, expression: Of<'lookup'>): Effect {
  const { sets } = machine
  const ranges = sets.ranges(expression.set)
  const at = (octets: Octets) => ranges.findIndex(its => has(its, octets))
  const effectAt = (index: number, its: ClassMachine) => found(its, expression, dataAt(ranges, index))
  if (typeof key === 'string') return effectAt(at(key), machine)
  const { keyLength } = sets.setOf(expression.set)
  if (key.some(isChoice)) {
    const indexOf = (number: number) => {
      const octets = octetsAt(key, number, keyLength)
      if (typeof octets !== 'string')
        throw new BeyondEvaluator('cannot trace intervals of what follows from a number beside a field')
      return at(octets)
    }
    return byRolled(machine, indexOf, effectAt)
  }
  const wishes = ranges.flatMap(range => {
    const wanted = wantedOf(machine, key, range)
    return wanted === undefined ? [] : [{ wanted, data: range.data }]
  })
  const fields = new Set(wishes.flatMap(({ wanted }) => wanted.map(([field]) => field)))
  const [only, second] = fields
  if (only === undefined || second !== undefined) return oneByOne(machine, wishes, expression)
  return byField(machine, { field: only, wishes, expression })
}

interface Wish {
  readonly wanted: Wanted
  readonly data: ElementData
}

function dataAt(ranges: readonly Range[], index: number): ElementData | null {
  const range = ranges[index]
  return range === undefined ? undefined : (range.data ?? null)
}

/** Divides a class by one field: into those that find equal data, and the others. */
function byField(
  machine: ClassMachine,
  { field, wishes, expression }: { field: Field; wishes: readonly Wish[]; expression: Of<'lookup'> },
): Effect {
  const byData = new Map<string, { readonly data: ElementData; readonly intervals: Interval[] }>()
  for (const { wanted, data } of wishes) {
    const key = JSON.stringify(data ?? null)
    const group = byData.get(key) ?? { data, intervals: [] }
    byData.set(key, group)
    for (const [, interval] of wanted) group.intervals.push(interval)
  }
  const branches: Branch[] = []
  let rest = machine.region(field)
  for (const { data, intervals } of byData.values()) {
    const region = union(intervals)
    add(branches, [[field, intersection(rest, region)]], its => found(its, expression, data ?? null))
    rest = difference(rest, region)
  }
  add(branches, [[field, rest]], its => found(its, expression, undefined))
  return { kind: 'split', branches }
}

/** Divides a class by one element after the other. */
function oneByOne(machine: ClassMachine, wishes: readonly Wish[], expression: Of<'lookup'>): Effect {
  if (wishes.length > RANGES_MAX)
    throw new BeyondEvaluator('cannot trace so many intervals of several fields')
  const [wish, ...rest] = wishes
  if (wish === undefined) return found(machine, expression, undefined)
  const branches: Branch[] = []
  const inside: (readonly [Field, Region])[] = []
  for (const [field, interval] of wish.wanted) {
    const region = machine.region(field)
    const outside = difference(region, [interval])
    add(branches, [...inside, [field, outside]], its => oneByOne(its, rest, expression))
    inside.push([field, intersection(region, [interval])])
  }
  add(branches, inside, its => found(its, expression, wish.data ?? null))
  return { kind: 'split', branches }
}

function add(branches: Branch[], narrowed: Branch['narrowed'], take: Branch['take']): void {
  if (narrowed.every(([, region]) => region.length > 0)) branches.push({ narrowed, take })
}

/** Gives what fields of packets must be in; undefined where no packet of the class is in the interval. */
function wantedOf(machine: ClassMachine, words: readonly Word[], { from, to }: Range): Wanted | undefined {
  const wanted: (readonly [Field, Interval])[] = []
  for (let index = 0; index < words.length; index++) {
    const word = words[index]
    const at = index * 4
    if (typeof word === 'string') {
      if (word < padded(from, at) || word > padded(to, at)) return undefined
      continue
    }
    if (word === undefined || isChoice(word))
      throw new BeyondEvaluator('cannot trace this key of an interval')
    const { field } = word
    const length = machine.region(field)[0]?.from.length ?? 0
    const before = words[index - 1]
    const isFurther = before !== undefined && typeof before !== 'string' && !isChoice(before)
    if (word.at !== 0 && !(isFurther && before.field === field && before.at === word.at - 4))
      throw new BeyondEvaluator(`cannot trace an interval of a part of a field (${field})`)
    if (word.at === 0)
      wanted.push([field, { from: from.slice(at, at + length), to: to.slice(at, at + length) }])
    if (/[^\xff]/.test(word.mask)) throw new BeyondEvaluator(`cannot trace an interval of bits (${field})`)
  }
  return wanted.every(([field, interval]) => intersection(machine.region(field), [interval]).length > 0)
    ? wanted
    : undefined
}

function has({ from, to, isConcatenated }: Range, octets: Octets): boolean {
  if (!isConcatenated) return from <= octets && octets <= to
  for (let at = 0; at < octets.length; at += 4) {
    const word = padded(octets, at)
    if (word < padded(from, at) || word > padded(to, at)) return false
  }
  return true
}

function padded(octets: Octets, at: number): Octets {
  return octets.slice(at, at + 4).padEnd(4, '\0')
}
