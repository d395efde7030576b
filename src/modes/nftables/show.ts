import { append, PersistentMap } from '../../base/collections.ts'
import { formatCidr, formatIpPort } from '../../base/ip.ts'
import { type Octets, readU16be, readU32host } from '../../base/octets.ts'
import { proxyOfTable, tableNameOf } from '../../config/modes/nftables.ts'
import { NF_INET_POST_ROUTING } from '../../kernel/nft/constants.ts'
import type { Element, ElementGroup, NftFamily, Table } from '../../kernel/nft/state.ts'
import { LOCALHOST } from '../../model/node-context.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_LOCALHOST,
  CHAIN_NO_LOCAL,
  CHAIN_POSTROUTING,
  CHAIN_REJECT,
} from '../common/rules.ts'
import {
  type AddressSets,
  type CaughtPlace,
  damageOfTables,
  endpointTexts,
  HOOK_CHAINS,
  type HookChain,
  lostClusterIps,
  rulesOfTables,
  type ServedAddress,
  type ServiceRow,
  servedAddresses,
  UNNAMED,
} from '../common/show.ts'
import {
  type FamilyLayout,
  GROUP_NODEPORT_IPS,
  LAYOUTS,
  protocolOfKey,
  serviceOfGroup,
} from '../common/tables.ts'
import type { HeldMode, KernelRead } from '../mode.ts'
import { parseChain, type SlotCount } from './chains.ts'
import {
  CODE_MASK,
  ENDPOINTS_MAPS,
  GROUP_AFFINITY,
  GROUP_DISPATCH,
  ID_MASK,
  LOCAL_LIST,
  readPairKey,
} from './layout.ts'
import { adoptRuleset } from './observe.ts'

export function nftablesHeld({ tables, families, proxy }: KernelRead): HeldMode | undefined {
  const own = tables.filter(({ name }) => name === tableNameOf(proxy))
  return heldIn(adoptRuleset({ tables: own }).ruleset.tables, families)
}

const POSTROUTING_CHAINS: readonly HookChain[] = [CHAIN_EARLY_POSTROUTING, CHAIN_POSTROUTING].map(name => [
  name,
  NF_INET_POST_ROUTING,
])

/** Reads the state from `tables`, whose elements are grouped by Service. Pure. */
export function heldIn(tables: readonly Table[], families: readonly NftFamily[]): HeldMode | undefined {
  if (tables.length === 0) return undefined
  return {
    mode: 'nftables',
    rows: kernelRows(tables),
    rules: rulesOfTables(tables),
    rulesForNewClients: () =>
      rulesOfTables(tables.map(table => withGroups(table, group => group !== GROUP_AFFINITY))),
    damage: damageOfTables(tables, families, [...HOOK_CHAINS, ...POSTROUTING_CHAINS]),
    tables,
    tablesOf: service =>
      tables.map(table => onlyOf(table, service)).filter(({ elements }) => elements.size > 0),
  }
}

/** Keeps what nft would list of one Service: its elements, and the sets that contain them. */
function onlyOf(table: Table, service: string): Table {
  const own = withGroups(table, group => serviceOfGroup(group) === service && !SHARED.has(group))
  const inUse = new Set([...own.elements.values()].flat().map(({ set }) => set))
  const sets = new Map([...table.sets].filter(([name]) => inUse.has(name)))
  return { ...own, sets, chains: new Map() }
}

/** The groups that belong to no Service. */
const SHARED: ReadonlySet<string> = new Set([GROUP_DISPATCH, GROUP_NODEPORT_IPS])

function withGroups(table: Table, wanted: (group: string) => boolean): Table {
  const kept: [string, ElementGroup][] = []
  for (const [group, elements] of table.elements.entries()) if (wanted(group)) kept.push([group, elements])
  return { ...table, elements: PersistentMap.from(kept) }
}

/**
 * Reads from the elements of the kernel's tables what they do for each Service. No other source is read. The
 * kernel marks ClusterIPs and node ports as such; all other addresses are external.
 */
export function kernelRows(tables: readonly Table[]): ServiceRow[] {
  const rows: ServiceRow[] = []
  for (const table of tables) {
    const contents = readContents(table)
    for (const element of contents.frontends)
      rows.push(
        ...servedAddresses(element.key, contents, WITHOUT_CLUSTER_IP).map(address =>
          rowOf(element, address, contents),
        ),
        ...localhostRows(element, contents),
      )
  }
  return rows
}

