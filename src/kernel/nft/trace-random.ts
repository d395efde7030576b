import { assert } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import {
  BeyondEvaluator,
  type Branch,
  chosen,
  type Effect,
  found,
  isChoice,
  type Known,
  type Machine,
  type Of,
  store,
  type Value,
  type Word,
} from './trace-machine.ts'

/*
 * Decisions about classes of packets that rolled a random number. A class goes on as one while its packets meet the same
 * effects, and its registers hold what follows from each number.
 */

/** Larger numbers are beyond the evaluator. Lists of endpoints have fewer slots. */
const MODULUS_MAX = 1 << 20

/** Gives all numbers that a roll may give. */
export function rollsBelow(modulus: number): readonly number[] {
  if (modulus > MODULUS_MAX) throw new BeyondEvaluator(`cannot trace random numbers below ${modulus}`)
  return Array.from({ length: modulus }, (_, number) => number)
}

type Take = (machine: Machine) => Effect

/** Divides a class into one for each number that its packets rolled. */
export function eachRolled({ rolled = [] }: Machine, again: Take): Effect {
  const branches = rolled.map(
    (number): Branch => ({
      probability: 1 / rolled.length,
      narrowed: [],
      rolled: [number],
      take: settledAt(number, again),
    }),
  )
  return { kind: 'split', branches }
}

function settledAt(number: number, again: Take): Take {
  return machine => {
    machine.settle?.(number)
    return again(machine)
  }
}

interface Group {
  readonly rolled: number[]
  readonly take: Take
}

/** Divides a class by the effects that its numbers lead to. One effect for all does not divide it. */
function byEffect(machine: Machine, groups: Iterable<Group>): Effect {
  const all = [...groups].filter(({ rolled }) => rolled.length > 0)
  const [only, second] = all
  if (only !== undefined && second === undefined) return only.take(machine)
  const count = machine.rolled?.length ?? 0
  const branches = all.map(
    ({ rolled, take }): Branch => ({ probability: rolled.length / count, narrowed: [], rolled, take }),
  )
  return { kind: 'split', branches }
}

/** Divides a class by a property of its numbers. */
export function byRolled<T extends string | number | boolean>(
  machine: Machine,
  propertyOf: (number: number) => T,
  effectOf: (property: T, machine: Machine) => Effect,
): Effect {
  const groups = new Map<T, Group>()
  for (const number of machine.rolled ?? []) {
    const property = propertyOf(number)
    const group = groups.get(property)
    if (group !== undefined) group.rolled.push(number)
    else groups.set(property, { rolled: [number], take: copy => effectOf(property, copy) })
  }
  return byEffect(machine, groups.values())
}

/** Gives the words of one number: octets where no field of the packet is among them. */
function valueOf(words: readonly Word[], number: number, length: number): Value {
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
    number => (valueOf(words, number, data.length) === data) === (op === 'eq'),
    isTrue => (isTrue ? 'next' : 'break'),
  )
}

/** Looks up a key for each number. Those that find data go on as one. */
export function lookupRolled(
  machine: Machine,
  words: readonly Word[],
  { expression, again }: { readonly expression: Of<'lookup'>; readonly again: Take },
): Effect {
  const { set, dreg, inverted } = expression
  const { sets } = machine
  const { keyLength } = sets.setOf(set)
  const missing: Group = { rolled: [], take: copy => found(copy, expression, undefined) }
  const members: Group = { rolled: [], take: copy => found(copy, expression, null) }
  const choices: Octets[] = []
  const holders: Group = { rolled: [], take: copy => storeChoices(copy, dreg, choices) }
  const groups = [missing, members, holders]
  for (const number of machine.rolled ?? []) {
    const key = valueOf(words, number, keyLength)
    if (typeof key !== 'string') {
      const candidates = sets.findAmong?.(set, key)
      assert(candidates !== undefined, `a key of ${set} is not known`)
      if (candidates.length === 0) missing.rolled.push(number)
      else groups.push({ rolled: [number], take: settledAt(number, again) })
      continue
    }
    const data = sets.find(set, key)
    if (data === undefined) missing.rolled.push(number)
    else if (inverted || dreg === undefined) members.rolled.push(number)
    else if (typeof data === 'string') {
      while (choices.length < number) choices.push('')
      choices.push(data)
      holders.rolled.push(number)
    } else groups.push({ rolled: [number], take: copy => found(copy, expression, data) })
  }
  return byEffect(machine, groups)
}

function storeChoices(
  machine: Machine,
  dreg: Of<'lookup'>['dreg'],
  choices: readonly Octets[],
): 'next' | 'break' {
  assert(typeof dreg === 'number', 'data of a map goes to registers')
  const length = choices.at(-1)?.length ?? 0
  if (length === 4) return store(machine, dreg, [{ choices }])
  const words: Word[] = []
  for (let at = 0; at < length; at += 4)
    words.push({ choices: choices.map(data => data.slice(at, at + 4).padEnd(4, '\0')) })
  return store(machine, dreg, words)
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
    const octets = valueOf(value, number, length)
    choices.push(typeof octets === 'string' ? octets : '')
  }
  return { choices }
}
