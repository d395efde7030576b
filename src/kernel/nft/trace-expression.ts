import { assert, unreachable } from '../../base/errors.ts'
import { type Octets, readU16be, readU32host, u32host, zeros } from '../../base/octets.ts'
import {
  IPS_DST_NAT,
  NFPROTO_IPV4,
  NFPROTO_IPV6,
  NFT_CT_STATUS,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_META_NFPROTO,
  NFT_META_PRIORITY,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFTA_FIB_F_SADDR,
  RTN_LOCAL,
} from './constants.ts'
import { COMMENT_MATCH, type Expression, type Verdict } from './expression.ts'
import type { Element, ElementData, NftSet, Table } from './state.ts'
import {
  type DynamicElements,
  isLocal,
  networkHeader,
  type PacketState,
  type TracePacket,
  type TraceSurroundings,
  transportHeader,
} from './trace-packet.ts'

/** The effect of an expression: continue the rule, end the rule without effect, or a verdict. */
export type Effect =
  | 'next'
  | 'break'
  | { readonly kind: 'verdict'; readonly verdict: Verdict }
  | { readonly kind: 'reject' | 'dnat' | 'masquerade' }

/** The sets of one table, as a packet reads them. */
interface SetAccess {
  /** Finds an element; undefined when the set has none with this key, null for an element without data. */
  find(set: string, key: Octets): ElementData | null
  write(set: string, key: Octets, data: Octets): boolean
  remove(set: string, key: Octets): void
  keyLength(set: string): number
  dataLength(set: string): number
}

export interface Machine {
  readonly packet: TracePacket
  readonly state: PacketState
  readonly surroundings: TraceSurroundings
  readonly sets: SetAccess
  /** 4 octets each; undefined until the rule writes them. */
  readonly registers: (Octets | undefined)[]
  /** Empty without an input interface. */
  readonly interfaceName: string
}

const REGISTERS = 16

export function newRegisters(): (Octets | undefined)[] {
  return new Array<Octets | undefined>(REGISTERS).fill(undefined)
}

/**
 * Evaluates an expression. Throws for an expression that kprobe does not write, and for reading a register that the
 * rule has not written.
 */
export function evaluate(machine: Machine, expression: Expression): Effect {
  switch (expression.kind) {
    case 'payload':
      return payload(machine, expression)
    case 'meta':
      return store(machine, expression.dreg, meta(machine, expression.key))
    case 'meta-set':
      return metaSet(machine, expression)
    case 'ct':
      assert(expression.key === NFT_CT_STATUS, `cannot trace conntrack key ${expression.key}`)
      return store(machine, expression.dreg, u32host(machine.state.translated ? IPS_DST_NAT : 0))
    case 'cmp':
      return compare(machine, expression)
    case 'bitwise':
      return bitwise(machine, expression)
    case 'lookup':
      return lookup(machine, expression)
    case 'verdict':
      return { kind: 'verdict', verdict: expression.verdict }
    case 'numgen':
      return store(machine, expression.dreg, u32host(numgen(machine, expression)))
    case 'dnat':
      return translate(machine, expression)
    case 'masquerade':
    case 'reject':
      return { kind: expression.kind }
    case 'fib':
      return store(machine, expression.dreg, u32host(addressType(machine, expression.flags)))
    case 'dynset':
      return dynset(machine, expression)
    case 'counter':
      return 'next'
    case 'ipset':
      return matchIpset(machine, expression)
    case 'match':
      // A comment matches every packet.
      if (expression.name === COMMENT_MATCH) return 'next'
      throw new Error(`cannot trace the match ${expression.name} of xtables`)
    case 'target':
      throw new Error(`cannot trace the target ${expression.name} of xtables`)
    case 'unknown':
      throw new Error(`cannot trace the expression ${expression.name}`)
    default:
      return unreachable(expression)
  }
}

function load({ registers }: Machine, first: number, length: number): Octets {
  let data = ''
  for (let at = 0; at < length; at += 4) {
    const register = registers[first + at / 4]
    assert(register !== undefined, `register ${first + at / 4} is read before it is written`)
    data += register
  }
  return data.slice(0, length)
}

