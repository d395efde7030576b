import type { Ip } from '../base/ip.ts'
import { type Octets, readU16be } from '../base/octets.ts'
import { includes, onlyValue, type Region } from '../base/region.ts'
import type { ClassMachine } from '../kernel/evaluate/machine.ts'
import {
  type ClassSets,
  type Compared,
  type ComparedChain,
  comparedBy,
  type Guard,
  type Noting,
  type Reader,
} from '../kernel/evaluate/sets.ts'
import {
  chosen,
  type FieldPart,
  isChoice,
  type Known,
  type Value,
  type Word,
} from '../kernel/evaluate/values.ts'
import { NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER } from '../kernel/nft/constants.ts'
import type { Protocol } from '../model/service.ts'
import { protocolOf } from './packet-class.ts'

/** Packets that are sent to no service port: at one address, at one port of it, or at one port of all addresses. */
export interface Elsewhere {
  /** Undefined for all addresses. */
  readonly ip: Ip | undefined
  readonly at: { readonly protocol: Protocol; readonly port: number } | undefined
}

/** What a changed element concerns. */
export interface Concerned {
  readonly units: Set<string>
  readonly elsewhere: Elsewhere[]
  /** The element concerns more than can be told. */
  isWide: boolean
}

/** A lookup of packets to no service port. */
interface WideRead {
  /** Position in the key of the destination; undefined where only `ips` look up. */
  readonly address: number | undefined
  /** Of an address. */
  readonly length: number
  readonly ips: readonly Ip[]
  readonly port: number | undefined
  /** That of all packets. */
  readonly onlyPort: number | undefined
  readonly protocol: Protocol | undefined
  /** The protocols of the packets. */
  readonly within: Region
  /** Position in the key of the protocol, and those of the packets; undefined where it is known or no part of the key. */
  readonly protocols: { readonly at: number; readonly region: Region } | undefined
}

interface Read {
  readonly set: string
  /** The words of the key that are known. */
  readonly mask: number
  readonly known: Octets
}

const MANY = Symbol('many')
/** A read that more units have in common concerns all classes. */
const UNITS_MAX = 64
/** A class of so many destinations is taken apart. */
const POINTS_MAX = 16
/** The unit of all packets that are sent to no service port. */
export const ELSEWHERE = '@'

/**
 * Remembers which elements the classes looked up, found or not, so that a changed element leads to them. A class belongs
 * to a unit: the place or node port that its packets are sent to, or ELSEWHERE. Where rules change as well, a chain is a
 * set of what its rules compare first.
 */
export class Reads implements Noting {
  readonly followsRules: boolean
  /** The units of the classes that are followed; of several, by the number of the class. */
  units: readonly string[] = []
  readonly #units = new Map<string, string | Set<string> | typeof MANY>()
  readonly #masks: Masks = new Map()
  readonly #wide = new Map<string, Map<string, WideRead>>()
  readonly #wideMasks: Masks = new Map()
  readonly #numbers = new Map<ClassSets, number>()

  constructor({ followsRules }: { readonly followsRules: boolean }) {
    this.followsRules = followsRules
  }

  get size(): number {
    return this.#units.size + this.#wide.size
  }

  note(reader: Reader, set: string, key: Value): void {
    const [first] = this.units
    if (first === undefined) return
    const words = typeof key === 'string' ? wordsOf(key) : key
    if (first === ELSEWHERE) this.#noteWide(reader, set, words)
    else this.#notePlaces(reader, set, words)
  }

  noteChain(reader: Reader & Pick<ClassMachine, 'header'>, { name, compared }: ComparedChain): void {
    if (!this.followsRules) return
    for (const each of compared) this.note(reader, `${each} in ${name}`, comparedWords(reader, each))
  }

  /** Adds what may have met a rule of a chain. */
  concernRule({ name, compared, table }: ComparedChain, guard: Guard, to: Concerned): void {
    const by = comparedBy(guard)
    if (!compared.includes(by)) to.isWide = true
    const { destination = '', port = '', protocol } = guard
    const key = destination + (port === '' ? '' : port.padEnd(4, '\0'))
    this.concern(table.sets, { set: `${by} in ${name}`, key, protocol }, to)
  }

