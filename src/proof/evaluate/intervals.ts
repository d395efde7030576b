import { assert } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import type { Branch, ClassMachine, Effect } from './machine.ts'
import { byRolled, found } from './random.ts'
import type { Range } from './ranges.ts'
import { difference, type Interval, intersection, meets, type Region, union } from './region.ts'
import {
  BeyondEvaluator,
  type Field,
  type FieldPart,
  isChoice,
  type Of,
  octetsAt,
  type Value,
  type Word,
} from './values.ts'

/* Lookups among intervals, which only other programs have in their sets. */

type Wanted = readonly (readonly [Field, Interval[]])[]
/** The field values that find elements with equal data. */
interface Wish extends Pick<Range, 'data'> {
  readonly wanted: Wanted
}

export function lookupRange(machine: ClassMachine, key: Value, expression: Of<'lookup'>): Effect {
  const { sets } = machine
  const ranges = sets.ranges(expression.set)
  const at = (octets: Octets) => ranges.findIndex(its => has(its, octets))
  const effectAt = (index: number, its: ClassMachine) => found(its, expression, ranges[index]?.data)
  if (typeof key === 'string') return effectAt(at(key), machine)
  if (!key.some(isChoice)) return oneByOne(machine, wishesOf(machine, key, ranges), expression)
  const { keyLength } = sets.setOf(expression.set)
  const indexOf = (number: number) => {
    const octets = octetsAt(key, number, keyLength)
    if (typeof octets !== 'string')
      throw new BeyondEvaluator('cannot trace intervals of a random number together with a field')
    return at(octets)
  }
  return byRolled(machine, indexOf, effectAt)
}

/** Intervals of a single field that find equal data are one wish. */
function wishesOf(machine: ClassMachine, words: readonly Word[], ranges: readonly Range[]): readonly Wish[] {
  const wishes = new Map<string, Wish>()
  for (const [index, range] of ranges.entries()) {
    const wanted = wantedOf(machine, words, range)
    if (wanted === undefined) continue
    const id = wanted.length === 1 ? JSON.stringify(range.data) : `${index}`
    const known = wishes.get(id)
    if (known === undefined) wishes.set(id, { wanted, data: range.data })
    else known.wanted[0]?.[1].push(...(wanted[0]?.[1] ?? []))
  }
  return [...wishes.values()]
}

function oneByOne(machine: ClassMachine, wishes: readonly Wish[], expression: Of<'lookup'>): Effect {
  const [wish, ...rest] = wishes
  if (wish === undefined) return found(machine, expression, undefined)
  // Overlapping fields of more elements than these divide a class too often.
  if (wish.wanted.length > 1 && wishes.length > 64)
    throw new BeyondEvaluator('cannot trace so many intervals of several fields')
  const branches: Branch[] = []
  const inside: (readonly [Field, Region])[] = []
  for (const [field, intervals] of wish.wanted) {
    const [region, wanted] = [machine.region(field), union(intervals)]
    add(branches, [...inside, [field, difference(region, wanted)]], its => oneByOne(its, rest, expression))
    inside.push([field, intersection(region, wanted)])
  }
  add(branches, inside, its => found(its, expression, wish.data))
  return { kind: 'split', branches }
}

function add(branches: Branch[], narrowed: Branch['narrowed'], take: Branch['take']): void {
  if (narrowed.every(([, region]) => region.length > 0)) branches.push({ narrowed, take })
}

/** Gives what fields of packets must be in; undefined where no packet of the class is in the interval. */
function wantedOf(machine: ClassMachine, words: readonly Word[], { from, to }: Range): Wanted | undefined {
  const wanted: (readonly [Field, Interval[]])[] = []
  for (let index = 0; index < words.length; ) {
    const word = words[index] ?? ''
    const at = index * 4
    if (typeof word === 'string') {
      if (word < padded(from, at) || word > padded(to, at)) return undefined
      index++
      continue
    }
    assert(!isChoice(word), 'what follows from a number is looked up by number')
    const { field } = word
    const region = machine.region(field)
    const length = region[0]?.from.length ?? 0
    const [size, mask] = [Math.ceil(length / 4), '\xff'.repeat(Math.min(length, 4))]
    const isWhole = Array.from({ length: size }, (_, part) => words[index + part]).every(
      (its, part) => isPart(its) && its.field === field && its.at === part * 4 && its.mask === mask,
    )
    if (!isWhole) throw new BeyondEvaluator(`cannot trace an interval of a part of a field (${field})`)
    const interval = { from: from.slice(at, at + length), to: to.slice(at, at + length) }
    if (!meets(region, interval)) return undefined
    wanted.push([field, [interval]])
    index += size
  }
  return wanted
}

function isPart(word: Word | undefined): word is FieldPart {
  return word !== undefined && typeof word !== 'string' && !isChoice(word)
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
