import { PersistentMap } from '../../base/collections.ts'
import type { Family, Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Element, ElementData, NftFamily, NftSet, Ruleset } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import {
  DESTINATION,
  DESTINATION_PORT,
  PROTOCOL,
  SOURCE,
  type TypeofField,
  typedSet,
} from '../../kernel/nft/userdata.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import {
  diffForwarders,
  type Forwarder,
  type ForwarderChanges,
  type ForwarderKey,
  type ListName,
} from '../common/forwarder/forwarder.ts'
import { type FamilyLayout, keptFrom, LAYOUTS, portData, portKey } from '../common/tables.ts'
import { countChanges, describeTransaction } from '../common/transaction-plan.ts'

const REDIRECTS = ['inside', 'nodeports-inside', 'frontends', 'nodeports'] as const
/** A map whose data is the address and port of a listener. */
export type RedirectMap = (typeof REDIRECTS)[number]
export const REDIRECT_MAPS: ReadonlySet<string> = new Set(REDIRECTS)

/** The sets of every table. Beside them there is `ranges-N` for each length N of source ranges in use. */
export const FIXED_SETS = [
  'cluster-ips',
  'nodeport-ips',
  'guarded',
  'verdicts',
  'nodeport-verdicts',
  ...REDIRECTS,
  'listeners',
] as const
type FixedSetName = (typeof FIXED_SETS)[number]

/** Names the set of source ranges of one length. */
export function rangesSet(bits: number): string {
  return `ranges-${bits}`
}

/** Gives the length of the ranges in a set; undefined for other sets. */
export function rangeBits(set: string): number | undefined {
  const match = /^ranges-(\d+)$/.exec(set)
  return match === null ? undefined : Number(match[1])
}

/** Sets are declared without a size. The kernel lets them grow, so that no set is ever replaced. */
const SIZE = 0

export function declareFixedSet(name: FixedSetName, layout: FamilyLayout): NftSet {
  const destination = DESTINATION[layout.family]
  const place = { size: SIZE, key: placeFields(layout) }
  const nodePort = { size: SIZE, key: [PROTOCOL, DESTINATION_PORT] }
  const listener = [destination, DESTINATION_PORT]
  switch (name) {
    case 'cluster-ips':
    case 'nodeport-ips':
      return typedSet(name, { size: SIZE, key: [destination] })
    case 'guarded':
    case 'listeners':
      return typedSet(name, place)
    case 'verdicts':
      return typedSet(name, { ...place, data: 'verdict' })
    case 'nodeport-verdicts':
      return typedSet(name, { ...nodePort, data: 'verdict' })
    case 'frontends':
    case 'inside':
      return typedSet(name, { ...place, data: listener, bare: true })
    case 'nodeports':
    case 'nodeports-inside':
      return typedSet(name, { ...nodePort, data: listener, bare: true })
  }
}

export function declareRanges(bits: number, layout: FamilyLayout): NftSet {
  const key = [...placeFields(layout), SOURCE[layout.family]]
  return typedSet(rangesSet(bits), { size: SIZE, key })
}

function placeFields({ family }: FamilyLayout): readonly TypeofField[] {
  return [DESTINATION[family], PROTOCOL, DESTINATION_PORT]
}

export const CHAIN_NODE_PORTS = 'node-ports'
export const CHAIN_INPUT = 'filter-input'

/** The comment suffix of a place that leads only to endpoints of this node: `ns/web:http local`. */
export const LOCAL_SUFFIX = ' local'

/** Gives the Service port in the comment of an element of either list: `ns/web:http`. */
export function portName(comment: string): string {
  return comment.endsWith(LOCAL_SUFFIX) ? comment.slice(0, -LOCAL_SUFFIX.length) : comment
}

/** All that this plane keeps, in the kernel and in this process. Immutable. */
export interface UserspaceState {
  /** Tables `ip` and `ip6`, with symbols for the addresses and ports of listeners: see ListenerSymbol. */
  readonly ruleset: Ruleset
  /** The forwarders of this process, by ForwarderKey. */
  readonly forwarders: PersistentMap<Forwarder>
  /** The addresses and ports that the rules catch: address and portKey, or portKey alone. Empty when read. */
  readonly places: PersistentMap<ServiceKey>
  readonly addresses: Readonly<Record<Family, Ip | undefined>>
  /** The frontend table that it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  readonly without: ReadonlySet<ServiceKey>
  readonly tallies: Readonly<Record<NftFamily, TableTally>>
  /** Parts of Services that this mode does not support, by Service. */
  readonly refusals: ReadonlyMap<ServiceKey, readonly Refusal[]>
}

export interface TableTally {
  /** The number of elements by set. */
  readonly counts: ReadonlyMap<string, number>
  /** The ruleInputsKey of the chains; undefined when they were read from the kernel. */
  readonly chains: string | undefined
}

