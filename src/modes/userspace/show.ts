import { PersistentMap } from '../../base/collections.ts'
import { formatCidr, formatIpPort } from '../../base/ip.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import { proxyOfTable, tableNameOf } from '../../config/modes/userspace.ts'
import { NF_INET_LOCAL_IN } from '../../kernel/nft/constants.ts'
import type { Element, NftFamily, Table } from '../../kernel/nft/state.ts'
import { CHAIN_REJECT } from '../common/rules.ts'
import {
  type AddressSets,
  type CaughtPlace,
  damageOfTables,
  HOOK_CHAINS,
  type HookChain,
  isOfService,
  lostClusterIps,
  rulesOfTables,
  type ServedAddress,
  type ServiceRow,
  servedAddresses,
  UNNAMED,
} from '../common/show.ts'
import { type FamilyLayout, LAYOUTS, protocolOfKey } from '../common/tables.ts'
import type { HeldMode, KernelRead } from '../mode.ts'
import { CHAIN_INPUT, portName, rangeBits } from './state.ts'

export function userspaceHeld({ tables, families, proxy }: KernelRead): Promise<HeldMode | undefined> {
  return Promise.resolve(
    heldIn(
      tables.filter(({ name }) => name === tableNameOf(proxy)),
      families,
    ),
  )
}

/** The input hook chain. The rules behind the forwarder translate no source, so nothing has to be masqueraded. */
const INPUT: HookChain = [CHAIN_INPUT, NF_INET_LOCAL_IN]

/** Makes the held state: the kernel holds the daemon's listeners, and no endpoints. Pure. */
export function heldIn(tables: readonly Table[], families: readonly NftFamily[]): HeldMode | undefined {
  if (tables.length === 0) return undefined
  return {
    mode: 'userspace',
    rows: tables.flatMap(rowsOf),
    rules: rulesOfTables(tables),
    damage: damageOfTables(tables, families, [...HOOK_CHAINS, INPUT]),
    tables,
    tablesOf: service =>
      tables.map(table => onlyOf(table, service)).filter(({ elements }) => elements.size > 0),
  }
}

/** Selects the elements that serve one Service alone, with the sets that contain them. Pure. */
function onlyOf(table: Table, service: string): Table {
  const all = elementsOf(table)
  const named = all.filter(({ comment }) => isOfService([portName(comment)], service))
  const places = new Set(named.filter(({ set }) => set === 'guarded').map(({ key }) => key))
  const isRange = ({ set, key }: Element) =>
    rangeBits(set) !== undefined && places.has(key.slice(0, placeLength(LAYOUTS[table.family])))
  const own = [...named, ...all.filter(isRange)]
  const inUse = new Set(own.map(({ set }) => set))
  return {
    ...table,
    chains: new Map(),
    sets: new Map([...table.sets].filter(([name]) => inUse.has(name))),
    elements: own.length === 0 ? PersistentMap.empty() : PersistentMap.from([[service, own]]),
  }
}

function elementsOf({ elements }: Table): readonly Element[] {
  return [...elements.values()].flat()
}

/** Gives the length of an address, a protocol and a port. */
function placeLength({ addressLength }: FamilyLayout): number {
  return addressLength + 8
}

interface Contents extends AddressSets {
  /** The listener of inside clients, by place. */
  readonly inside: ReadonlyMap<Octets, string>
  /** Clients that may connect, by place. */
  readonly allowed: ReadonlyMap<Octets, readonly string[]>
}

function rowsOf(table: Table): readonly ServiceRow[] {
  const layout = LAYOUTS[table.family]
  const elements = elementsOf(table)
  const of = (...sets: readonly string[]) => elements.filter(({ set }) => sets.includes(set))
  const clusterIps = new Set(of('cluster-ips').map(({ key }) => key))
  const inner = new Set(of('inside', 'guarded').map(({ key }) => key))
  const places = of('frontends', 'verdicts').map(({ key, comment }): CaughtPlace => {
    const port = `${portName(comment)} ${protocolOfKey(key)}`
    return { port, ip: key.slice(0, layout.addressLength), isClusterIp: inner.has(key) ? 'no' : 'maybe' }
  })
  const contents: Contents = {
    layout,
    clusterIps,
    lost: lostClusterIps(places, clusterIps, proxyOfTable(table.name) !== undefined),
    nodePortIps: asksForNodePortIps(table) ? of('nodeport-ips').map(({ key }) => key) : undefined,
    inside: new Map(
      of('inside', 'nodeports-inside').map(element => [element.key, listenerOf(element, layout)]),
    ),
    allowed: allowedOf(elements, layout),
  }
  return of('frontends', 'nodeports', 'verdicts', 'nodeport-verdicts').flatMap(element =>
    servedAddresses(element.key, contents, WITHOUT_CLUSTER_IP).map(place => rowOf(element, place, contents)),
  )
}

/** Tests whether rules read the set of node-port addresses, which exists in any case. */
function asksForNodePortIps({ chains }: Table): boolean {
  return [...chains.values()].some(({ rules }) =>
    rules.some(({ expressions }) =>
      expressions.some(each => each.kind === 'lookup' && each.set === 'nodeport-ips'),
    ),
  )
}

function listenerOf({ data }: Element, { addressLength }: FamilyLayout): string {
  if (typeof data !== 'string') return ''
  return formatIpPort(data.slice(0, addressLength), readU16be(data, addressLength))
}

function allowedOf(
  elements: readonly Element[],
  layout: FamilyLayout,
): ReadonlyMap<Octets, readonly string[]> {
  const length = placeLength(layout)
  const allowed = new Map<Octets, string[]>()
  for (const { set, key } of elements) if (set === 'guarded') allowed.set(key, [])
  for (const { set, key } of elements) {
    const bits = rangeBits(set)
    if (bits !== undefined)
      allowed.get(key.slice(0, length))?.push(formatCidr({ ip: key.slice(length), bits }))
  }
  for (const ranges of allowed.values()) ranges.sort()
  return allowed
}

const WITHOUT_CLUSTER_IP = 'other ports of it are not rejected'

function rowOf(
  element: Element,
  { type, text, problem }: ServedAddress,
  { layout, inside, allowed }: Contents,
): ServiceRow {
  const { key, data, comment } = element
  const [insideListener, allowedFrom] = [inside.get(key), allowed.get(key)]
  const verdict = typeof data === 'object' ? (data.chain === CHAIN_REJECT ? 'reject' : 'drop') : undefined
  return {
    service: comment === '' ? UNNAMED : portName(comment),
    type,
    protocol: protocolOfKey(key) ?? 'unknown',
    frontend: text,
    action: verdict ?? 'relay',
    endpoints: [],
    ...(verdict === undefined ? { listener: listenerOf(element, layout) } : {}),
    ...(insideListener === undefined ? {} : { insideListener }),
    ...(allowedFrom === undefined ? {} : { allowedFrom }),
    ...(problem === undefined ? {} : { problem }),
  }
}