  #notePlaces(reader: Reader, set: string, words: readonly Word[]): void {
    const { rolled, together, sets } = reader
    const mask = maskOf(words)
    const points = mask === 0 ? pointsOf(reader, words) : undefined
    if (points !== undefined) {
      for (const point of points) this.#add(reader, { set, mask: (1 << words.length) - 1, known: point })
      return
    }
    const at = this.#keyOf(this.#masks, sets, { set, mask })
    if (rolled === undefined || !words.some((word, index) => (mask >> index) & 1 && isWordChoice(word))) {
      this.#add(reader, { set, mask, known: knownAt(words, mask, 0) })
      return
    }
    let [unit, known]: [string | undefined, string] = [undefined, '']
    for (const number of rolled) {
      const its = this.units[together?.classes[number] ?? 0]
      const octets = knownAt(words, mask, number)
      if (its === undefined || (its === unit && octets === known)) continue
      unit = its
      known = octets
      this.#put(at + known, its)
    }
  }

  #add({ rolled, together, sets }: Reader, read: Read): void {
    const key = this.#keyOf(this.#masks, sets, read) + read.known
    if (together === undefined || rolled === undefined) {
      this.#put(key, this.units[0] ?? '')
      return
    }
    let last = -1
    for (const number of rolled) {
      const at = together.classes[number] ?? 0
      if (at !== last) this.#put(key, this.units[at] ?? '')
      last = at
    }
  }

  #put(key: string, unit: string): void {
    const known = this.#units.get(key)
    if (known === undefined) this.#units.set(key, unit)
    else if (known === unit || known === MANY) return
    else if (typeof known === 'string') this.#units.set(key, new Set([known, unit]))
    else if (known.add(unit).size > UNITS_MAX) this.#units.set(key, MANY)
  }

  /** Gives how keys of the lookup begin. */
  #keyOf(masks: Masks, sets: ClassSets, { set, mask }: { readonly set: string; readonly mask: number }) {
    const number = this.#numbers.get(sets) ?? this.#numbers.size
    this.#numbers.set(sets, number)
    const bySet = masks.get(sets) ?? new Map<string, Set<number>>()
    masks.set(sets, bySet)
    bySet.set(set, (bySet.get(set) ?? new Set()).add(mask))
    return `${number} ${set} ${mask} `
  }

  #noteWide({ box, sets, addressLength }: Reader, set: string, words: readonly Word[]): void {
    const mask = words.some(isWordChoice) ? 0 : maskOf(words)
    const known = knownAt(words, mask, 0)
    const address = words.findIndex((_, index) => isAddressAt(words, index, addressLength))
    const ips = address === -1 ? fewPoints(box.destination) : []
    const port = words.findIndex(word => isPart(word) && word.field === 'destinationPort' && word.at === 0)
    const protocol = words.findIndex(word => isPart(word) && word.field === 'protocol')
    const only = onlyValue(box.destinationPort)
    const read: WideRead = {
      address: address === -1 ? undefined : address * 4,
      length: addressLength,
      ips: ips ?? [],
      port: port === -1 ? undefined : port * 4,
      onlyPort: only === undefined ? undefined : readU16be(only, 0),
      protocol: protocolOf(box),
      within: box.protocol,
      protocols: protocol === -1 ? undefined : { at: protocol * 4, region: box.protocol },
    }
    const key = this.#keyOf(this.#wideMasks, sets, { set, mask }) + known
    const reads = this.#wide.get(key) ?? new Map<string, WideRead>()
    this.#wide.set(key, reads)
    const protocols = read.protocols?.region.map(({ from, to }) => `${from}-${to}`)
    reads.set([read.address, read.ips, read.port, read.onlyPort, read.protocol, protocols].join(), read)
  }

  /** Adds what may have looked up an element of this key. */
  concern(
    sets: ClassSets,
    {
      set,
      key,
      protocol,
    }: { readonly set: string; readonly key: Octets; readonly protocol?: Octets | undefined },
    to: Concerned,
  ): void {
    const words = wordsOf(key)
    const number = this.#numbers.get(sets)
    for (const mask of this.#masks.get(sets)?.get(set) ?? []) {
      const units = this.#units.get(`${number} ${set} ${mask} ${knownAt(words, mask, 0)}`)
      if (units === MANY) to.isWide = true
      else if (typeof units === 'string') to.units.add(units)
      else for (const unit of units ?? []) to.units.add(unit)
    }
    for (const mask of this.#wideMasks.get(sets)?.get(set) ?? []) {
      const reads = this.#wide.get(`${number} ${set} ${mask} ${knownAt(words, mask, 0)}`)
      for (const read of reads?.values() ?? [])
        if (protocol === undefined || includes(read.within, protocol)) this.#concernWide(read, key, to)
    }
  }

  #concernWide(read: WideRead, key: Octets, to: Concerned): void {
    const { address, length, ips, protocol, protocols } = read
    if (protocols !== undefined && !includes(protocols.region, key.charAt(protocols.at))) return
    const port = read.port === undefined ? read.onlyPort : readU16be(key, read.port)
    const at = protocol !== undefined && port !== undefined ? { protocol, port } : undefined
    if (address === undefined && ips.length === 0) {
      if (this.followsRules && at !== undefined) to.elsewhere.push({ ip: undefined, at })
      else to.isWide = true
    }
    for (const ip of address === undefined ? ips : [key.slice(address, address + length)])
      to.elsewhere.push({ ip, at })
  }
}

