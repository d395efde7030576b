import { PersistentMap } from '../../base/collections.ts'
import type { Family } from '../../base/ip.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import type { Element } from '../../kernel/nft/state.ts'
import type { Protocol } from '../../model/service.ts'
import { sizeToHold } from '../common/tables.ts'

/**
 * The value V of a frontend, a 32-bit number that travels in the priority of the connection's first packet, where nft
 * prints it as two halves:
 *
 *     bit  31      1: chain early-postrouting knows V by it
 *     bits 30..13  service-port id (1 to 262,143)
 *     bit  12      0 in the map; 1 makes it the list of endpoints on this node
 *     bits 11..0   code: key of the map `dispatch`
 *
 * With session affinity bits 12..0 become the number of the endpoint that was chosen.
 */
export const VALUE_FLAG = 0x80000000
const ID_SHIFT = 13
const ID_UNIT = 2 ** ID_SHIFT
export const ID_MAX = 0x3ffff
/** Clears the low bits of V and leaves the flag set. */
export const ID_MASK = 0xffffe000
export const LOCAL_LIST = 0x1000
export const CODE_MASK = 0xfff
export const CODE_REJECT = 0
export const CODE_DROP = 1
/** Codes of chains made on demand range from this value to CODE_MASK. */
export const CODE_FIRST = 16

/** The maximum number of endpoints of one service port that can have numbers of their own (session affinity). */
export const STABLE_MAX = ID_UNIT
/**
 * The second half of an endpoint key. Values below it are slots. From this value on, the first half is the
 * number of the endpoint.
 */
export const STABLE = 0x80000000
/** Marks endpoints on this node, in place of STABLE. */
export const STABLE_LOCAL = STABLE + 1

/** The number of bytes of an IPv6 address, counted from its end, that identify a client in `affinity`. */
export const CLIENT_6_LENGTH = 12

/** Groups of elements that serve no single Service. */
export const GROUP_DISPATCH = '@dispatch'
export const GROUP_AFFINITY = '@affinity'
const GROUP_HAIRPIN = '@hairpin/'

export function hairpinGroup(address: string): string {
  return GROUP_HAIRPIN + address
}

/** Gives the cluster list of a service port: its V without a code. */
export function listOfPort(id: number): number {
  return VALUE_FLAG + id * ID_UNIT
}

export type EndpointsMap = 'endpoints-tcp' | 'endpoints-udp' | 'endpoints-sctp'

/** One map for each protocol: nft gives ports in a map's data one protocol, and requires each rule to name it. */
export const ENDPOINTS: Readonly<Record<Protocol, EndpointsMap>> = {
  TCP: 'endpoints-tcp',
  UDP: 'endpoints-udp',
  SCTP: 'endpoints-sctp',
}
export const ENDPOINTS_MAPS: ReadonlySet<string> = new Set(Object.values(ENDPOINTS))

/**
 * Makes a key of `slots`: a list and a slot. A key of the endpoints has the same form, or is the number of an
 * endpoint with STABLE or STABLE_LOCAL.
 */
export function pairKey(first: number, second: number): Octets {
  return u32host(first) + u32host(second)
}

/** Gives the list of a pairKey, and its slot; the slot is undefined where the key has the number of an endpoint. */
export function readPairKey(key: Octets): { readonly list: number; readonly slot: number | undefined } {
  const first = readU32host(key)
  const second = readU32host(key, 4)
  if (second < STABLE) return { list: first, slot: second }
  return { list: ((first & ID_MASK) >>> 0) + (second === STABLE ? 0 : LOCAL_LIST), slot: undefined }
}

/** Gives the service-port id in the first 32 bits of a value or key. */
export function idOf(octets: Octets): number {
  return (readU32host(octets) >>> ID_SHIFT) & ID_MAX
}

export function portKeyOf(displayName: string, protocol: Protocol, family: Family): string {
  const name = displayName.includes(':') ? displayName : `${displayName}:`
  return `${name}/${protocol}/${family}`
}

