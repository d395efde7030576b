import { type Ip, isLoopback } from '../../base/ip.ts'
import { type Octets, u32host } from '../../base/octets.ts'
import type { VirtualServer } from '../../kernel/ipvs/state.ts'
import {
  IPS_DST_NAT,
  IPS_SRC_NAT,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_CONNTRACK,
  NFPROTO_IPV4,
  NFPROTO_IPV6,
  NFT_CT_MARK,
  NFT_CT_STATE,
  NFT_CT_STATUS,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_META_NFPROTO,
  NFT_META_OIFNAME,
  NFT_META_PRIORITY,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFTA_FIB_F_DADDR,
  NFTA_FIB_F_SADDR,
} from '../../kernel/nft/constants.ts'
import type { Verdict } from '../../kernel/nft/state.ts'
import { everything, isSameRegion, onlyValue, type Region } from './region.ts'
import {
  type ClassSets,
  enlist,
  isListed,
  type MemoryLog,
  noteWritten,
  type Remembered,
  recall,
  type SetChange,
} from './sets.ts'
import type { SinglePacket } from './single.ts'
import {
  BeyondEvaluator,
  type Box,
  type Choice,
  chosen,
  chosenOf,
  chosenTo,
  type Doubt,
  type Field,
  fieldAt,
  HEADER_4,
  HEADER_6,
  type HeaderLayout,
  isChoice,
  type Known,
  newRegisters,
  ROLLED_MAX,
  type RulePlace,
  repeated,
  TRACKING,
  TRANSPORT,
  type Value,
  WITH_INPUT,
  WITH_OUTPUT,
  type Word,
} from './values.ts'

/** The effect of an expression: continue the rule, end the rule without effect, or a verdict. */
export type Effect =
  | 'next'
  | 'break'
  | { readonly kind: 'verdict'; readonly verdict: Verdict }
  | { readonly kind: 'reject' | 'dnat' | 'masquerade' | 'unknown' }
  | Split

/** Several effects, for parts of a class of packets or with probabilities: each on a machine of its own. */
interface Split {
  readonly kind: 'split'
  readonly branches: readonly Branch[]
}

export interface Branch {
  readonly narrowed: readonly (readonly [Field, Region])[]
  /** The numbers that its packets rolled; undefined for all those of the machine. */
  readonly rolled?: readonly number[]
  readonly take: (machine: ClassMachine) => Effect
}

const LOOPBACK_DEVICE = 'lo'.padEnd(16, '\0')
const ANY_TYPE = everything(4)

const ZERO = '\0\0\0\0'
/** NF_CT_STATE_BIT(IP_CT_NEW): a class is the first packet of a connection. */
const STATE_NEW = 8
/** NF_CT_STATE_INVALID_BIT: what connection tracking has not seen. */
const STATE_INVALID = 1
const STATE_UNTRACKED = 64

export interface Surroundings {
  /** Addresses of the Node: translated packets to them are for processes of this node. */
  readonly nodeIps: Pick<ReadonlySet<Ip>, 'has'>
  readonly log: MemoryLog
}

/** A class of packets on its way through the hooks. */
export class ClassMachine {
  registers = newRegisters()
  sets: ClassSets
  readonly addressLength: number
  box: Box
  /** The probability of one number of `rolled`; of the packets if `rolled` is undefined. */
  probability = 1
  /** Random numbers that the packets may have drawn, while a register, mark, element or destination depends on them. */
  rolled: readonly number[] | undefined
  mark: Known = ZERO
  connectionMark: Known = ZERO
  priority: Known = ZERO
  /** The priority that our own rules left; undefined where they left that of the packets. */
  ownPriority: Known | undefined
  translated = false
  masquerade = false
  isSourceElsewhere = false
  untracked = false
  doubt: Doubt | undefined
  /** The reason for which registers hold nothing. */
  unread: string | undefined
  /** Delivered to a process of this node: nothing can masquerade it. */
  delivered = false
  /** The packets of a process of this node came back by the loopback device. */
  looped = false
  /** Sent by a process of this node: masquerading may leave the source as it is. */
  sent = false
  hook = NF_INET_PRE_ROUTING
  hookPriority = 0
  /** The data that the packets wrote into a dynamic set, and its timeout. */
  written: { readonly data: Known; readonly timeoutMs: number } | undefined
  decidedBy: RulePlace | undefined
  to: { readonly address: Known; readonly port: Known } | undefined
  toType: Region = ANY_TYPE
  isChangedByOwn = false
  server: VirtualServer | undefined
  /** It sends them on, past the rest of the hook. */
  isTaken = false
  /** The state of a packet that is followed by itself. */
  single: SinglePacket | undefined
  readonly #around: Surroundings

  constructor(box: Box, sets: ClassSets, around: Surroundings) {
    this.#around = around
    this.box = box
    this.sets = sets
    this.addressLength = box.source[0]?.from.length ?? 4
  }

