import type { Ip } from '../../base/ip.ts'
import { type Octets, u32host } from '../../base/octets.ts'
import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  RTN_LOCAL,
} from '../../kernel/nft/constants.ts'
import type { ElementData, Expression } from '../../kernel/nft/state.ts'
import { type Interval, point, prefix, type Region, union } from './region.ts'

/* What packets have in their fields, and what rules hold in registers. */

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

export interface FieldPart {
  readonly field: Field
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

export interface Candidate {
  readonly key: Octets
  readonly data: ElementData
}

export type Wanted = readonly (readonly [Field, Interval])[]

export interface Wishes {
  readonly wishes: readonly { readonly wanted: Wanted; readonly candidate: Candidate }[]
  fields(): readonly (readonly [Field, Region])[]
}

/** A rule of another program that is beyond the evaluator. Its packets are followed both ways. */
export interface Doubt {
  readonly place: string
  readonly reason: string
  /** The packets continue as if the rule matched; otherwise as if it did not. */
  readonly isSupposed: boolean
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

export function chosen(its: Known, number: number): Octets {
  return typeof its === 'string' ? its : (its.choices[number] ?? '')
}

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

export type Box = Readonly<Record<Field, Region>>
export type Hook = 'prerouting' | 'output'

interface HeaderField {
  readonly field: Field
  readonly offset: number
  readonly length: number
}
export type HeaderLayout = readonly HeaderField[]

export const HEADER_4: HeaderLayout = [
  { field: 'destination', offset: 16, length: 4 },
  { field: 'source', offset: 12, length: 4 },
  { field: 'protocol', offset: 9, length: 1 },
]
export const HEADER_6: HeaderLayout = [
  { field: 'destination', offset: 24, length: 16 },
  { field: 'source', offset: 8, length: 16 },
  { field: 'protocol', offset: 6, length: 1 },
]
export const TRANSPORT: HeaderLayout = [
  { field: 'sourcePort', offset: 0, length: 2 },
  { field: 'destinationPort', offset: 2, length: 2 },
]

export function fieldAt(layout: HeaderLayout, offset: number, length: number): HeaderField | undefined {
  return layout.find(its => its.offset <= offset && offset + length <= its.offset + its.length)
}

export const LOCAL = point(u32host(RTN_LOCAL))

export function loopback(length: number): Region {
  return length === 4 ? [prefix('\x7f\0\0\0', 8)] : point(`${'\0'.repeat(15)}\x01`)
}

export function regionOfIps(ips: Iterable<Ip>): Region {
  return union([...ips].map(ip => ({ from: ip, to: ip })))
}

export const TRACKING: readonly number[] = [NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT]

export const WITH_INPUT: readonly number[] = [
  NF_INET_PRE_ROUTING,
  NF_INET_LOCAL_IN,
  NF_INET_FORWARD,
  NF_INET_POST_ROUTING,
]

export const WITH_OUTPUT: readonly number[] = [NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING]

export interface RulePlace {
  readonly table: string
  readonly chain: string
  /** Counts from 1; undefined for a virtual server of IPVS. */
  readonly rule: number | undefined
  readonly isOwn: boolean
}

/** More numbers at once are beyond the evaluator. Lists of endpoints have fewer slots. */
export const ROLLED_MAX = 1 << 20
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

/** Gives the words of one number: octets where no field of the packet is among them. */
export function octetsAt(words: readonly Word[], number: number, length: number): Value {
  let octets = ''
  for (const word of words) {
    if (typeof word === 'string') octets += word
    else if (isChoice(word)) octets += chosen(word, number)
    else return words.map(its => (isChoice(its) ? chosen(its, number) : its))
  }
  return octets.length === length ? octets : octets.slice(0, length)
}
