import { PersistentMap } from '../../base/collections.ts'
import type { Family, Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS, portProtocolOf } from '../../base/ip-packet.ts'
import type { Octets } from '../../base/octets.ts'
import * as nft from '../../kernel/nft/constants.ts'
import { concatenatedType, TYPE_IP6ADDR, TYPE_IPADDR } from '../../kernel/nft/datatypes.ts'
import { sameElement } from '../../kernel/nft/diff-elements.ts'
import type { Element, ElementGroup, NftFamily, NftSet, Ruleset, Table } from '../../kernel/nft/state.ts'
import type { FrontendTable, PortFrontends } from '../../model/frontend.ts'
import type { Protocol, ServiceKey } from '../../model/service.ts'

/** The differences between the tables of the two families. */
export interface FamilyLayout {
  readonly family: NftFamily
  readonly model: Family
  readonly nfproto: number
  /** Bytes. */
  readonly addressLength: number
  /** The number of 32-bit registers that an address takes. */
  readonly addressRegs: number
  readonly addressType: number
  /** Byte offsets in the network header. */
  readonly sourceOffset: number
  readonly destinationOffset: number
  readonly rejectCode: number
}

const IPV4: FamilyLayout = {
  family: 'ip',
  model: 'IPv4',
  nfproto: nft.NFPROTO_IPV4,
  addressLength: 4,
  addressRegs: 1,
  addressType: TYPE_IPADDR,
  sourceOffset: 12,
  destinationOffset: 16,
  rejectCode: nft.ICMP_PORT_UNREACH,
}

const IPV6: FamilyLayout = {
  family: 'ip6',
  model: 'IPv6',
  nfproto: nft.NFPROTO_IPV6,
  addressLength: 16,
  addressRegs: 4,
  addressType: TYPE_IP6ADDR,
  sourceOffset: 8,
  destinationOffset: 24,
  rejectCode: nft.ICMPV6_PORT_UNREACH,
}

/** The layout of the tables of each family. */
export const LAYOUTS: Readonly<Record<NftFamily, FamilyLayout>> = { ip: IPV4, ip6: IPV6 }
/** The families of the tables that contain Services. */
export const NFT_FAMILIES: readonly NftFamily[] = ['ip', 'ip6']

export function familyName(family: Family): NftFamily {
  return family === 'IPv4' ? 'ip' : 'ip6'
}

export function tableOf(ruleset: Ruleset, family: NftFamily): Table | undefined {
  return ruleset.tables.find(table => table.family === family)
}

export function forFamilies<T>(make: (family: NftFamily) => T): Readonly<Record<NftFamily, T>> {
  return { ip: make('ip'), ip6: make('ip6') }
}

export const TABLE_COMMENT = 'rules of kprobe'

/**
 * Tests whether a rendered group equals the present one except for the order, which the kernel chooses. The present
 * one is then kept, so that the diff skips it. Long groups are not compared here: the diff compares them.
 */
export function sameGroup(present: ElementGroup, made: ElementGroup): boolean {
  const { length } = made
  if (present.length !== length || length > 64) return false
  for (let i = 0; i < length; i++) {
    const element = made[i]
    let j = 0
    while (j < length && !sameElement(present[j], element)) j++
    if (j === length) return false
  }
  return true
}

/** Makes the comment that names the port, for nft and for later reads of the kernel. */
export function commentOf({ displayName }: PortFrontends): string {
  // nft keeps the length in one byte.
  return displayName.slice(0, 250)
}

/** The prefix of groups whose elements serve no single Service. Names of Services cannot begin with it. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`
/** Elements in the kernel whose Service is unknown. */
export const GROUP_UNKNOWN = `${SHARED}unknown`

/** Gives the Service whose elements a group holds; undefined for a shared group. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}

/** Declares a set, not a map, whose keys are the concatenation of fields of these types. */
export function plainSet(
  name: string,
  size: number,
  key: { types: readonly number[]; length: number },
): NftSet {
  return {
    name,
    flags: 0,
    keyType: concatenatedType(...key.types),
    keyLength: key.length,
    dataType: undefined,
    dataLength: undefined,
    size,
    timeoutMs: 0,
    userdata: '',
  }
}

/** The most frequent one first. */
export const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']

/** Encodes protocol and port: the last 8 bytes of a frontends key, and all of a nodeports key. */
export function portKey(protocol: Protocol, port: number): Octets {
  return String.fromCharCode(PROTOCOL_NUMBERS[protocol], 0, 0, 0, port >>> 8, port & 255, 0, 0)
}

/** Gives the protocol of a key that ends in a portKey. */
export function protocolOfKey(key: Octets): Protocol | undefined {
  return portProtocolOf(key.charCodeAt(key.length - 8))
}

/** Encodes a port as the second half of an endpoint: two bytes and the padding of a 32-bit register. */
export function portData(port: number): Octets {
  return String.fromCharCode(port >>> 8, port & 255, 0, 0)
}

interface Growth {
  /** The minimum size of a new set, so that small clusters grow without a replacement of the table. */
  readonly min: number
  /** The share, 0 to 1, above which a set gets a new size. */
  readonly full: number
  /** The factor by which a new set is larger than its number of elements; 2 by default. */
  readonly headroom?: number
}