interface Contents extends AddressSets {
  readonly frontends: readonly Element[]
  /** Chains by code. The verdict drop, which the last release wrote, counts as CHAIN_NO_LOCAL. */
  readonly chains: ReadonlyMap<number, string>
  /** The endpoints of each slot but that for empty ones, by list id. */
  readonly lists: ReadonlyMap<number, ListedEndpoints>
  /** Source ranges by service-port id, where V has one. */
  readonly ranges: ReadonlyMap<number, readonly string[]>
  /** A forwarder of the daemon serves node ports at localhost. */
  readonly localhost: boolean
}

function readContents(table: Table): Contents {
  const layout = LAYOUTS[table.family]
  const frontends: Element[] = []
  const clusterIps = new Set<Octets>()
  const nodePortIps: Octets[] = []
  const chains = new Map<number, string>()
  const lists = new Map<number, Map<Octets, number>>()
  const numbers = new Map<number, number[]>()
  const numbered = new Map<number, Octets>()
  const ranges = new Map<number, string[]>()
  for (const group of table.elements.values()) {
    for (const element of group) {
      const { set, key, data } = element
      if (set === 'frontends' || set === 'nodeports') frontends.push(element)
      else if (set === 'cluster-ips') clusterIps.add(key)
      else if (set === 'nodeport-ips') nodePortIps.push(key)
      else if (set === 'dispatch' && typeof data === 'object')
        chains.set(readU32host(key), data.chain ?? CHAIN_NO_LOCAL)
      else if (set === 'slots' && typeof data === 'string')
        append(numbers, readPairKey(key).list, readU32host(data))
      else if (ENDPOINTS_MAPS.has(set) && typeof data === 'string') {
        const { list, slot } = readPairKey(key)
        countSlot(lists, list, data)
        if (slot === undefined) numbered.set(readU32host(key), data)
      } else if (set === 'ranges') append(ranges, (readU32host(key) & ID_MASK) >>> 0, rangeText(key))
    }
  }
  for (const [list, its] of numbers) countNumbered(lists, list, { numbers: its, numbered })
  for (const list of ranges.values()) list.sort()
  const everywhere = !table.sets.has('nodeport-ips')
  const places = frontends
    .filter(({ set }) => set === 'frontends')
    .map(element => placeOf(element, layout, chains))
  const isNamed = proxyOfTable(table.name) !== undefined
  return {
    layout,
    frontends,
    clusterIps,
    lost: lostClusterIps(places, clusterIps, isNamed),
    nodePortIps: everywhere ? undefined : nodePortIps.sort(),
    chains,
    lists,
    ranges,
    localhost: table.chains.has(CHAIN_LOCALHOST),
  }
}

/** The number of slots of each endpoint, by its data. */
type ListedEndpoints = ReadonlyMap<Octets, number>

/** Slot 0 of a hashed list, which stands in for empty ones, counts as any other: a part of a thousandth. */
function countSlot(lists: Map<number, Map<Octets, number>>, id: number, data: Octets): void {
  const list = lists.get(id) ?? new Map<Octets, number>()
  list.set(data, (list.get(data) ?? 0) + 1)
  lists.set(id, list)
}

interface Numbered {
  /** The number of each slot's endpoint. */
  readonly numbers: readonly number[]
  readonly numbered: ReadonlyMap<number, Octets>
}

/** Counts the slots of a list with session affinity, whose elements have each endpoint once, by its number. */
function countNumbered(
  lists: Map<number, Map<Octets, number>>,
  id: number,
  { numbers, numbered }: Numbered,
): void {
  lists.set(id, new Map([...(lists.get(id)?.keys() ?? [])].map(data => [data, 0])))
  for (const number of numbers) {
    const data = numbered.get(number)
    if (data !== undefined) countSlot(lists, id, data)
  }
}

function textOf(data: Octets): string {
  return formatIpPort(data.slice(0, -4), readU16be(data, data.length - 4))
}

function textsOf(list: ListedEndpoints): readonly string[] {
  return endpointTexts(
    [...list.keys()].map(data => ({ ip: data.slice(0, -4), port: readU16be(data, data.length - 4) })),
  )
}

/** Says how a list is chosen from; absent where that is equally, at random. */
function balanceOf(count: SlotCount, list: ListedEndpoints): Pick<RouteFields, 'balance'> {
  if (typeof count === 'string') {
    const policy = count.endsWith('h') ? 'maglev' : 'maglev/5-tuple'
    return { balance: `${policy}, ${Number.parseInt(count, 10)} slots` }
  }
  if ([...list.values()].every(its => its === 1)) return {}
  const slots = [...list.values()].reduce((sum, its) => sum + its, 0)
  const shares = [...list].map(([data, its]) => `${textOf(data)} ${Math.round((1_000 * its) / slots) / 10} %`)
  return { balance: `shares: ${shares.sort().join(', ')}` }
}