/** Stores data in registers. Undefined data means that the packet lacks the field, which ends the rule. */
function store({ registers }: Machine, first: number, data: Octets | undefined): Effect {
  if (data === undefined) return 'break'
  for (let at = 0; at < data.length; at += 4) {
    registers[first + at / 4] = data.slice(at, at + 4).padEnd(4, '\0')
  }
  return 'next'
}

type Of<K extends Expression['kind']> = Extract<Expression, { kind: K }>

function payload(machine: Machine, { base, offset, length, dreg }: Of<'payload'>): Effect {
  const { packet, state } = machine
  const isNetwork = base === NFT_PAYLOAD_NETWORK_HEADER
  assert(isNetwork || base === NFT_PAYLOAD_TRANSPORT_HEADER, `cannot trace payload base ${base}`)
  const header = isNetwork ? networkHeader(packet, state) : transportHeader(packet, state)
  const data = header.slice(offset, offset + length)
  return store(machine, dreg, data.length === length ? data : undefined)
}

function meta({ packet, state, interfaceName }: Machine, key: number): Octets {
  switch (key) {
    case NFT_META_MARK:
      return u32host(state.mark)
    case NFT_META_PRIORITY:
      return u32host(state.priority)
    case NFT_META_L4PROTO:
      return u32host(packet.protocol)
    case NFT_META_NFPROTO:
      return u32host(packet.source.length === 4 ? NFPROTO_IPV4 : NFPROTO_IPV6)
    case NFT_META_IIFNAME:
      return interfaceName.padEnd(16, '\0')
    default:
      throw new Error(`cannot trace meta key ${key}`)
  }
}

function metaSet(machine: Machine, { key, sreg }: Of<'meta-set'>): Effect {
  const value = readU32host(load(machine, sreg, 4))
  if (key === NFT_META_MARK) machine.state.mark = value
  else {
    assert(key === NFT_META_PRIORITY, `cannot trace writing meta key ${key}`)
    machine.state.priority = value
  }
  return 'next'
}

function numgen({ surroundings }: Machine, { modulus, offset = 0 }: Of<'numgen'>): number {
  return surroundings.random(modulus) + offset
}

function compare(machine: Machine, { op, sreg, data }: Of<'cmp'>): Effect {
  const equal = load(machine, sreg, data.length) === data
  return equal === (op === 'eq') ? 'next' : 'break'
}

function bitwise(machine: Machine, { sreg, dreg, mask, xor }: Of<'bitwise'>): Effect {
  const value = load(machine, sreg, mask.length)
  let result = ''
  for (let at = 0; at < mask.length; at++) {
    result += String.fromCharCode((value.charCodeAt(at) & mask.charCodeAt(at)) ^ xor.charCodeAt(at))
  }
  return store(machine, dreg, result)
}

function lookup(machine: Machine, { set, sreg, dreg, inverted }: Of<'lookup'>): Effect {
  const { sets } = machine
  const found = sets.find(set, load(machine, sreg, sets.keyLength(set)))
  if ((found === undefined) !== inverted) return 'break'
  if (dreg === undefined || inverted) return 'next'
  if (dreg === 'verdict') {
    assert(typeof found === 'object' && found !== null, `${set} is not a verdict map`)
    return { kind: 'verdict', verdict: found }
  }
  assert(typeof found === 'string', `${set} is not a data map`)
  return store(machine, dreg, found)
}

function matchIpset(machine: Machine, { set, dimensions, inverted }: Of<'ipset'>): Effect {
  const { packet, state, surroundings } = machine
  const { ipsets } = surroundings
  assert(ipsets !== undefined, `the entries of ipset ${set} are unknown`)
  const source = { ip: packet.source, port: packet.sourcePort }
  const destination = { ip: state.destination, port: state.destinationPort }
  const sides = dimensions.map(dimension => (dimension === 'src' ? source : destination))
  return ipsets(set, { protocol: packet.protocol, sides }) === inverted ? 'break' : 'next'
}

function translate(machine: Machine, { addressReg, portReg }: Of<'dnat'>): Effect {
  const { packet, state } = machine
  state.destination = load(machine, addressReg, packet.source.length)
  if (portReg !== undefined) state.destinationPort = readU16be(load(machine, portReg, 4))
  state.translated = true
  return { kind: 'dnat' }
}

