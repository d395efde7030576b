import { assert } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import type { Interval, Region } from '../../base/region.ts'
import type { Expression, Verdict } from '../nft/expression.ts'
import type { Element, ElementData, NftSet } from '../nft/state.ts'

/** The effect of an expression: continue the rule, end the rule without effect, or a verdict. */
export type Effect =
  | 'next'
  | 'break'
  | { readonly kind: 'verdict'; readonly verdict: Verdict }
  | { readonly kind: 'reject' | 'dnat' | 'masquerade' }
  | Split

/** Several effects, for parts of a class of packets or with probabilities: each on a machine of its own. */
interface Split {
  readonly kind: 'split'
  readonly branches: readonly Branch[]
}

export interface Branch {
  /** The values that the packets of the branch have in fields. */
  readonly narrowed: readonly (readonly [Field, Region])[]
  /** The numbers that its packets rolled; undefined for all those of the machine. */
  readonly rolled?: readonly number[]
  /** Goes on, on a copy of the machine. */
  readonly take: (machine: Machine) => Effect
}

/** A property of a packet that differs within a class of packets. The types are those of routing (RTN_*). */
export type Field =
  | 'source'
  | 'destination'
  | 'protocol'
  | 'sourcePort'
  | 'destinationPort'
  | 'interface'
  | 'sourceType'
  | 'destinationType'

/** A part of a field, in a register. */
export interface FieldPart {
  readonly field: Field
  /** Its first octet in the field. */
  readonly at: number
  /** The bits that are kept; all others are zero. Its length is that of the part. */
  readonly mask: Octets
}

/** Octets that follow from the number that a packet rolled: by that number. */
export interface Choice {
  readonly choices: readonly Octets[]
}
export type Known = Octets | Choice

/** The content of a register of 4 octets. */
export type Word = Known | FieldPart
/** The content of several registers: octets where all are known. */
export type Value = Octets | readonly Word[]

/** The sets of one table, as packets read them. */
export interface SetAccess {
  /** `family table`. */
  readonly name: string
  /** Finds an element; undefined when the set has none with this key, null for an element without data. */
  find(set: string, key: Octets): ElementData | null
  /** Finds the elements whose key is equal where the words are known. */
  findAmong(set: string, words: readonly Word[]): readonly Candidate[]
  elementAt(set: string, key: Octets): Element | undefined
  /** Answers for sets that packets fill; undefined for all other sets. */
  remembered(set: string, key: Value): Remembered | undefined
  /** Adds, updates or deletes an element. Returns false when the set is full. */
  remember(change: SetChange): boolean
  setOf(set: string): NftSet
  /** The number of elements. */
  sizeOf(set: string): number
}

export interface Candidate {
  readonly key: Octets
  readonly data: ElementData
}

export interface Remembered {
  /** Undefined when the key is not in the set. */
  readonly data: Octets | undefined
}

export interface SetChange {
  readonly op: 'add' | 'update' | 'delete'
  readonly set: string
  readonly key: Value
  readonly data: Known
  /** The numbers that `data` follows from. */
  readonly rolled: readonly number[] | undefined
  readonly timeoutMs: number
}

/** A packet, or a class of packets, at a rule. */
export interface Machine {
  /** 4 octets each; undefined until the rule writes them. */
  readonly registers: (Word | undefined)[]
  readonly sets: SetAccess
  /** Reads a header; undefined when the packet lacks the field, which ends the rule. */
  header(base: number, offset: number, length: number): Value | undefined
  meta(key: number): Value
  setMeta(key: number, value: Known): void
  /** Undefined where connection tracking has not seen the packet, which ends the rule. */
  conntrack(key: number): Value | undefined
  /** Returns RTN_* of an address. */
  addressType(flags: number): Value
  /** Returns a whole number from 0 up to, not including, `modulus`; undefined for all of them. */
  random(modulus: number): number | undefined
  /** Rolls all of these numbers. */
  roll(modulus: number, offset: number): Choice
  /** The numbers that the packets rolled, all equally likely; undefined where nothing follows from them. */
  readonly rolled: readonly number[] | undefined
  /** Leaves the packets that rolled one number: nothing follows from it any more. */
  settle(number: number): void
  matchIpset(expression: Of<'ipset'>): Effect
  /** Without a port the packet keeps its own. */
  translate(destination: Known, port: Known | undefined): Effect
  /** Octets of an address. */
  readonly addressLength: number
  /** The values of a field. */
  region(field: Field): Region
  /** What is kept for the next class of packets. */
  readonly memo: Memo
  /** Notes a lookup, whatever it finds. */
  note(set: string, key: Value): void
  /** Answers for sets that packets fill; undefined for all other sets. */
  remembered(set: string, key: Value): Remembered | undefined
  /** Adds, updates or deletes an element. Returns false when the set is full. */
  write(change: SetChange): boolean
  /** Of a packet that is followed by itself: each number that it may roll leads it another way. */
  readonly single: object | undefined
}

