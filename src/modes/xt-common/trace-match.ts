import { unreachable } from '../../base/errors.ts'
import type { Ip } from '../../base/ip.ts'
import { type Octets, zeros } from '../../base/octets.ts'
import {
  type DynamicElements,
  isLocal,
  type PacketState,
  type TracePacket,
  type TraceSurroundings,
} from '../../kernel/nft/trace-packet.ts'
import {
  XT_ADDRTYPE_LOCAL,
  XT_ADDRTYPE_UNICAST,
  XT_CONNTRACK_STATE_DNAT,
  XT_CONNTRACK_STATE_NEW,
} from '../../kernel/xt/constants.ts'
import type { XtAddress, XtInterface, XtMatch, XtPorts, XtRule } from '../../kernel/xt/rule.ts'

export interface Matching {
  readonly packet: TracePacket
  readonly state: PacketState
  readonly surroundings: TraceSurroundings
  readonly recent: RecentLists
  readonly chance: Chance
  /** Empty where there is no interface, as in rules. */
  readonly inInterface: string
}

/** Returns whether a rule matches a packet. Lists of `recent` are written as a side effect, in the order of the matches. */
export function matchesRule(rule: XtRule, matching: Matching): boolean {
  const { packet, state, inInterface } = matching
  const { protocol } = rule
  if (rule.outInterface !== undefined) throw new Error('cannot trace --out-interface')
  if (rule.inInterface !== undefined && !isInterface(rule.inInterface, inInterface)) return false
  if (protocol !== undefined && (protocol.number === packet.protocol) === protocol.inverted) return false
  if (rule.source !== undefined && !isAddress(rule.source, packet.source)) return false
  if (rule.destination !== undefined && !isAddress(rule.destination, state.destination)) return false
  return rule.matches.every(match => matches(match, matching))
}

function isInterface({ name, inverted }: XtInterface, actual: string): boolean {
  const same = name.endsWith('+') ? actual.startsWith(name.slice(0, -1)) : actual === name
  return same !== inverted
}

function isAddress({ ip, mask, inverted }: XtAddress, actual: string): boolean {
  let same = actual.length === ip.length
  for (let at = 0; same && at < mask.length; at++) {
    same = ((actual.charCodeAt(at) ^ ip.charCodeAt(at)) & mask.charCodeAt(at)) === 0
  }
  return same !== inverted
}

function matches(match: XtMatch, matching: Matching): boolean {
  const { packet, state } = matching
  switch (match.kind) {
    case 'comment':
    case 'nfacct':
      return true
    case 'tcp':
    case 'udp':
    case 'sctp':
      return (
        arePorts(match.sourcePorts, packet.sourcePort) &&
        arePorts(match.destinationPorts, state.destinationPort)
      )
    case 'conntrack':
      return ((match.states & connectionStates(state)) !== 0) !== match.inverted
    case 'statistic':
      return matching.chance.hits(match.probability)
    case 'recent':
      return isRecent(match, matching)
    case 'mark':
      return ((state.mark & match.mask) >>> 0 === match.mark) !== match.inverted
    case 'addrtype':
      return isAddressType(match, matching)
    case 'set':
      return isInSet(match, matching)
    case 'physdev-is-in':
      return match.inverted
    case 'ipvs':
    case 'limit':
    case 'unknown':
      throw new Error(`cannot trace -m ${match.kind === 'unknown' ? match.name : match.kind}`)
    default:
      return unreachable(match)
  }
}

function arePorts(ports: XtPorts | undefined, port: number): boolean {
  return ports === undefined || (port >= ports.from && port <= ports.to) !== ports.inverted
}

/** Returns the connection states of a packet: the first packet of a connection is new, and not invalid. */
function connectionStates({ translated }: PacketState): number {
  return XT_CONNTRACK_STATE_NEW | (translated ? XT_CONNTRACK_STATE_DNAT : 0)
}

/**
 * Returns whether an address has a type. An address that is not of this node counts as unicast, because there is no routing
 * table here.
 */
function isAddressType(
  { sourceTypes, destinationTypes, ...inverted }: Extract<XtMatch, { kind: 'addrtype' }>,
  { packet, state, surroundings }: Matching,
): boolean {
  const has = (types: number, ip: string, inverted = false) =>
    types === 0 ||
    ((types & (isLocal(ip, surroundings) ? XT_ADDRTYPE_LOCAL : XT_ADDRTYPE_UNICAST)) !== 0) !== inverted
  return (
    has(sourceTypes, packet.source, inverted.sourceInverted) &&
    has(destinationTypes, state.destination, inverted.destinationInverted)
  )
}