  copy(): ClassMachine {
    const copy = Object.assign(new ClassMachine(this.box, this.sets, this.#around), this)
    copy.registers = this.registers.slice()
    copy.single = this.single?.copy()
    return copy
  }

  /**
   * Begins a rule without registers. The random numbers are forgotten, too, unless a mark, a priority, a written element
   * or the destination follows from them.
   */
  beginRule(): void {
    this.registers.fill(undefined)
    this.unread = undefined
    this.single?.beginRule()
    if (this.rolled === undefined) return
    const { mark, connectionMark, priority, ownPriority, written, to } = this
    const kept = [mark, connectionMark, priority, ownPriority, written?.data, to?.address, to?.port]
    if (!kept.every(its => its === undefined || typeof its === 'string')) return
    this.probability *= this.rolled.length
    this.rolled = undefined
  }

  roll(modulus: number, offset: number): Choice {
    const before = this.rolled
    const length = modulus * (before?.length ?? 1)
    if (length > ROLLED_MAX) throw new BeyondEvaluator(`cannot trace random numbers below ${length}`)
    const rolled = Array.from({ length }, (_, number) => number)
    this.probability /= modulus
    this.rolled = rolled
    if (before !== undefined)
      this.#rewrite(its =>
        typeof its === 'string' ? its : { choices: repeated(its.choices, before, modulus) },
      )
    return { choices: rolled.map(number => u32host((number % modulus) + offset)) }
  }

  /** Narrows the packets to those that rolled a number. */
  settle(number: number): void {
    this.rolled = undefined
    this.#rewrite(its => chosen(its, number))
  }

  #rewrite(rewrite: (its: Known) => Known): void {
    const { registers, written, to } = this
    this.registers = registers.map(word => (word !== undefined && isChoice(word) ? rewrite(word) : word))
    this.mark = rewrite(this.mark)
    this.connectionMark = rewrite(this.connectionMark)
    this.priority = rewrite(this.priority)
    if (this.ownPriority !== undefined) this.ownPriority = rewrite(this.ownPriority)
    if (written !== undefined) this.written = { ...written, data: rewrite(written.data) }
    if (to !== undefined) this.to = { address: rewrite(to.address), port: rewrite(to.port) }
  }

  /** Gives the address and port that each number leads to, all equally likely; none without a translation. */
  endpoints(): readonly Octets[] {
    const { to, rolled = [0] } = this
    return to === undefined ? [] : rolled.map(number => chosen(to.address, number) + chosen(to.port, number))
  }

  region(field: Field): Region {
    return field === 'destinationType' && this.to !== undefined ? this.toType : this.box[field]
  }

  narrow(field: Field, region: Region): void {
    if (this.to !== undefined && field === 'destinationType') this.toType = region
    else if (this.to !== undefined && (field === 'destination' || field === 'destinationPort')) return
    else if (!isSameRegion(this.box[field], region)) this.box = { ...this.box, [field]: region }
  }

  header(base: number, offset: number, length: number): Value {
    if (base === NFT_PAYLOAD_TRANSPORT_HEADER) {
      if (offset === 2 && length === 2) return this.#read('destinationPort', 0, 2)
      return this.#header(TRANSPORT, offset, length)
    }
    if (base !== NFT_PAYLOAD_NETWORK_HEADER) throw new BeyondEvaluator(`cannot trace payload base ${base}`)
    return this.#header(this.addressLength === 4 ? HEADER_4 : HEADER_6, offset, length)
  }