const HEADROOM = 2

/**
 * Gives the size of a set of `count` elements: its present size while it is not full, otherwise a larger
 * power of two.
 */
export function sizeToHold(count: number, before: number | undefined, growth: Growth): number {
  const { min, full, headroom = HEADROOM } = growth
  if (before !== undefined && before > 0 && count <= before * full) return before
  return 2 ** Math.ceil(Math.log2(Math.max(min, count * headroom)))
}

/** Every mode's state records the inputs that it was rendered from. */
interface Rendered {
  readonly frontends: FrontendTable | undefined
  readonly without: ReadonlySet<ServiceKey>
  readonly refusals: ReadonlyMap<ServiceKey, unknown>
}

/**
 * Gives the Services to render again: those that changed, those that were put into or released from
 * quarantine, and those with refusals. Gives all Services when the base was not rendered.
 */
export function changedServices(
  frontends: FrontendTable,
  base: Rendered,
  without: ReadonlySet<ServiceKey>,
): Iterable<ServiceKey> {
  if (base.frontends === undefined) return frontends.services.keys()
  const changed = new Set(PersistentMap.changes(base.frontends.services, frontends.services))
  for (const key of base.without) if (!without.has(key)) changed.add(key)
  for (const key of without) if (!base.without.has(key)) changed.add(key)
  for (const key of base.refusals.keys()) changed.add(key)
  return changed
}

/** Tests whether the objects of a family stay as they are: see RenderOptions.without. */
export function staysAsIs(family: NftFamily, without: ReadonlySet<string>): boolean {
  return without.has(LAYOUTS[family].model)
}

/** Gives the wanted ruleset with the tables of `from` in the families that stay as they are. */
export function keptFrom(from: Ruleset, to: Ruleset, without: ReadonlySet<string>): Ruleset {
  if (without.size === 0) return to
  const kept = from.tables.filter(({ family }) => staysAsIs(family, without))
  return { tables: [...to.tables.filter(({ family }) => !staysAsIs(family, without)), ...kept] }
}

type OfSet = (set: string) => boolean

/** Counts the elements of our own tables by the sets that contain them. */
export function elementExtent({ tables }: Ruleset, isFrontend: OfSet, isEndpoint: OfSet) {
  let frontends = 0
  let endpoints = 0
  for (const { elements } of tables)
    for (const group of elements.values())
      for (const { set } of group) {
        if (isFrontend(set)) frontends++
        else if (isEndpoint(set)) endpoints++
      }
  return { frontends, endpoints }
}

interface TableDraftOptions {
  readonly family: NftFamily
  readonly name: string
  readonly base: Table | undefined
  /** The counts of the base; undefined when all elements are made again. */
  readonly counts: ReadonlyMap<string, number> | undefined
  /** What an element counts as; absent to count the elements of each set. */
  readonly countedAs?: (element: Element) => readonly string[]
}

/** Builds one of our tables during one render. An equal result is the base's own object. */
export class TableDraft {
  /** Zeros are left out. */
  readonly counts: Map<string, number>
  readonly #given: TableDraftOptions
  readonly #changes = new Map<string, ElementGroup | undefined>()

  constructor(given: TableDraftOptions) {
    this.#given = given
    this.counts = new Map(given.counts)
  }

  put(group: string, elements: ElementGroup): void {
    const { base, counts } = this.#given
    const there = base?.elements.get(group)
    const before = counts === undefined ? undefined : there
    if (before === undefined && elements.length === 0) return
    if (before !== undefined) this.#count(before, -1)
    this.#count(elements, 1)
    if (elements.length === 0) this.#changes.set(group, undefined)
    else this.#changes.set(group, there !== undefined && sameGroup(there, elements) ? there : elements)
  }

  putNodePortIps(ips: readonly Ip[]): void {
    this.put(
      GROUP_NODEPORT_IPS,
      ips.map((key): Element => ({ set: 'nodeport-ips', key, data: undefined, comment: '' })),
    )
  }

  finish(parts: Pick<Table, 'chains' | 'sets'>): Table {
    const { base, family, name } = this.#given
    const made: Table = {
      family,
      name,
      flags: 0,
      comment: TABLE_COMMENT,
      ...parts,
      elements: this.#finishElements(),
    }
    const isSame =
      base !== undefined &&
      base.comment === made.comment &&
      base.flags === made.flags &&
      base.chains === made.chains &&
      base.sets === made.sets &&
      base.elements === made.elements
    return isSame ? base : made
  }

  #finishElements(): PersistentMap<ElementGroup> {
    const { base, counts } = this.#given
    if (base === undefined) return PersistentMap.empty<ElementGroup>().withOwn(this.#changes)
    if (counts === undefined)
      for (const group of base.elements.keys())
        if (!this.#changes.has(group)) this.#changes.set(group, undefined)
    return base.elements.withOwn(this.#changes)
  }

  #count(elements: ElementGroup, by: 1 | -1): void {
    const { countedAs = ({ set }) => [set] } = this.#given
    for (const element of elements)
      for (const name of countedAs(element)) {
        const count = (this.counts.get(name) ?? 0) + by
        if (count === 0) this.counts.delete(name)
        else this.counts.set(name, count)
      }
  }
}