function isRecent(
  { mode, name }: Extract<XtMatch, { kind: 'recent' }>,
  { packet, recent }: Matching,
): boolean {
  if (mode === 'rcheck') return recent.has(name, packet.source)
  recent.set(name, packet.source)
  return true
}

function isInSet(
  { set, dimensions, inverted }: Extract<XtMatch, { kind: 'set' }>,
  { packet, state, surroundings: { ipsets } }: Matching,
): boolean {
  if (ipsets === undefined) throw new Error(`the trace has no entries of ipset ${set}`)
  const source = { ip: packet.source, port: packet.sourcePort }
  const destination = { ip: state.destination, port: state.destinationPort }
  const sides = dimensions.map(dimension => (dimension === 'src' ? source : destination))
  return ipsets(set, { protocol: packet.protocol, sides }) !== inverted
}

/**
 * The dice of `-m statistic`. Rules that share connections among n endpoints have probabilities of 1/n, 1/(n-1) and
 * so on. A packet reaches the second rule only if it missed the first. Then each of the remaining n-1 outcomes is
 * equally likely, so one roll out of n decides all of the rules. Therefore n endpoints are n ways, and not n! of
 * them.
 */
export class Chance {
  readonly #random: (modulus: number) => number
  /** The roll that the last rule missed. Outcomes below `next` are excluded. */
  #missed: { readonly modulus: number; readonly value: number; readonly next: number } | undefined

  constructor(random: (modulus: number) => number) {
    this.#random = random
  }

  /** Decides one rule; `probability` in units of 1 / 2^31. */
  hits(probability: number): boolean {
    const one = oneIn(probability)
    if (one === undefined) return this.#random(UNITS) < probability
    const before = this.#missed
    const goesOn = before !== undefined && before.modulus - before.next === one
    const roll = goesOn ? before : { modulus: one, value: this.#random(one), next: 0 }
    const hit = roll.value === roll.next
    this.#missed = hit ? undefined : { ...roll, next: roll.next + 1 }
    return hit
  }
}

const UNITS = 2 ** 31
/** The rounding of iptables: it prints ten decimals, so the values that it reads are rounded to them. */
const ROUNDED = UNITS / 1e10

/** Returns 3 for a third; undefined where the probability is not of the form 1/n. */
function oneIn(probability: number): number | undefined {
  if (probability <= 0) return undefined
  const whole = Math.round(UNITS / probability)
  return Math.abs(UNITS / whole - probability) <= ROUNDED + 1 ? whole : undefined
}

/**
 * The maximum number of entries that xt_recent keeps in one list by default (parameter ip_list_tot). It evicts the
 * oldest.
 */
export const RECENT_ENTRIES_MAX = 100

/** The key prefix among the elements that packets wrote: `recent NAME`. */
const PREFIX = 'recent '

/**
 * The lists of `-m recent` during one packet: source addresses by name, the one unseen for the longest time first.
 * Lists belong to the network namespace and contain both families. Time does not pass: each listed address counts as
 * seen just now.
 */
export class RecentLists {
  readonly #before: DynamicElements
  readonly #lists = new Map<string, Map<Ip, Octets | undefined>>()

  constructor(before: DynamicElements | undefined) {
    this.#before = before ?? new Map()
  }

  has(name: string, source: Ip): boolean {
    return this.#list(name).has(source)
  }

  set(name: string, source: Ip): void {
    const list = this.#list(name)
    if (!list.delete(source) && list.size >= RECENT_ENTRIES_MAX) {
      const [oldest] = list.keys()
      if (oldest !== undefined) list.delete(oldest)
    }
    list.set(source, zeros(0))
  }

  /** Returns the lists afterwards. A list exists as long as a rule names it, and `named` contains these names. */
  after(named: ReadonlySet<string>): DynamicElements {
    const after = new Map(this.#before)
    for (const [name, list] of this.#lists) after.set(PREFIX + name, list)
    for (const key of after.keys())
      if (key.startsWith(PREFIX) && !named.has(key.slice(PREFIX.length))) after.delete(key)
    return after
  }

  #list(name: string): Map<Ip, Octets | undefined> {
    const known = this.#lists.get(name)
    if (known !== undefined) return known
    const list = new Map(this.#before.get(PREFIX + name))
    this.#lists.set(name, list)
    return list
  }
}