/** Returns RTN_LOCAL for a local address, and RTN_UNICAST for others: the tracer has no routing table. */
function addressType({ packet, state, surroundings }: Machine, flags: number): number {
  const ip = (flags & NFTA_FIB_F_SADDR) !== 0 ? packet.source : state.destination
  const RTN_UNICAST = 1
  return isLocal(ip, surroundings) ? RTN_LOCAL : RTN_UNICAST
}

function dynset(machine: Machine, { op, set, keyReg, dataReg }: Of<'dynset'>): Effect {
  const { sets } = machine
  const key = load(machine, keyReg, sets.keyLength(set))
  if (op === 'delete') {
    sets.remove(set, key)
    return 'next'
  }
  // Neither add nor update replaces the data of a live element (kernel: nft_dynset_eval).
  if (sets.find(set, key) !== undefined) return 'next'
  const data = dataReg === undefined ? zeros(0) : load(machine, dataReg, sets.dataLength(set))
  return sets.write(set, key, data) ? 'next' : 'break'
}

/** The elements of one table by set and key: built once, used by every trace. */
export type ElementIndex = ReadonlyMap<string, ReadonlyMap<Octets, Element>>

export function indexElements(table: Table): ElementIndex {
  const index = new Map<string, Map<Octets, Element>>()
  for (const name of table.sets.keys()) index.set(name, new Map())
  for (const group of table.elements.values()) {
    for (const element of group) index.get(element.set)?.set(element.key, element)
  }
  return index
}

/** One packet's view of a table's sets; its writes do not change the table. */
export class PacketSets implements SetAccess {
  readonly #table: Table
  readonly #index: ElementIndex
  readonly #written = new Map<string, Map<Octets, Octets | undefined>>()
  readonly #seen: (set: NftSet, element: Element) => void

  /** `seen` receives each element that a lookup finds. */
  constructor(
    table: Table,
    index: ElementIndex,
    options: {
      readonly dynamic: DynamicElements | undefined
      readonly seen: (set: NftSet, element: Element) => void
    },
  ) {
    this.#table = table
    this.#index = index
    this.#seen = options.seen
    for (const name of table.sets.keys()) {
      const known = options.dynamic?.get(this.#nameOf(name))
      if (known !== undefined) this.#written.set(name, new Map(known))
    }
  }

  find(name: string, key: Octets): ElementData | null {
    const set = this.#set(name)
    const written = this.#written.get(name)
    if (written?.has(key) === true) {
      const data = written.get(key)
      if (data !== undefined) this.#seen(set, { set: name, key, data, comment: '' })
      return data
    }
    const element = this.#index.get(name)?.get(key)
    if (element === undefined) return undefined
    this.#seen(set, element)
    return element.data ?? null
  }

  write(name: string, key: Octets, data: Octets): boolean {
    const { size } = this.#set(name)
    if (size > 0 && this.#count(name) >= size) return false
    this.#changes(name).set(key, data)
    return true
  }

  remove(name: string, key: Octets): void {
    this.#changes(name).set(key, undefined)
  }

  keyLength(name: string): number {
    return this.#set(name).keyLength
  }

  dataLength(name: string): number {
    return this.#set(name).dataLength ?? 0
  }

  /** Returns `before` with the elements that the packet wrote and removed. */
  after(before: DynamicElements | undefined): DynamicElements {
    const after = new Map(before)
    for (const [name, changes] of this.#written) after.set(this.#nameOf(name), changes)
    return after
  }

  #count(name: string): number {
    let count = this.#index.get(name)?.size ?? 0
    for (const [key, data] of this.#written.get(name) ?? []) {
      const there = this.#index.get(name)?.has(key) === true
      if (there !== (data !== undefined)) count += data === undefined ? -1 : 1
    }
    return count
  }

  #changes(name: string): Map<Octets, Octets | undefined> {
    const known = this.#written.get(name)
    if (known !== undefined) return known
    const changes = new Map<Octets, Octets | undefined>()
    this.#written.set(name, changes)
    return changes
  }

  #set(name: string): NftSet {
    const set = this.#table.sets.get(name)
    assert(set !== undefined, `table ${this.#table.name} has no set ${name}`)
    return set
  }

  #nameOf(set: string): string {
    return `${this.#table.family} ${this.#table.name} ${set}`
  }
}