const NO_TALLY: TableTally = { counts: new Map(), chains: undefined }

/** A state with nothing in the kernel and nothing in the process. */
export const EMPTY_STATE: UserspaceState = {
  ruleset: { tables: [] },
  forwarders: PersistentMap.empty(),
  places: PersistentMap.empty(),
  addresses: { IPv4: undefined, IPv6: undefined },
  frontends: undefined,
  without: new Set(),
  tallies: { ip: NO_TALLY, ip6: NO_TALLY },
  refusals: new Map(),
}

export type PlaceKey = Octets

/**
 * A placeholder for the address and port of a listener. The port is known only once the listener is open, and
 * rendering is pure, so states contain a symbol instead. A symbol begins with a character that is no octet,
 * so that it equals no value that was read. The address follows, and then a text that identifies the
 * listener.
 */
export type ListenerSymbol = string

const ARROW = '\u2192'

export function symbolOf(
  { address, key, protocol }: Pick<Forwarder, 'address' | 'key' | 'protocol'>,
  list: ListName,
): ListenerSymbol {
  return `${ARROW}${address}${list} ${protocol} ${key}`
}

export function isSymbol(data: ElementData): data is ListenerSymbol {
  return typeof data === 'string' && data.startsWith(ARROW)
}

export interface SymbolParts {
  readonly address: Ip
  readonly list: ListName
  readonly protocol: 'TCP' | 'UDP'
  readonly key: ForwarderKey
}

export function readSymbol(symbol: ListenerSymbol, family: NftFamily): SymbolParts {
  const { addressLength } = LAYOUTS[family]
  const address = symbol.slice(1, 1 + addressLength)
  const [list = '', protocol = '', ...rest] = symbol.slice(1 + addressLength).split(' ')
  return {
    address,
    list: list === 'local' ? 'local' : 'cluster',
    protocol: protocol === 'UDP' ? 'UDP' : 'TCP',
    key: rest.join(' '),
  }
}

/** The port of a listener; undefined when it is not open. */
export type PortOf = (key: ForwarderKey, list: ListName) => number | undefined

/** Replaces every symbol by address and port; port 0, on which no process listens, where none is open. */
export function resolveTransaction(transaction: Transaction, portOf: PortOf): Transaction {
  return transaction.map((operation): Operation => {
    if (operation.verb !== 'add-elements' && operation.verb !== 'delete-elements') return operation
    const { family } = operation
    const elements = operation.elements.map(element => resolveElement(element, family, portOf))
    return { ...operation, elements }
  })
}

export function resolveElement(element: Element, family: NftFamily, portOf: PortOf): Element {
  const { key, data } = element
  const keyed = isSymbol(key) ? { ...element, key: keyOctets(key, family, portOf) } : element
  return isSymbol(data) ? { ...keyed, data: dataOctets(data, family, portOf) } : keyed
}

function dataOctets(symbol: ListenerSymbol, family: NftFamily, portOf: PortOf): Octets {
  const { address, key, list } = readSymbol(symbol, family)
  return address + portData(portOf(key, list) ?? 0)
}

function keyOctets(symbol: ListenerSymbol, family: NftFamily, portOf: PortOf): Octets {
  const { address, key, list, protocol } = readSymbol(symbol, family)
  return address + portKey(protocol, portOf(key, list) ?? 0)
}

/** One nf_tables transaction, with the changes of the forwarders around it. */
export interface UserspacePlan extends Plan<UserspaceState>, Pick<ForwarderChanges, 'put' | 'remove'> {
  /** The transaction, with symbols for the addresses and ports of listeners. */
  readonly transaction: Transaction
}

/** No set is read through another set that changes with it. */
const NO_LATE_SETS = { lateSets: new Set<string>() } as const

export function diffStates(from: UserspaceState, wanted: UserspaceState): UserspacePlan {
  const ruleset = keptFrom(from.ruleset, wanted.ruleset, wanted.without)
  const to = ruleset === wanted.ruleset ? wanted : { ...wanted, ruleset }
  const { transaction, after, complete } = diffRulesets(from.ruleset, to.ruleset, NO_LATE_SETS)
  const { put, remove, lines } = diffForwarders(from.forwarders, to.forwarders)
  const changes = transaction.length === 0 ? 0 : countChanges(transaction)
  return {
    transaction,
    put,
    remove,
    empty: transaction.length === 0 && lines.length === 0,
    changes: changes + lines.length,
    after: complete ? to : { ...to, ruleset: after },
    complete,
    rebuilds: false,
    describe: () => [...describeTransaction(resolveTransaction(transaction, noPort), to.ruleset), ...lines],
  }
}

/** A plan does not know the port of a listener yet. */
const noPort = () => undefined
