import { assert } from '../../base/errors.ts'
import { type Octets, u32host } from '../../base/octets.ts'
import type { ElementData } from '../nft/state.ts'
import {
  type Answered,
  type Asked,
  areEqual,
  areSame,
  BeyondEvaluator,
  type Branch,
  chosen,
  type Effect,
  found,
  isChoice,
  type Known,
  type Machine,
  type Memo,
  type Of,
  type Roll,
  type SetAccess,
  store,
  type Value,
  type Word,
} from './machine.ts'

/*
 * Decisions about classes of packets that rolled a random number. A class goes on as one while its packets meet the same
 * effects, and its registers hold what follows from each number.
 */

/** More numbers at once are beyond the evaluator. Lists of endpoints have fewer slots. */
export const ROLLED_MAX = 1 << 20
/** Rules use few moduli, and mostly small ones. */
const ROLLS_MAX = 256
const KEPT_MAX = 4096

/** Gives all numbers that a roll may give. Equal rolls are one object, so that what follows from them is kept. */
export function rollOf({ rolls }: Memo, modulus: number, offset: number): Roll {
  if (modulus > ROLLED_MAX) throw new BeyondEvaluator(`cannot trace random numbers below ${modulus}`)
  const key = `${modulus} ${offset}`
  const known = rolls.get(key)
  if (known !== undefined) return known
  const rolled = Array.from({ length: modulus }, (_, number) => number)
  const roll = { rolled, word: { choices: rolled.map(number => u32host(number + offset)) } }
  if (rolls.size >= ROLLS_MAX) rolls.clear()
  if (modulus <= KEPT_MAX) rolls.set(key, roll)
  return roll
}

type Take = (machine: Machine) => Effect
type TakeNumber = (machine: Machine, number: number) => Effect

/** Divides a class into one for each number that its packets rolled. */
export function eachRolled({ rolled = [] }: Machine, again: TakeNumber): Effect {
  const branches = rolled.map(
    (number): Branch => ({
      narrowed: [],
      rolled: [number],
      take: settledAt(number, again),
    }),
  )
  return { kind: 'split', branches }
}

function settledAt(number: number, again: TakeNumber): Take {
  return machine => {
    machine.settle(number)
    return again(machine, number)
  }
}

interface Group {
  readonly rolled: readonly number[]
  readonly take: Take
}

/** Divides a class by the effects that its numbers lead to. One effect for all does not divide it. */
function byEffect(machine: Machine, groups: Iterable<Group>): Effect {
  const all: Group[] = []
  for (const group of groups) if (group.rolled.length > 0) all.push(group)
  const [only, second] = all
  if (only !== undefined && second === undefined) return only.take(machine)
  const branches = all.map(({ rolled, take }): Branch => ({ narrowed: [], rolled, take }))
  return { kind: 'split', branches }
}

/** Divides a class by a property of its numbers. */
export function byRolled<T extends string | number | boolean>(
  machine: Machine,
  propertyOf: (number: number) => T,
  effectOf: (property: T, machine: Machine) => Effect,
): Effect {
  const groups = new Map<T, Group & { readonly rolled: number[] }>()
  for (const number of machine.rolled ?? []) {
    const property = propertyOf(number)
    const group = groups.get(property)
    if (group !== undefined) group.rolled.push(number)
    else groups.set(property, { rolled: [number], take: copy => effectOf(property, copy) })
  }
  return byEffect(machine, groups.values())
}

/** Gives the words of one number: octets where no field of the packet is among them. */
function octetsAt(words: readonly Word[], number: number, length: number): Value {
  let octets = ''
  for (const word of words) {
    if (typeof word === 'string') octets += word
    else if (isChoice(word)) octets += chosen(word, number)
    else return words.map(its => (isChoice(its) ? chosen(its, number) : its))
  }
  return octets.length === length ? octets : octets.slice(0, length)
}

export function compareRolled(
  machine: Machine,
  words: readonly Word[],
  { op, data, again }: Pick<Of<'cmp'>, 'op' | 'data'> & { readonly again: Take },
): Effect {
  if (words.some(word => typeof word !== 'string' && !isChoice(word))) return eachRolled(machine, again)
  return byRolled(
    machine,
    number => (octetsAt(words, number, data.length) === data) === (op === 'eq'),
    isTrue => (isTrue ? 'next' : 'break'),
  )
}