export type SetName =
  | 'cluster-ips'
  | 'nodeport-ips'
  | 'hairpin'
  | 'frontends'
  | 'nodeports'
  | 'dispatch'
  | EndpointsMap
  | 'slots'
  | 'affinity'
  | 'ranges'

export const SET_NAMES: readonly SetName[] = [
  'cluster-ips',
  'nodeport-ips',
  'hairpin',
  'frontends',
  'nodeports',
  'dispatch',
  'endpoints-tcp',
  'endpoints-udp',
  'endpoints-sctp',
  'slots',
  'affinity',
  'ranges',
]

/**
 * Tests whether an element is an endpoint with a number of its own (session affinity). Clients that `affinity` sends to
 * it find their way there until it leaves, and the rules choose anew for a packet that misses it. (One that is between two
 * lookups while the last endpoint leaves finds none and passes untranslated.)
 */
export function isNumbered({ set, key }: Element): boolean {
  return ENDPOINTS_MAPS.has(set) && readPairKey(key).slot === undefined
}

/**
 * Sets that a packet may reach through another set that it read a moment before. Elements leave these sets
 * one commit later: a slot after the N that could roll it, and the code of a chain after the last V that
 * holds it.
 */
export const LATE_SETS: ReadonlySet<string> = new Set([...ENDPOINTS_MAPS, 'slots', 'dispatch'])

/** The minimum sizes of new sets, so that small clusters grow without a replacement of the table. */
const SIZE_MIN: Readonly<Record<SetName, number>> = {
  'cluster-ips': 1024,
  'nodeport-ips': 64,
  hairpin: 1024,
  frontends: 4096,
  nodeports: 1024,
  // All codes fit, so the set never grows.
  dispatch: 4096,
  'endpoints-tcp': 4096,
  'endpoints-udp': 1024,
  'endpoints-sctp': 256,
  slots: 1024,
  // Packets fill this set. When it is full, connections are served without affinity.
  affinity: 2 ** 20,
  ranges: 1024,
}
const FULL = 0.9

/** Gives the size of a set, see sizeToHold. Kernels up to 6.1 ignore a new size, so growing replaces the table. */
export function sizeFor(name: SetName, count: number, before: number | undefined): number {
  return sizeToHold(count, before, { min: SIZE_MIN[name], full: FULL })
}

/** Tests whether the kernel counts the connections of a set's elements. */
export function isCounted(name: SetName, connectionCounters: boolean): boolean {
  return connectionCounters && ENDPOINTS_MAPS.has(name)
}

/** The ids of service ports in one table. */
export interface Ids {
  /** By PortFrontends.key. */
  readonly byPort: PersistentMap<number>
  /**
   * The next id; above ID_MAX, the search for a free one begins at the remainder. The ids up to ID_MAX are handed out once
   * without a search, and a freed id is not reused soon.
   */
  readonly next: number
  /** Ids that belong to no service port, but that affinity entries written before this process started still name. */
  readonly reserved: ReadonlySet<number>
}

export const NO_IDS: Ids = { byPort: PersistentMap.empty(), next: 1, reserved: new Set() }

/** Hands out ids during one render. */
export class IdDraft {
  readonly #base: Ids
  readonly #added = new Map<string, number>()
  readonly #retired = new Set<string>()
  /** The ids in use; undefined until a port needs one that was in use before. */
  #taken: Set<number> | undefined
  #next: number

  constructor(base: Ids) {
    this.#base = base
    this.#next = base.next
  }

  /** Frees the id of a port at the end of the render, unless keep() or take() is called for the port first. */
  retire(port: string): void {
    this.#retired.add(port)
  }

  keep(port: string): void {
    this.#retired.delete(port)
  }

  /** Gives the id of a port, or a new one if it has none; undefined when all ids are in use. */
  take(port: string): number | undefined {
    const known = this.#base.byPort.get(port) ?? this.#added.get(port)
    if (known !== undefined) return known
    const id = this.#next <= ID_MAX ? this.#next : this.#freed()
    if (id === undefined) return undefined
    this.#next++
    this.#taken?.add(id)
    this.#added.set(port, id)
    return id
  }

