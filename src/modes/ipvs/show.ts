import { FAMILIES, familyOf, formatCidr, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import {
  entryKey,
  entryText,
  type IpsetEntry,
  type IpsetListing,
  printSets,
  protocolText,
} from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  isPersistent,
  type ListedDestination,
  printSave,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { createAddressReader } from '../../kernel/link/links.ts'
import { NF_DROP, NF_INET_POST_ROUTING } from '../../kernel/nft/constants.ts'
import type { ElementData, NftFamily } from '../../kernel/nft/state.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { CHAIN_POSTROUTING } from '../common/rules.ts'
import {
  asleep,
  damageOfTables,
  endpointTexts,
  HOOK_CHAINS,
  type HookChain,
  isOfService,
  NOT_REACHED,
  namesOfElements,
  type ReadRules,
  remembered,
  type ServiceNames,
  type ServiceRow,
  tableObstacle,
  UNNAMED,
} from '../common/show.ts'
import { familyName, LAYOUTS, PROTOCOLS, portKey, protocolOfKey } from '../common/tables.ts'
import type { DumpFilter, HeldMode, KernelAccess, KernelRead, ModeDump } from '../mode.ts'
import { KUBE_LOAD_BALANCER } from '../xt-common/layout.ts'
import { type ReadChain, traceable } from '../xt-common/read-chains.ts'
import {
  allSetNames,
  entryAt,
  type NftSetName,
  NODE_PORT_SETS,
  nodePortEntry,
  type SetStem,
  setName,
} from './layout.ts'
import { readIpvsState, withIpvsKernel } from './observe.ts'
import { DEFAULT_IPVS_OPTIONS } from './settings.ts'
import type { IpvsState, PlacedServer } from './state.ts'
import { tracedIpvs } from './trace.ts'

export async function ipvsHeld({
  tables,
  chains,
  families,
  proxy,
  names: ask,
  ...context
}: KernelRead): Promise<HeldMode | undefined> {
  const own = tables.filter(({ name }) => proxy === undefined && name === DEFAULT_IPVS_OPTIONS.tableName)
  if (own.length === 0) return undefined
  // Elements of another mode, which may be taking over, also name Services.
  const names = ask(own.length === tables.length) ?? namesOfElements(own)
  const state = await withIpvsKernel(context, readIpvsState)
  const { sockets, clock } = context
  const reader = createAddressReader({ openTransport: sockets.route, clock, except: DUMMY_DEVICE })
  try {
    return heldIn({ state, names, localIps: await reader.read(), chains }, families)
  } finally {
    await reader.close()
  }
}

export interface ReadIpvs {
  readonly state: IpvsState
  readonly names: ServiceNames
  readonly localIps: readonly Ip[]
  readonly chains: readonly ReadChain[]
}

/** Makes the held state from what was read. Pure. */
export function heldIn(
  { state, names, localIps, chains }: ReadIpvs,
  families: readonly NftFamily[],
): HeldMode {
  const tables = state.ruleset.tables.filter(({ family }) => families.includes(family))
  const hookChains: readonly HookChain[] = [...HOOK_CHAINS, [CHAIN_POSTROUTING, NF_INET_POST_ROUTING]]
  return {
    mode: 'ipvs',
    rows: ipvsServiceRows(state, names).filter(({ frontend }) =>
      families.includes(frontend.startsWith('[') ? 'ip6' : 'ip'),
    ),
    rules: rulesOfIpvs(state, chains, localIps),
    damage: damageOfTables(tables, families, hookChains),
    tables,
    tablesOf: () => [],
    names,
  }
}

/** Makes the rows for what IPVS and the rules do with each frontend. Pure. */
function ipvsServiceRows(state: IpvsState, names: ServiceNames): readonly ServiceRow[] {
  const rules = readRules(state)
  const rows = [...state.servers.values()].map(placed => {
    const { server } = placed
    return {
      service: nameOf(server, names) || UNNAMED,
      type: typeOf(state, server, rules),
      protocol: server.protocol,
      frontend: formatIpPort(server.ip, server.port),
      ...routeOf(state, placed, rules),
      ...allowedOf(state, server, rules),
      ...(isPersistent(server) ? { affinitySeconds: server.timeoutS } : {}),
      ...unboundOf(state, server),
    }
  })
  return [...rows, ...rowsWithoutServer(state, names)]
}

/**
 * Checks whether the address is bound. Routing brings packets of other hosts to IPVS only at an address of
 * the node. IPVS receives packets of the node's own processes in any case.
 */
function unboundOf(state: IpvsState, { ip }: VirtualServer): Pick<ServiceRow, 'problem'> {
  if (!isBound(state, ip) || state.addresses.has(ip)) return {}
  return { problem: `${NOT_REACHED} from prerouting: ${formatIp(ip)} is not an address of ${DUMMY_DEVICE}` }
}

const RECORDS: readonly (readonly [SetStem, type: string])[] = [
  ['CLUSTER-IP', 'ClusterIP'],
  ['EXTERNAL-IP', 'External'],
  ['EXTERNAL-IP-LOCAL', 'External'],
  ['LOAD-BALANCER', 'External'],
]

/** Makes rows for entries without their virtual server. The sets record what is served, so this is damage. */
function rowsWithoutServer(state: IpvsState, names: ServiceNames): readonly ServiceRow[] {
  const types = new Map(
    RECORDS.flatMap(([stem, type]) => FAMILIES.map(family => [setName(stem, family), type])),
  )
  const rows = new Map<string, ServiceRow>()
  for (const { set, entry } of state.entries.values()) {
    const type = types.get(set)
    const protocol = PROTOCOLS.find(each => PROTOCOL_NUMBERS[each] === entry.protocol)
    const { ip, port } = entry
    if (type === undefined || protocol === undefined || ip === undefined || port === undefined) continue
    const key = serverKey({ protocol, ip, port })
    if (state.servers.has(key)) continue
    const frontend = formatIpPort(ip, port)
    rows.set(key, {
      service: nameOf({ protocol, ip, port }, names) || UNNAMED,
      type,
      protocol,
      frontend,
      action: 'balance',
      endpoints: [],
      problem: `${NOT_REACHED} from prerouting and output: there is no virtual server ${protocol} ${frontend}`,
    })
  }
  return [...rows.values()]
}

/** The parts of our own tables and sets that concern addresses and ports. */
interface Rules {
  /** Elements by set, then by the key of a place: `ip . protocol . port`. */
  readonly elements: ReadonlyMap<string, ReadonlyMap<Octets, ElementData>>
  /** Virtual servers to which elements redirect packets, by serverKey. */
  readonly targets: ReadonlySet<string>
  /** Clients that may connect, by serverKey. */
  readonly ranges: ReadonlyMap<string, readonly string[]>
}

function readRules({ ruleset, entries }: IpvsState): Rules {
  const elements = new Map<string, Map<Octets, ElementData>>()
  const targets = new Set<string>()
  for (const { family, elements: groups } of ruleset.tables)
    for (const { set, key, data } of [...groups.values()].flat()) {
      const known = elements.get(set) ?? new Map<Octets, ElementData>()
      elements.set(set, known.set(key, data))
      if (typeof data === 'string') targets.add(`${protocolOfKey(key)} ${placeText(data, family)}`)
    }
  const ranges = new Map<string, string[]>()
  for (const { set, entry } of entries.values()) {
    const { ip, protocol, port, ip2, prefix2, nomatch } = entry
    const isRange = set.includes('LOAD-BALANCER-SOURCE') && nomatch !== true
    if (!isRange || ip === undefined || ip2 === undefined) continue
    const text = prefix2 === undefined ? formatIp(ip2) : formatCidr({ ip: ip2, bits: prefix2 })
    const key = `${protocol} ${formatIpPort(ip, port ?? 0)}`
    ranges.set(key, [...(ranges.get(key) ?? []), text])
  }
  return { elements, targets, ranges }
}

function placeText(data: Octets, family: 'ip' | 'ip6'): string {
  const { addressLength } = LAYOUTS[family]
  return formatIpPort(data.slice(0, addressLength), readU16be(data, addressLength))
}

/** Gives the type of a virtual server. One to which only rules redirect packets is private. */
function typeOf(state: IpvsState, server: VirtualServer, { targets }: Rules): string {
  const isAny = (...stems: readonly SetStem[]) => stems.some(stem => isIn(state, stem, server))
  if (isAny('CLUSTER-IP')) return 'ClusterIP'
  if (isAny('LOAD-BALANCER', 'EXTERNAL-IP', 'EXTERNAL-IP-LOCAL')) return 'External'
  if (!isBound(state, server.ip)) return 'NodePort'
  return targets.has(serverKey(server)) ? 'private' : 'ClusterIP'
}

function isIn({ entries }: IpvsState, stem: SetStem, at: VirtualServer): boolean {
  return entries.has(entryKey(setName(stem, familyOf(at.ip)), entryAt(at)))
}

function isBound({ entries }: IpvsState, ip: Ip): boolean {
  return entries.has(entryKey(setName('IPVS-IPS', familyOf(ip)), { ip }))
}

/** Tests whether outside clients reach only endpoints of this node. */
function isLocalOnly(state: IpvsState, server: VirtualServer): boolean {
  if (isIn(state, 'EXTERNAL-IP-LOCAL', server) || isIn(state, 'LOAD-BALANCER-LOCAL', server)) return true
  if (isBound(state, server.ip)) return false
  const stem = NODE_PORT_SETS[server.protocol].local
  return state.entries.has(entryKey(setName(stem, familyOf(server.ip)), nodePortEntry(server)))
}

/** Gives the route of a frontend: the verdict, or the server to which packets are redirected. */
function routeOf(
  state: IpvsState,
  placed: PlacedServer,
  { elements }: Rules,
): Pick<ServiceRow, 'action' | 'endpoints' | 'localEndpoints'> {
  const { server } = placed
  const key = server.ip + portKey(server.protocol, server.port)
  const verdict = elements.get('verdicts')?.get(key)
  if (typeof verdict === 'object' && verdict !== undefined)
    return { action: verdict.code === NF_DROP ? 'drop' : 'reject', endpoints: [] }
  const listOf = (map: NftSetName) => {
    const to = elements.get(map)?.get(key)
    const family = familyOf(server.ip) === 'IPv4' ? 'ip' : 'ip6'
    const other = typeof to === 'string' ? `${server.protocol} ${placeText(to, family)}` : undefined
    return usable(other === undefined ? placed : state.servers.get(other))
  }
  const endpoints = listOf('cluster-lists')
  if (!isLocalOnly(state, server))
    return { action: endpoints.length === 0 ? 'reject or drop' : 'balance', endpoints }
  const isNone = elements.get('no-local')?.has(key) === true
  return { action: 'balance', endpoints, localEndpoints: isNone ? [] : listOf('local-lists') }
}

/** Lists the endpoints that take new connections. Draining ones do not. */
function usable(placed: PlacedServer | undefined): readonly string[] {
  return endpointTexts([...(placed?.destinations.values() ?? [])].filter(({ weight }) => weight > 0))
}

function allowedOf(
  state: IpvsState,
  server: VirtualServer,
  { ranges }: Rules,
): Pick<ServiceRow, 'allowedFrom'> {
  if (!isIn(state, 'LOAD-BALANCER-FW', server)) return {}
  const key = `${PROTOCOL_NUMBERS[server.protocol]} ${formatIpPort(server.ip, server.port)}`
  return { allowedFrom: [...(ranges.get(key) ?? [])].sort() }
}

/** Makes the rules of IPVS mode, with the chains of iptables where one exists that no other mode has. */
function rulesOfIpvs(state: IpvsState, chains: readonly ReadChain[], localIps: readonly Ip[]): ReadRules {
  const tables = state.ruleset.tables.map(asleep)
  const writesChains = chains.some(({ ours, name }) => ours && name === KUBE_LOAD_BALANCER)
  return {
    traced: () => tracedIpvs({ ...state, ruleset: { tables } }, writesChains ? traceable(chains) : undefined),
    localIps: new Set(localIps),
    obstacle: remembered((family, hook) => tableObstacle(state.ruleset.tables, family, hook)),
  }
}

const SERVERS: ModeDump = {
  what: 'ipvs',
  saveFormat: 'ipvsadm-save',
  async read(kernel, filter) {
    const listed = await readServers(kernel, filter)
    const rows = serverRows(listed, filter.names)
    return {
      heading: ['SERVICE', 'VIRTUAL SERVER', 'SCHEDULER', 'DESTINATION', 'WEIGHT', 'CONNECTIONS'],
      rows: rows.flatMap(serverCells),
      value: { servers: rows },
      save: printSave(
        listed.map(({ server, destinations }) => ({
          server,
          destinations: destinations.map(({ destination }) => destination),
        })),
      ),
      isEmpty: rows.length === 0,
      hasUnnamed: rows.some(({ service }) => service === ''),
    }
  },
}

const SETS: ModeDump = {
  what: 'ipset',
  saveFormat: 'ipset-save',
  async read(kernel, filter) {
    const sets = await readSets(kernel, filter)
    const rows = entryRows(sets, filter.names)
    return {
      heading: ['SERVICE', 'SET', 'ENTRY'],
      rows: rows.map(({ set, entry, service }) => [service || '-', set, entry]),
      value: { sets: sets.map(({ entries: _, ...header }) => header), entries: rows },
      save: printSets(sets),
      isEmpty: sets.length === 0,
      hasUnnamed: rows.some(({ service }) => service === ''),
    }
  },
}

export const IPVS_DUMPS: readonly ModeDump[] = [SERVERS, SETS]

interface ListedServerWith {
  readonly server: VirtualServer
  readonly destinations: readonly ListedDestination[]
}

/** Makes the rows of virtual servers, sorted by Service and address; `service` is empty when it is unknown. Pure. */
export function serverRows(servers: readonly ListedServerWith[], names: ServiceNames) {
  return servers
    .map(({ server, destinations }) => {
      const { protocol, ip, port, scheduler, timeoutS } = server
      return {
        service: nameOf(server, names),
        protocol,
        address: formatIpPort(ip, port),
        scheduler,
        ...(isPersistent(server) ? { affinitySeconds: timeoutS } : {}),
        destinations: destinations.map(({ destination, activeConnections, inactiveConnections }) => ({
          address: destinationKey(destination),
          weight: destination.weight,
          activeConnections,
          inactiveConnections,
        })),
      }
    })
    .sort((a, b) => compareTexts(a.service, b.service) || compareTexts(a.address, b.address))
}

function serverCells(row: ReturnType<typeof serverRows>[number]): readonly (readonly string[])[] {
  const sticky = row.affinitySeconds === undefined ? '' : ` sticky ${row.affinitySeconds}s`
  const head = [row.service || '-', `${row.protocol} ${row.address}`, row.scheduler + sticky]
  if (row.destinations.length === 0) return [[...head, 'none', '-', '-']]
  return row.destinations.map((each, at) => [
    ...(at === 0 ? head : ['', '', '']),
    each.address,
    each.weight === 0 ? 'drains' : String(each.weight),
    `${each.activeConnections}+${each.inactiveConnections}`,
  ])
}

/** Names a virtual server. A private one has the ClusterIP of its Service. */
export function nameOf({ protocol, ip, port }: VirtualAddress, names: ServiceNames): string {
  return names.at(protocol, ip, port) ?? names.atClusterIp(ip) ?? names.atNodePort(protocol, port) ?? ''
}

/**
 * Makes the rows of entries, each in the syntax of the ipset command, in the order of the sets, and sorted: the kernel's
 * order differs with every set. Pure.
 */
export function entryRows(sets: readonly IpsetListing[], names: ServiceNames) {
  return sets.flatMap(({ set, entries }) =>
    entries
      .map(entry => ({
        set: set.name,
        entry: entryText(set, entry),
        service: entryService(set.name, entry, names),
      }))
      .sort((a, b) => compareTexts(a.entry, b.entry)),
  )
}

function entryService(set: string, { ip, protocol, port }: IpsetEntry, names: ServiceNames): string {
  if (port === undefined) return (ip === undefined ? undefined : names.atAddress(ip)) ?? ''
  if (ip === undefined) return names.atNodePort(set.endsWith('UDP') ? 'UDP' : 'TCP', port) ?? ''
  const name = protocolText(protocol ?? 0).toUpperCase()
  return names.at(name, ip, port) ?? names.atNodePort(name, port) ?? ''
}

/** Reads our virtual servers, with the number of connections of each real server. */
async function readServers(context: KernelAccess, filter: DumpFilter): Promise<readonly ListedServerWith[]> {
  const { families, service, names } = filter
  return await withIpvsKernel(context, async kernel => {
    const { servers } = await readIpvsState(kernel)
    const shown = [...servers.values()]
      .map(({ server }) => server)
      .filter(({ ip }) => families.includes(familyName(familyOf(ip))))
      .filter(server => isOfService([nameOf(server, names)], service))
    const lists = await kernel.ipvs.destinations(shown)
    return shown.map((server, at) => ({ server, destinations: lists[at] ?? [] }))
  })
}

/** Reads the ipsets of this mode, including those of kube-proxy's IPVS mode, which have the same names. */
async function readSets(
  context: KernelAccess,
  { families, service, names }: DumpFilter,
): Promise<readonly IpsetListing[]> {
  const sets = await withIpvsKernel(context, ({ ipset }) => ipset.list(allSetNames()))
  // Only the name of a bitmap of ports contains a family.
  const shown = sets.filter(({ set }) => families.includes(set.name.startsWith('KUBE-6-') ? 'ip6' : 'ip'))
  if (service === '') return shown
  return shown
    .map(listing => {
      const { set, entries } = listing
      const isOf = (entry: IpsetEntry) => isOfService([entryService(set.name, entry, names)], service)
      return { ...listing, entries: entries.filter(isOf) }
    })
    .filter(({ entries }) => entries.length > 0)
}