/** Looks up a key for each number. Those that find data go on as one. */
export function lookupRolled(
  machine: Machine,
  words: readonly Word[],
  { expression, again }: { readonly expression: Of<'lookup'>; readonly again: Take },
): Effect {
  const { sets, rolled = [] } = machine
  const { lookups } = machine.memo
  const bySet = lookups.get(sets) ?? new Map<string, Answered>()
  lookups.set(sets, bySet)
  const last = bySet.get(expression.set)
  const asked = { words, rolled, expression }
  const its = last !== undefined && isSame(last, asked) ? last : answer(sets, asked)
  bySet.set(expression.set, its)
  const { missing, members, holders, verdicts, divided } = its
  if (missing.length === rolled.length) return found(machine, expression, undefined)
  if (holders.length === rolled.length) return store(machine, registerOf(expression), its.stored)
  return byEffect(machine, [
    { rolled: missing, take: copy => found(copy, expression, undefined) },
    { rolled: members, take: copy => found(copy, expression, null) },
    { rolled: holders, take: copy => store(copy, registerOf(expression), its.stored) },
    ...[...verdicts].map(([data, numbers]) => ({
      rolled: numbers,
      take: (copy: Machine) => found(copy, expression, data),
    })),
    ...divided.map(number => ({ rolled: [number], take: settledAt(number, again) })),
  ])
}

function registerOf({ dreg, set }: Of<'lookup'>): number {
  assert(typeof dreg === 'number', `${set} is not a data map`)
  return dreg
}

function isSame(a: Asked, b: Asked): boolean {
  return a.expression === b.expression && areEqual(a.rolled, b.rolled) && areSame(a.words, b.words)
}

function answer(sets: SetAccess, asked: Asked): Answered {
  const { words, rolled, expression } = asked
  const { set, dreg, inverted } = expression
  const { keyLength } = sets.setOf(set)
  const missing: number[] = []
  const members: number[] = []
  const holders: number[] = []
  const held: Octets[] = []
  const divided: number[] = []
  const verdicts = new Map<ElementData | null, number[]>()
  for (const number of rolled) {
    const key = octetsAt(words, number, keyLength)
    if (typeof key !== 'string') {
      ;(sets.findAmong(set, key).length === 0 ? missing : divided).push(number)
      continue
    }
    const data = sets.find(set, key)
    if (data === undefined) missing.push(number)
    else if (inverted || dreg === undefined) members.push(number)
    else if (typeof data === 'string') {
      while (held.length < number) held.push('')
      held.push(data)
      holders.push(number)
    } else {
      const known = verdicts.get(data)
      if (known === undefined) verdicts.set(data, [number])
      else known.push(number)
    }
  }
  return { ...asked, missing, members, holders, stored: wordsByNumber(held), verdicts, divided }
}

function wordsByNumber(data: readonly Octets[]): readonly Word[] {
  const length = data.at(-1)?.length ?? 0
  if (length === 4) return [{ choices: data }]
  const words: Word[] = []
  for (let at = 0; at < length; at += 4)
    words.push({ choices: data.map(its => its.slice(at, at + 4).padEnd(4, '\0')) })
  return words
}

/** Reads octets that no field of the packet is part of. */
export function knownOf(value: Value, what: string, length: number, { rolled = [] }: Machine): Known {
  if (typeof value === 'string') return value
  if (value.some(word => typeof word !== 'string' && !isChoice(word)))
    throw new BeyondEvaluator(`cannot trace ${what} that depends on a field of the packet`)
  const [only, second] = value
  if (second === undefined && only !== undefined && isChoice(only) && length === 4) return only
  const choices: Octets[] = []
  for (const number of rolled) {
    while (choices.length < number) choices.push('')
    const octets = octetsAt(value, number, length)
    choices.push(typeof octets === 'string' ? octets : '')
  }
  return { choices }
}

/** Gives what follows from the numbers of `from`, for each of `times` further numbers. */
export function repeated<T>(all: readonly T[], from: readonly number[], times: number): readonly T[] {
  const repeats: T[] = []
  for (const number of from) {
    const its = all[number]
    if (its === undefined) continue
    for (let count = 0; count < times; count++) repeats.push(its)
  }
  return repeats
}