  #header(layout: HeaderLayout, offset: number, length: number): Value {
    const only = fieldAt(layout, offset, length)
    if (only !== undefined) return this.#read(only.field, offset - only.offset, length)
    const words: Word[] = []
    for (let at = offset; at < offset + length; at += 4) {
      const size = Math.min(4, offset + length - at)
      const part = fieldAt(layout, at, size)
      if (part === undefined) throw new BeyondEvaluator(`cannot trace octet ${at} of a header`)
      const value = this.#read(part.field, at - part.offset, size)
      if (typeof value === 'string') words.push(value.padEnd(4, '\0'))
      else words.push(...value)
    }
    return words
  }

  /** Reads octets of a field: known ones where all packets of the class have the same. */
  #read(field: Field, at: number, length: number): Value {
    if (this.masquerade && SOURCE.includes(field))
      throw new BeyondEvaluator('cannot trace the source of a masqueraded packet')
    const value = this.known(field)
    if (typeof value === 'string') return value.length === length ? value : value.slice(at, at + length)
    const words: Word[] = []
    if (value !== undefined) {
      if (length === 4 && this.addressLength === 4 && field === 'destination') return [value]
      for (let first = at; first < at + length; first += 4) {
        const end = Math.min(first + 4, at + length)
        words.push(chosenTo(value, octets => octets.slice(first, end).padEnd(4, '\0')))
      }
      return words
    }
    for (let first = at; first < at + length; first += 4)
      words.push({ field, at: first, mask: '\xff'.repeat(Math.min(4, at + length - first)) })
    return words
  }

  /** Gives what all packets of the class have in a field, or what follows from their number. */
  known(field: Field): Known | undefined {
    if (this.to !== undefined && field === 'destination') return this.to.address
    if (this.to !== undefined && field === 'destinationPort') return this.to.port
    return onlyValue(this.region(field))
  }

  meta(key: number): Value {
    switch (key) {
      case NFT_META_MARK:
        return wordsOf(this.mark)
      case NFT_META_PRIORITY:
        return wordsOf(this.priority)
      case NFT_META_L4PROTO: {
        const value = this.#read('protocol', 0, 1)
        return typeof value === 'string' ? `${value}\0\0\0` : value
      }
      case NFT_META_NFPROTO:
        return u32host(this.addressLength === 4 ? NFPROTO_IPV4 : NFPROTO_IPV6)
      case NFT_META_IIFNAME:
        if (this.looped) return LOOPBACK_DEVICE
        return WITH_INPUT.includes(this.hook) ? this.#read('interface', 0, 16) : '\0'.repeat(16)
      case NFT_META_OIFNAME:
        if (WITH_OUTPUT.includes(this.hook)) throw new BeyondEvaluator('routes are not read')
        return '\0'.repeat(16)
      default:
        throw new BeyondEvaluator(`cannot trace meta key ${key}`)
    }
  }

  setMeta(key: number, value: Known): void {
    if (key === NFT_META_MARK) this.mark = value
    else if (key === NFT_META_PRIORITY) this.priority = value
    else throw new BeyondEvaluator(`cannot trace writing meta key ${key}`)
  }

  /** Connection tracking has seen the packets. They come back by the loopback device with their connection. */
  get isTracked(): boolean {
    if (this.untracked) return false
    if (this.looped || this.server !== undefined || !TRACKING.includes(this.hook)) return true
    if (this.hookPriority === NF_IP_PRI_CONNTRACK)
      throw new BeyondEvaluator('cannot trace a chain with the priority of connection tracking')
    return this.hookPriority > NF_IP_PRI_CONNTRACK
  }

  /** The connection has another source than its packets began with. */
  get isSourceChanged(): boolean {
    if (this.masquerade && this.sent)
      throw new BeyondEvaluator('cannot trace whether masquerading changes an address of this node')
    return this.masquerade
  }

  conntrack(key: number): Value | undefined {
    if (key === NFT_CT_STATE)
      return u32host(this.isTracked ? STATE_NEW : this.untracked ? STATE_UNTRACKED : STATE_INVALID)
    if (!this.isTracked) return undefined
    if (key === NFT_CT_MARK) return wordsOf(this.connectionMark)
    if (key === NFT_CT_STATUS)
      return u32host((this.translated ? IPS_DST_NAT : 0) | (this.isSourceChanged ? IPS_SRC_NAT : 0))
    throw new BeyondEvaluator(`cannot trace conntrack key ${key}`)
  }

  addressType(flags: number): Value {
    if (flags === NFTA_FIB_F_SADDR) return this.#read('sourceType', 0, 4)
    if (flags === NFTA_FIB_F_DADDR) return this.#read('destinationType', 0, 4)
    throw new BeyondEvaluator(`cannot trace fib with flags ${flags}`)
  }

  random(modulus: number): number | undefined {
    return modulus === 1 ? 0 : this.single?.random(modulus)
  }

  remembered(set: string, key: Value): Remembered | undefined {
    const { single, sets } = this
    return single === undefined ? sets.remembered(set, key) : single.remembered(sets, set, key)
  }

  write(change: SetChange): boolean {
    if (this.single !== undefined) return this.single.write(this.sets, change)
    if (!this.sets.remember(change)) return false
    if (change.op !== 'delete') this.written = { data: change.data, timeoutMs: change.timeoutMs }
    return true
  }

  /** Gives where IPVS sent the client before, if it remembers the client at this place. */
  recall(place: string): Octets | undefined {
    const { single } = this
    return single === undefined ? recall(this.#around.log, place) : single.recall(place)
  }

  remember(place: string, data: Known, timeoutMs: number): void {
    if (this.single !== undefined) this.single.remember(place, chosen(data, 0))
    else noteWritten(this.#around.log, place, chosenOf(data, this.rolled))
    this.written = { data, timeoutMs }
  }

  isListed(list: string, seconds: number): boolean {
    return this.single?.isListed(list) ?? isListed(this.#around.log, list, seconds)
  }

  enlist(list: string): void {
    if (this.single !== undefined) this.single.enlist(list)
    else this.written = { data: list, timeoutMs: enlist(this.#around.log, list) }
  }

  /** An address of this node is as good as any other that masquerading chooses. */
  translateSource(ip: Ip): Effect {
    this.isSourceElsewhere = !this.#around.nodeIps.has(ip)
    return { kind: 'masquerade' }
  }

  isLocal(ip: Ip): boolean {
    return this.#around.nodeIps.has(ip) || isLoopback(ip)
  }
}

function wordsOf(its: Known): Value {
  return typeof its === 'string' ? its : [its]
}

/** Masquerading changes these fields. */
const SOURCE: readonly Field[] = ['source', 'sourcePort', 'sourceType']
