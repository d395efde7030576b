import { assert } from '../../base/errors.ts'
import { type Octets, prefixBits } from '../../base/octets.ts'
import type { Branch, ClassMachine, Effect } from './machine.ts'
import { byRegion, found } from './random.ts'
import { difference, type Interval, intersection, meets, prefix, type Region, union } from './region.ts'
import {
  BeyondEvaluator,
  type Candidate,
  type Field,
  type FieldPart,
  isChoice,
  type Of,
  type Wanted,
  type Wishes,
  type Word,
} from './values.ts'

/* Decisions about classes of packets: a comparison or a lookup of a field divides the class where packets differ. */

export function splitCompare(machine: ClassMachine, words: readonly Word[], expression: Of<'cmp'>): Effect {
  const { op } = expression
  const [equal, other]: readonly Effect[] = op === 'eq' ? ['next', 'break'] : ['break', 'next']
  assert(equal !== undefined && other !== undefined, 'a comparison has two outcomes')
  const wanted = wantedOf(words, expression.data, machine.addressLength)
  if (wanted === undefined) return other
  const branches: Branch[] = []
  const narrowed: (readonly [Field, Region])[] = []
  for (const [field, interval] of wanted) {
    const region = machine.region(field)
    const inside = intersection(region, [interval])
    if (inside.length === 0 && branches.length === 0) return other
    const outside = difference(region, [interval])
    if (outside.length === 0 && wanted.length === 1) return equal
    if (outside.length > 0) branches.push(branch([...narrowed, [field, outside]], other))
    if (inside.length === 0) return oneOf(branches)
    narrowed.push([field, inside])
  }
  branches.push(branch(narrowed, equal))
  return oneOf(branches)
}

function branch(narrowed: Branch['narrowed'], effect: Effect): Branch {
  return { narrowed, take: () => effect }
}

function oneOf(branches: readonly Branch[]): Effect {
  return { kind: 'split', branches }
}

/** Gives the values of fields with which the words equal `data`; undefined where no packet has them. */
function wantedOf(words: readonly Word[], data: Octets, addressLength: number): Wanted | undefined {
  const wanted: (readonly [Field, Interval])[] = []
  for (let index = 0; index < words.length; ) {
    const word = words[index]
    assert(word !== undefined, 'no hole in the words')
    const octets = data.slice(index * 4, index * 4 + 4)
    if (typeof word === 'string') {
      if (!word.startsWith(octets)) return undefined
      index++
      continue
    }
    assert(!isChoice(word), 'what follows from a number is compared by number')
    const run = runFrom(words, { first: index, data, addressLength })
    if (run === 'never') return undefined
    wanted.push([word.field, run.interval])
    index += run.words
  }
  return wanted
}

/** Combines the parts of one field that follow each other. */
function runFrom(
  words: readonly Word[],
  {
    first,
    data,
    addressLength,
  }: { readonly first: number; readonly data: Octets; readonly addressLength: number },
): 'never' | { readonly interval: Interval; readonly words: number } {
  let value = ''
  let mask = ''
  let index = first
  let field: FieldPart | undefined
  for (; index < words.length; index++) {
    const word = words[index]
    if (word === undefined || typeof word === 'string' || isChoice(word)) break
    if (field !== undefined && (word.field !== field.field || word.at !== value.length)) break
    field ??= word
    const octets = data.slice(index * 4, index * 4 + word.mask.length)
    // A shorter comparison reads the first octets of a word.
    mask += word.mask.slice(0, octets.length)
    value += octets
    if (/[^\0]/.test(data.slice(index * 4 + word.mask.length, index * 4 + 4))) return 'never'
  }
  assert(field !== undefined, 'a run begins with a part of a field')
  if (field.at !== 0) throw new BeyondEvaluator(`cannot trace the end of a field (${field.field})`)
  const bits = prefixBits(mask)
  if (bits === undefined) throw new BeyondEvaluator(`cannot trace single bits of a field (${field.field})`)
  for (let at = 0; at < value.length; at++)
    if ((value.charCodeAt(at) & ~mask.charCodeAt(at)) !== 0) return 'never'
  const whole = value.padEnd(FIELD_LENGTHS[field.field] ?? addressLength, '\0')
  return { interval: prefix(whole, bits), words: index - first }
}

const FIELD_LENGTHS: Readonly<Partial<Record<Field, number>>> = {
  protocol: 1,
  sourcePort: 2,
  destinationPort: 2,
  interface: 16,
  sourceType: 4,
  destinationType: 4,
}

type Wish = Wishes['wishes'][number]

