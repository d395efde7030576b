import { FAMILIES, familyOf, formatCidr, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import { entryKey } from '../../kernel/ipset/state.ts'
import { isPersistent, serverKey, type VirtualAddress, type VirtualServer } from '../../kernel/ipvs/state.ts'
import { createAddressReader } from '../../kernel/link/links.ts'
import { NF_INET_POST_ROUTING } from '../../kernel/nft/constants.ts'
import type { ElementData, NftFamily } from '../../kernel/nft/state.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { CHAIN_POSTROUTING, CHAIN_REJECT } from '../common/rules.ts'
import { namesOfElements, type ServiceNames } from '../common/service-names.ts'
import {
  asleep,
  damageOfTables,
  endpointTexts,
  HOOK_CHAINS,
  type HookChain,
  NOT_REACHED,
  type ReadRules,
  remembered,
  type ServiceRow,
  tableObstacle,
  UNNAMED,
} from '../common/show.ts'
import { familyName, LAYOUTS, PROTOCOLS, portKey, protocolOfKey } from '../common/tables.ts'
import type { HeldMode, KernelRead } from '../mode.ts'
import { KUBE_LOAD_BALANCER } from '../xt-common/layout.ts'
import { type ReadChain, traceable } from '../xt-common/read-chains.ts'
import { entryAt, type NftSetName, NODE_PORT_SETS, nodePortEntry, type SetStem, setName } from './layout.ts'
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
    return { action: verdict.chain === CHAIN_REJECT ? 'reject' : 'drop', endpoints: [] }
  const listOf = (map: NftSetName) => {
    const to = elements.get(map)?.get(key)
    const family = familyName(familyOf(server.ip))
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

/** Names a virtual server. A private one has the ClusterIP of its Service. */
export function nameOf({ protocol, ip, port }: VirtualAddress, names: ServiceNames): string {
  return names.at(protocol, ip, port) ?? names.atClusterIp(ip) ?? names.atNodePort(protocol, port) ?? ''
}