  /** Moves #next to an id that is free, and gives it. */
  #freed(): number | undefined {
    const { byPort, reserved } = this.#base
    this.#taken ??= new Set([...byPort.values(), ...reserved, ...this.#added.values()])
    if (this.#taken.size >= ID_MAX) return undefined
    while (this.#taken.has(idAt(this.#next))) this.#next++
    return idAt(this.#next)
  }

  finish(): Ids {
    const { byPort, reserved } = this.#base
    const changes = new Map<string, number | undefined>(this.#added)
    for (const port of this.#retired) if (byPort.has(port)) changes.set(port, undefined)
    if (changes.size === 0) return this.#base
    return { byPort: byPort.withOwn(changes), next: this.#next, reserved }
  }
}

function idAt(next: number): number {
  return ((next - 1) % ID_MAX) + 1
}

/** Makes Ids from the ids found in the kernel. `byPort` contains no id twice. */
export function idsInUse(byPort: ReadonlyMap<string, number>, reserved: ReadonlySet<number>): Ids {
  let last = 0
  for (const id of [...byPort.values(), ...reserved]) last = Math.max(last, id)
  return { byPort: PersistentMap.from(byPort), next: last + 1, reserved }
}

/** Codes of chains: by the chain's name. */
export type Codes = ReadonlyMap<string, number>

/** Hands out codes during one render. A code that the base releases is free one render later. */
export class CodeDraft {
  readonly #base: Codes
  readonly #added = new Map<string, number>()
  #taken: ReadonlySet<number> | undefined
  #next = CODE_FIRST

  constructor(base: Codes) {
    this.#base = base
  }

  all(): readonly (readonly [string, number])[] {
    return [...this.#base, ...this.#added]
  }

  /** Gives the code of a chain; undefined when all codes are in use. */
  take(chain: string): number | undefined {
    const known = this.#base.get(chain) ?? this.#added.get(chain)
    if (known !== undefined) return known
    this.#taken ??= new Set(this.#base.values())
    while (this.#taken.has(this.#next)) this.#next++
    if (this.#next > CODE_MASK) return undefined
    this.#added.set(chain, this.#next)
    return this.#next++
  }

  finish(chains: ReadonlySet<string>): Codes {
    const codes = new Map<string, number>()
    for (const [chain, code] of this.all()) if (chains.has(chain)) codes.set(chain, code)
    return codes
  }
}

/** Counts the elements of one table by their set, and how often they use shared objects (see countedAs). */
export type Tally = ReadonlyMap<string, number>

const CODE = 'code '
const PREFIX_LENGTH = 'prefix length '

/** Gives what an element counts as: one of its set, and a use of a chain or of a rule about source ranges. */
export function countedAs({ set, key, data }: Element): readonly string[] {
  // Packets fill this set.
  if (set === 'affinity') return []
  if (set === 'ranges') return [set, PREFIX_LENGTH + lowBits(key)]
  const isFrontend = set === 'frontends' || set === 'nodeports'
  return isFrontend && typeof data === 'string' ? [set, CODE + lowBits(data)] : [set]
}

function lowBits(octets: Octets): number {
  return readU32host(octets) & CODE_MASK
}

/** The codes in use, sorted. */
export function codesIn(tally: Tally): readonly number[] {
  return numbersIn(tally, CODE)
}

/** The lengths of the source ranges in use, longest first. */
export function prefixLengthsIn(tally: Tally): readonly number[] {
  return numbersIn(tally, PREFIX_LENGTH).toReversed()
}

function numbersIn(tally: Tally, prefix: string): readonly number[] {
  const names = [...tally.keys()].filter(name => name.startsWith(prefix))
  return names.map(name => Number(name.slice(prefix.length))).sort((a, b) => a - b)
}