/** What the evaluator keeps while the rules stay: classes that follow each other ask the same. */
export interface Memo {
  /** By modulus and offset. */
  readonly rolls: Map<string, Roll>
  /** The last lookup of each set for all rolled numbers. */
  readonly lookups: WeakMap<SetAccess, Map<string, Answered>>
  /** What each comparison wanted last. */
  readonly comparisons: WeakMap<Of<'cmp'>, Pick<Asked, 'words'> & { readonly wanted: Wanted | undefined }>
  /** By candidates, then by the fields that their keys consist of. */
  readonly wishes: WeakMap<readonly Candidate[], Map<string, Wishes>>
}

export function newMemo(): Memo {
  return { rolls: new Map(), lookups: new WeakMap(), comparisons: new WeakMap(), wishes: new WeakMap() }
}

/** All numbers of a roll, and their words. */
export interface Roll {
  readonly rolled: readonly number[]
  readonly word: Choice
}

/** A lookup for all rolled numbers. */
export interface Asked {
  readonly words: readonly Word[]
  readonly rolled: readonly number[]
  readonly expression: Of<'lookup'>
}

/** What a lookup finds for each number. */
export interface Answered extends Asked {
  readonly missing: number[]
  /** Elements without data, or whose data nothing reads. */
  readonly members: number[]
  readonly holders: number[]
  /** The data of holders, as registers hold it. */
  readonly stored: readonly Word[]
  readonly verdicts: Map<ElementData | null, number[]>
  /** Numbers whose packets a field tells apart. */
  readonly divided: number[]
}

/** The values that a field must have, for several fields. */
export type Wanted = readonly (readonly [Field, Interval])[]

/** What packets must have to find the candidates of a lookup. */
export interface Wishes {
  readonly wishes: readonly { readonly wanted: Wanted; readonly candidate: Candidate }[]
  /** Gives the values that some candidate has, by field. */
  fields(): readonly (readonly [Field, Region])[]
}

/** An expression, or a state of a packet, that the evaluator does not know. */
export class BeyondEvaluator extends Error {
  override readonly name = 'BeyondEvaluator'
}

const REGISTERS = 16

export function newRegisters(): (Word | undefined)[] {
  return new Array<Word | undefined>(REGISTERS).fill(undefined)
}

export function isChoice(word: Word): word is Choice {
  return typeof word !== 'string' && 'choices' in word
}

/** Whether words are equal. */
export function areSame(a: readonly Word[], b: readonly Word[]): boolean {
  return a.length === b.length && a.every((word, index) => isSame(word, b[index]))
}

function isSame(a: Word, b: Word | undefined): boolean {
  if (a === b) return true
  if (b === undefined || typeof a === 'string' || typeof b === 'string') return false
  if (isChoice(a) || isChoice(b)) return isChoice(a) && isChoice(b) && areEqual(a.choices, b.choices)
  return a.field === b.field && a.at === b.at && a.mask === b.mask
}

export function areEqual<T>(a: readonly T[], b: readonly T[]): boolean {
  return a === b || (a.length === b.length && a.every((its, index) => its === b[index]))
}

/** Gives the octets of one rolled number. */
export function chosen(its: Known, number: number): Octets {
  return typeof its === 'string' ? its : (its.choices[number] ?? '')
}

/** Gives the octets of all rolled numbers. */
export function chosenOf(its: Known, rolled: readonly number[] | undefined): readonly Octets[] {
  return typeof its === 'string' ? [its] : (rolled ?? []).map(number => chosen(its, number))
}

/** Changes octets whatever was rolled. Numbers without octets stay so. */
export function chosenTo(its: Known, change: (octets: Octets) => Octets): Known {
  if (typeof its === 'string') return change(its)
  // Neighbors are often equal.
  let [before, after] = ['', '']
  const choices = its.choices.map(octets => {
    if (octets !== before) after = octets === '' ? '' : change(octets)
    before = octets
    return after
  })
  const [first = ''] = choices
  return first !== '' && choices.every(octets => octets === first) ? first : { choices }
}

export type Of<K extends Expression['kind']> = Extract<Expression, { kind: K }>

/** Stores data in registers. Undefined data means that the packet lacks the field, which ends the rule. */
export function store({ registers }: Machine, first: number, data: Value | undefined): 'next' | 'break' {
  if (data === undefined) return 'break'
  if (typeof data !== 'string') {
    for (let at = 0; at < data.length; at++) registers[first + at] = data[at]
    return 'next'
  }
  if (data.length === 4) registers[first] = data
  else
    for (let at = 0; at < data.length; at += 4)
      registers[first + at / 4] = data.slice(at, at + 4).padEnd(4, '\0')
  return 'next'
}

/** The effect of a lookup that found data; undefined for no element, null for an element without data. */
export function found(
  machine: Machine,
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