const WITHOUT_CLUSTER_IP =
  'clients outside the cluster are not masqueraded, and other ports of it are not rejected'

/** Gives the place of a frontend. Only ClusterIPs lead directly to a chain that picks an endpoint. */
function placeOf(
  { key, data, comment }: Element,
  { addressLength }: FamilyLayout,
  chains: Contents['chains'],
): CaughtPlace {
  const chain = chains.get(typeof data === 'string' ? readU32host(data) & CODE_MASK : 0)
  const ends = chain === CHAIN_REJECT || chain === CHAIN_NO_LOCAL
  const isPick = parseChain(chain ?? '')?.kind === 'pick'
  return {
    port: `${comment} ${protocolOfKey(key)}`,
    ip: key.slice(0, addressLength),
    isClusterIp: isPick ? 'yes' : ends ? 'maybe' : 'no',
  }
}

/** Formats a source range. The low byte of the first half of the key is the prefix length. */
function rangeText(key: Octets): string {
  return formatCidr({ ip: key.slice(4), bits: readU32host(key) & 0xff })
}

function rowOf(element: Element, address: ServedAddress, contents: Contents): ServiceRow {
  const value = typeof element.data === 'string' ? readU32host(element.data) : 0
  const chain = contents.chains.get(value & CODE_MASK)
  return {
    service: element.comment === '' ? UNNAMED : element.comment,
    type: address.type,
    protocol: protocolOfKey(element.key) ?? `protocol ${element.key.charCodeAt(element.key.length - 8)}`,
    frontend: address.text,
    ...routeOf(chain, (value & ID_MASK) >>> 0, contents),
    ...(address.problem === undefined ? {} : { problem: address.problem }),
  }
}

/** Gives the row of a node port at localhost: none without endpoints, because nothing serves it then. */
function localhostRows(element: Element, contents: Contents): readonly ServiceRow[] {
  const { localhost, layout } = contents
  if (!localhost || element.set !== 'nodeports') return []
  const text = formatIpPort(LOCALHOST[layout.model], readU16be(element.key, element.key.length - 4))
  const {
    action,
    endpoints,
    localEndpoints = endpoints,
    ...row
  } = rowOf(element, { type: 'NodePort', text }, contents)
  if (row.protocol === 'SCTP') return [{ ...row, action: 'reject', endpoints: [] }]
  if (action !== 'balance' || localEndpoints.length === 0) return []
  return [{ ...row, action: 'relay', endpoints: localEndpoints, listener: text }]
}

const NO_ENDPOINTS: ReadonlyMap<Octets, number> = new Map()

type RouteFields = Pick<
  ServiceRow,
  'action' | 'endpoints' | 'localEndpoints' | 'allowedFrom' | 'affinitySeconds' | 'balance'
>

function routeOf(chain: string | undefined, id: number, contents: Contents): RouteFields {
  if (chain === undefined) return { action: 'undefined: no verdict has this code', endpoints: [] }
  if (chain === CHAIN_NO_LOCAL) return { action: 'drop', endpoints: [] }
  if (chain === CHAIN_REJECT) return { action: 'reject', endpoints: [] }
  const spec = parseChain(chain)
  if (spec === undefined) return { action: `unknown: ${chain}`, endpoints: [] }
  const list = (bit: number) => contents.lists.get(id + bit) ?? NO_ENDPOINTS
  const over = (bit: number, count: SlotCount) => ({
    action: 'balance',
    endpoints: textsOf(list(bit)),
    ...balanceOf(count, list(bit)),
  })
  switch (spec.kind) {
    case 'firewall':
      return { ...routeOf(spec.target, id, contents), allowedFrom: contents.ranges.get(id) ?? [] }
    case 'pick':
      return { ...over(spec.local ? LOCAL_LIST : 0, spec.count), ...affinityOf(spec.timeoutS) }
    case 'external':
      return { ...over(0, spec.count), ...affinityOf(spec.timeoutS) }
    case 'external-local':
      return {
        ...over(0, spec.cluster),
        localEndpoints: textsOf(list(LOCAL_LIST)),
        ...affinityOf(spec.timeoutS),
      }
  }
}

function affinityOf(timeoutS: number): Pick<RouteFields, 'affinitySeconds'> {
  return timeoutS === 0 ? {} : { affinitySeconds: timeoutS }
}