/** Gives what the rules of a chain compare, of a packet. */
function comparedWords(reader: Reader & Pick<ClassMachine, 'header'>, compared: Compared): readonly Word[] {
  const { addressLength } = reader
  const words: Word[] = []
  const add = (value: Value | undefined) => {
    if (value !== undefined) words.push(...(typeof value === 'string' ? wordsOf(value) : value))
  }
  if (compared === 'place' || compared === 'address')
    add(reader.header(NFT_PAYLOAD_NETWORK_HEADER, addressLength === 4 ? 16 : 24, addressLength))
  if (compared === 'place' || compared === 'port') add(reader.header(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2))
  return words
}

/** By set: the parts of keys that were known, as bits for each word. */
type Masks = Map<ClassSets, Map<string, Set<number>>>

function wordsOf(key: Octets): readonly Octets[] {
  if (key.length === 4) return [key]
  const words: Octets[] = []
  for (let at = 0; at < key.length; at += 4) words.push(key.slice(at, at + 4).padEnd(4, '\0'))
  return words
}

function isPart(word: Word): word is FieldPart {
  return typeof word !== 'string' && !isChoice(word)
}

function isWordChoice(word: Word): word is Exclude<Known, string> {
  return typeof word !== 'string' && isChoice(word)
}

/**
 * Gives a bit for each word that is known. The slots of a list are one read: a class that rolls the second word reads
 * all of them.
 */
function maskOf(words: readonly Word[]): number {
  const [first, second] = words
  if (
    words.length === 2 &&
    first !== undefined &&
    second !== undefined &&
    !isPart(first) &&
    isWordChoice(second)
  )
    return 1
  let mask = 0
  for (let at = 0; at < words.length; at++) {
    const word = words[at]
    if (word !== undefined && !isPart(word)) mask |= 1 << at
  }
  return mask
}

function knownAt(words: readonly Word[], mask: number, number: number): Octets {
  let known = ''
  for (let at = 0; at < words.length; at++) {
    const word = words[at]
    if ((mask >> at) & 1 && word !== undefined && !isPart(word)) known += chosen(word, number)
  }
  return known
}

function isAddressAt(words: readonly Word[], index: number, length: number): boolean {
  for (let at = 0; at < length; at += 4) {
    const word = words[index + at / 4]
    if (word === undefined || !isPart(word) || word.field !== 'destination') return false
    if (word.at !== at || word.mask !== '\xff\xff\xff\xff') return false
  }
  return true
}

/** Gives the keys of a lookup by destination alone, where these are few. */
function pointsOf({ box, addressLength }: Reader, words: readonly Word[]): readonly Octets[] | undefined {
  if (words.length * 4 !== addressLength || !isAddressAt(words, 0, addressLength)) return undefined
  return fewPoints(box.destination)
}

function fewPoints(region: Region): readonly Octets[] | undefined {
  if (region.length > POINTS_MAX) return undefined
  const points = region.map(interval => onlyValue([interval]))
  return points.every(point => point !== undefined) ? points : undefined
}