/** Divides a class by a lookup: a part for each element that packets of the class find, and the rest. */
export function splitLookup(machine: ClassMachine, words: readonly Word[], expression: Of<'lookup'>): Effect {
  const { set } = expression
  const candidates = machine.sets.findAmong(set, words)
  if (candidates.length === 0) return found(machine, expression, undefined)
  const kept = wishesOf(machine, candidates, words)
  const [only, second] = kept.fields()
  const isSet = expression.dreg === undefined || expression.inverted
  if (isSet && only !== undefined && second === undefined)
    // Members of a set have no data that distinguishes them.
    return byRegion(machine, only, (isIn, its) => found(its, expression, isIn ? null : undefined))
  if (kept.fields().some(([field, its]) => intersection(machine.region(field), its).length === 0))
    return found(machine, expression, undefined)
  const wishes = kept.wishes.filter(({ wanted }) =>
    wanted.every(([field, interval]) => meets(machine.region(field), interval)),
  )
  if (wishes.length === 0) return found(machine, expression, undefined)
  const branches: Branch[] = []
  divide({ machine, expression, branches }, wishes, { depth: 0, narrowed: [] })
  return { kind: 'split', branches }
}

type Members = readonly [Field, Region]

class KeyWishes implements Wishes {
  readonly wishes: readonly Wish[]
  #fields: readonly Members[] | undefined

  constructor(candidates: readonly Candidate[], words: readonly Word[], addressLength: number) {
    this.wishes = candidates.flatMap((candidate): readonly Wish[] => {
      const wanted = wantedOf(words, candidate.key, addressLength)
      return wanted === undefined ? [] : [{ wanted, candidate }]
    })
  }

  fields(): readonly Members[] {
    this.#fields ??= (this.wishes[0]?.wanted ?? []).map(([field], depth) => [
      field,
      union(this.wishes.flatMap(({ wanted }) => wanted[depth]?.[1] ?? [])),
    ])
    return this.#fields
  }
}

function wishesOf(machine: ClassMachine, candidates: readonly Candidate[], words: readonly Word[]): Wishes {
  const { wishes } = machine.sets
  const byFields = wishes.get(candidates) ?? new Map<string, Wishes>()
  wishes.set(candidates, byFields)
  const fields = words.map(fieldText).join()
  const kept = byFields.get(fields) ?? new KeyWishes(candidates, words, machine.addressLength)
  byFields.set(fields, kept)
  return kept
}

/** Candidates are equal where words are known. */
function fieldText(word: Word): string {
  return typeof word === 'string' || isChoice(word) ? '' : `${word.field} ${word.at} ${word.mask}`
}

function missing(expression: Of<'lookup'>, narrowed: Branch['narrowed']): Branch {
  return { narrowed, take: copy => found(copy, expression, undefined) }
}

interface Division {
  readonly machine: ClassMachine
  readonly expression: Of<'lookup'>
  readonly branches: Branch[]
}

/** Divides by one field after the other. Elements that want the same of a field share a part. */
function divide(
  division: Division,
  wishes: readonly Wish[],
  { depth, narrowed }: { readonly depth: number; readonly narrowed: Branch['narrowed'] },
): void {
  const { machine, expression, branches } = division
  const [first] = wishes
  const field = first?.wanted[depth]?.[0]
  if (first === undefined || field === undefined) {
    const data = first === undefined ? undefined : (first.candidate.data ?? null)
    branches.push({ narrowed, take: copy => found(copy, expression, data) })
    return
  }
  const region = machine.region(field)
  const groups = groupsAt(wishes, depth, region)
  const parts = union([...groups.values()].flatMap(({ region: part }) => part))
  const isLast = first.wanted.length === depth + 1
  if (isLast && (expression.dreg === undefined || expression.inverted))
    // Members of a set have no data that distinguishes them.
    branches.push({
      narrowed: [...narrowed, [field, parts]],
      take: copy => found(copy, expression, null),
    })
  else
    for (const { region: part, wishes: its } of groups.values())
      divide(division, its, { depth: depth + 1, narrowed: [...narrowed, [field, part]] })
  const rest = difference(region, parts)
  if (rest.length > 0) branches.push(missing(expression, [...narrowed, [field, rest]]))
}

interface Group {
  readonly region: Region
  readonly wishes: Wish[]
}

function groupsAt(wishes: readonly Wish[], depth: number, region: Region): ReadonlyMap<string, Group> {
  const groups = new Map<string, Group>()
  for (const wish of wishes) {
    const interval = wish.wanted[depth]?.[1]
    if (interval === undefined) continue
    const key = interval.from + interval.to
    const group = groups.get(key)
    if (group !== undefined) {
      group.wishes.push(wish)
      continue
    }
    const part = intersection(region, [interval])
    if (part.length > 0) groups.set(key, { region: part, wishes: [wish] })
  }
  return groups
}
