import { append } from '../../base/collections.ts'
import { assert } from '../../base/errors.ts'
import { type Octets, u32host } from '../../base/octets.ts'
import { RTN_UNICAST } from '../../kernel/nft/constants.ts'
import type { ElementData } from '../../kernel/nft/state.ts'
import type { Branch, ClassMachine, Effect } from './machine.ts'
import { difference, includes, intersection, point, type Region } from './region.ts'
import {
  BeyondEvaluator,
  chosen,
  type Field,
  isChoice,
  type Known,
  LOCAL,
  type Of,
  octetsAt,
  type Value,
  type Word,
} from './values.ts'

/*
 * Decisions about classes of packets that rolled a random number. A class continues as one while its packets meet the same
 * effects, and its registers hold what follows from each number.
 */

type Take = (machine: ClassMachine) => Effect
type TakeNumber = (machine: ClassMachine, number: number) => Effect

/** Divides a class into one for each number that its packets rolled. */
export function eachRolled({ rolled = [] }: ClassMachine, again: TakeNumber): Effect {
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
function byEffect(machine: ClassMachine, groups: Iterable<Group>): Effect {
  const all: Group[] = []
  for (const group of groups) if (group.rolled.length > 0) all.push(group)
  const [only, second] = all
  if (only !== undefined && second === undefined) return only.take(machine)
  const branches = all.map(({ rolled, take }): Branch => ({ narrowed: [], rolled, take }))
  return { kind: 'split', branches }
}

export function byRolled<T extends string | number | boolean>(
  machine: ClassMachine,
  propertyOf: (number: number) => T,
  effectOf: (property: T, machine: ClassMachine) => Effect,
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

/** Divides a class by whether a field is in a region. */
export function byRegion(
  machine: ClassMachine,
  [field, region]: readonly [Field, Region],
  effectOf: (isIn: boolean, machine: ClassMachine) => Effect,
): Effect {
  const known = machine.known(field)
  if (typeof known === 'string') return effectOf(includes(region, known), machine)
  if (known !== undefined)
    return byRolled(machine, number => includes(region, chosen(known, number)), effectOf)
  const its = machine.region(field)
  const [inside, outside] = [intersection(its, region), difference(its, region)]
  if (inside.length === 0 || outside.length === 0) return effectOf(outside.length === 0, machine)
  return {
    kind: 'split',
    branches: [
      { narrowed: [[field, inside]], take: copy => effectOf(true, copy) },
      { narrowed: [[field, outside]], take: copy => effectOf(false, copy) },
    ],
  }
}

export function compareRolled(
  machine: ClassMachine,
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

/** Looks up a key for each number. Those that find data continue as one. */
export function lookupRolled(
  machine: ClassMachine,
  words: readonly Word[],
  { expression, again }: { readonly expression: Of<'lookup'>; readonly again: Take },
): Effect {
  const { sets, rolled = [] } = machine
  const { set, dreg, inverted } = expression
  const { keyLength } = sets.setOf(set)
  const byData = new Map<ElementData | null, number[]>()
  const divided: number[] = []
  const holders: number[] = []
  const held: Octets[] = []
  for (const number of rolled) {
    const key = octetsAt(words, number, keyLength)
    const data = typeof key === 'string' ? sets.find(set, key) : undefined
    if (typeof key !== 'string' && sets.findAmong(set, key).length > 0) divided.push(number)
    else if (typeof data !== 'string' || inverted || dreg === undefined) append(byData, data, number)
    else {
      while (held.length < number) held.push('')
      held.push(data)
      holders.push(number)
    }
  }
  const stored = wordsByNumber(held)
  return byEffect(machine, [
    { rolled: holders, take: copy => store(copy, registerOf(expression), stored) },
    ...[...byData].map(([data, numbers]) => ({
      rolled: numbers,
      take: (copy: ClassMachine) => found(copy, expression, data),
    })),
    ...divided.map(number => ({ rolled: [number], take: settledAt(number, again) })),
  ])
}

function registerOf({ dreg, set }: Of<'lookup'>): number {
  assert(typeof dreg === 'number', `${set} is not a data map`)
  return dreg
}

function wordsByNumber(data: readonly Octets[]): readonly Word[] {
  const length = data.at(-1)?.length ?? 0
  const words: Word[] = []
  for (let at = 0; at < length; at += 4)
    words.push({ choices: data.map(its => its.slice(at, at + 4).padEnd(4, '\0')) })
  return words
}

/** Reads octets that no field of the packet is part of. */
export function knownOf(value: Value, what: string, length: number, { rolled = [] }: ClassMachine): Known {
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

/** Translates the packets. Without a port they keep their own. */
export function translate(machine: ClassMachine, destination: Known, port: Known | undefined): Effect {
  const to = port ?? machine.known('destinationPort')
  if (to === undefined)
    throw new BeyondEvaluator('cannot trace a translation that keeps one of several ports')
  return send(machine, { address: destination, port: to }, true)
}

/** IPVS translates the packets. The status of their connection does not show it. */
export function balance(machine: ClassMachine, destination: Known, port: Known): Effect {
  return send(machine, { address: destination, port }, machine.translated)
}

function send(machine: ClassMachine, to: NonNullable<ClassMachine['to']>, translated: boolean): Effect {
  const { address } = to
  const goTo = (isLocal: boolean, its: ClassMachine): Effect => {
    its.to = to
    its.translated = translated
    its.toType = isLocal ? LOCAL : UNICAST_TYPE
    return { kind: 'dnat' }
  }
  const isLocal = (number: number) => machine.isLocal(chosen(address, number))
  if (machine.rolled?.some(isLocal) !== true)
    return goTo(typeof address === 'string' && machine.isLocal(address), machine)
  return byRolled(machine, isLocal, goTo)
}

const UNICAST_TYPE = point(u32host(RTN_UNICAST))

/** Stores data in registers. Undefined data means that the packet lacks the field, which ends the rule. */
export function store({ registers }: ClassMachine, first: number, data: Value | undefined): 'next' | 'break' {
  if (data === undefined) return 'break'
  if (typeof data !== 'string') for (const [at, word] of data.entries()) registers[first + at] = word
  else
    for (let at = 0; at < data.length; at += 4)
      registers[first + at / 4] = data.slice(at, at + 4).padEnd(4, '\0')
  return 'next'
}

/** The effect of a lookup that found data; undefined for no element, null for an element without data. */
export function found(
  machine: ClassMachine,
  { set, dreg, inverted }: Of<'lookup'>,
  data: ElementData | null,
): Effect {
  if ((data === undefined) !== inverted) return 'break'
  if (dreg === undefined || inverted) return 'next'
  if (dreg === 'verdict') {
    assert(typeof data === 'object' && data !== null, `${set} is not a verdict map`)
    return { kind: 'verdict', verdict: data }
  }
  assert(typeof data === 'string', `${set} is not a data map`)
  return store(machine, dreg, data)
}
