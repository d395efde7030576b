import { append } from '../../base/collections.ts'
import { compareIps, type Family, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { type Octets, readU16be } from '../../base/octets.ts'
import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NFT_TABLE_F_DORMANT } from '../../kernel/nft/constants.ts'
import type { Chain, NftFamily, Table } from '../../kernel/nft/state.ts'
import type { Backend } from '../../model/frontend.ts'
import { CHAIN_OUTPUT, CHAIN_PREROUTING } from './rules.ts'
import { type FamilyLayout, familyName, tableOf } from './tables.ts'
import type { TracedRules } from './traced-rules.ts'

/** Packets of other hosts and pods enter the rules at prerouting, those of processes of this node at output. */
export type Hook = 'prerouting' | 'output'

/** The rules of one mode as they were read from the kernel. */
export interface ReadRules {
  /** The rules as values. Chains of iptables are translated each time. */
  readonly traced: () => TracedRules
  /** The addresses of interfaces of this node, as far as the rules depend on them. */
  readonly localIps: ReadonlySet<Ip>
  /** Gives the reason why no packet of a family reaches the rules about Services; undefined when packets do. */
  readonly obstacle: (family: Family, hook: Hook) => string | undefined
  /** Rules reject connections to external addresses without endpoints only on the way in, as kube-proxy's do. */
  readonly rejectsOutsideOnly?: true
}

/** Makes ReadRules for a mode that writes only tables of our own. */
export function rulesOfTables(tables: readonly Table[]): ReadRules {
  return {
    traced: () => ({ tables: tables.map(asleep) }),
    localIps: new Set(),
    obstacle: remembered((family, hook) => tableObstacle(tables, family, hook)),
  }
}

/** Lists damage to the shared rules, including rules that do not lead to endpoints. */
export function damageOfTables(
  tables: readonly Table[],
  families: readonly NftFamily[],
  hookChains: readonly HookChain[],
): readonly string[] {
  const [any] = tables
  if (any === undefined) return []
  const missing = families
    .filter(family => !tables.some(table => table.family === family))
    .map(family => `there is no table ${family} ${any.name}`)
  return [...missing, ...tables.flatMap(table => damageOf(table, hookChains))]
}

export type HookChain = readonly [name: string, hooknum: number]

export const HOOK_CHAINS: readonly HookChain[] = [
  [CHAIN_PREROUTING, NF_INET_PRE_ROUTING],
  [CHAIN_OUTPUT, NF_INET_LOCAL_OUT],
]

function damageOf(table: Table, hookChains: readonly HookChain[]): readonly string[] {
  if (isDormant(table)) return [dormantText(table)]
  const missing = hookChains
    .filter(([name, hook]) => table.chains.get(name)?.hook?.hooknum !== hook)
    .map(([name]) => missingText(table, name))
  const empty = [...table.chains.values()].filter(({ rules }) => rules.length === 0)
  return [...missing, ...empty.map(chain => emptyText(table, chain.name))]
}

function missingText({ family, name: table }: Table, chain: string): string {
  return `there is no chain ${family} ${table} ${chain} at its hook`
}

function emptyText({ family, name: table }: Table, chain: string): string {
  return `chain ${family} ${table} ${chain} is empty`
}

function isDormant({ flags }: Table): boolean {
  return (flags & NFT_TABLE_F_DORMANT) !== 0
}

function dormantText({ family, name }: Table): string {
  return `table ${family} ${name} is dormant`
}

/** Gives a dormant table without its hooks. */
export function asleep(table: Table): Table {
  if (!isDormant(table)) return table
  const chains = [...table.chains].map(([name, chain]) => [name, { ...chain, hook: undefined }] as const)
  return { ...table, chains: new Map(chains) }
}

interface HookChains {
  readonly hooknum: number
  readonly base: string
  readonly builtin: string
}

export const HOOK_OF: Readonly<Record<Hook, HookChains>> = {
  prerouting: { hooknum: NF_INET_PRE_ROUTING, base: CHAIN_PREROUTING, builtin: 'PREROUTING' },
  output: { hooknum: NF_INET_LOCAL_OUT, base: CHAIN_OUTPUT, builtin: 'OUTPUT' },
}

export function tableObstacle(tables: readonly Table[], of: Family, hook: Hook): string | undefined {
  const family = familyName(of)
  const table = tableOf({ tables }, family)
  if (table === undefined) return `there is no table of family ${family}`
  if (isDormant(table)) return dormantText(table)
  const { hooknum, base } = HOOK_OF[hook]
  const first = table.chains.get(base)
  if (first?.hook?.hooknum !== hooknum) return missingText(table, base)
  const empty = chainsFrom(first, table).find(({ rules }) => rules.length === 0)
  return empty === undefined ? undefined : emptyText(table, empty.name)
}

/** Gives this chain and all chains that its rules reach. */
function chainsFrom(first: Chain, { chains }: Table): readonly Chain[] {
  const found = new Set([first])
  for (const { rules } of found)
    for (const { expressions } of rules)
      for (const each of expressions) {
        const next = each.kind === 'verdict' ? chains.get(each.verdict.chain ?? '') : undefined
        if (next !== undefined) found.add(next)
      }
  return [...found]
}

export function remembered(compute: ReadRules['obstacle']): ReadRules['obstacle'] {
  const known = new Map<string, string | undefined>()
  return (family, hook) => {
    const key = `${family} ${hook}`
    if (!known.has(key)) known.set(key, compute(family, hook))
    return known.get(key)
  }
}

/** The Service of a row whose objects do not carry its name. */
export const UNNAMED = '(unnamed)'

/** One place at which rules catch traffic, and what they do with it: a row for people and for `-o json`. */
export interface ServiceRow {
  /** `namespace/name:port`. */
  readonly service: string
  /** `ClusterIP`, `External` (externalIPs and load-balancer addresses look the same in the kernel), or `NodePort`. */
  readonly type: string
  readonly protocol: string
  /** `10.96.0.10:80`; `*:30080` for every address of the node. */
  readonly frontend: string
  /** `balance`, `relay` (in userspace mode, and for node ports at localhost), `reject` or `drop`. */
  readonly action: string
  /** The endpoints of all connections, or of those that the fields below do not cover. */
  readonly endpoints: readonly string[]
  /** With policy Local: the endpoints of connections from outside, which keep their source address. */
  readonly localEndpoints?: readonly string[]
  /** The clients that may connect; absent when all may. */
  readonly allowedFrom?: readonly string[]
  readonly affinitySeconds?: number
  /** How connections are divided: `maglev, 1019 slots`, or the shares of endpoints; absent where all are equal, at random. */
  readonly balance?: string
  /** The address at which the daemon accepts connections that it forwards; the frontend itself where no rule leads there. */
  readonly listener?: string
  /** With policy Local: the address at which it accepts connections of pods and of the node. */
  readonly insideListener?: string
  /** `NOT REACHED …` when packets do not come here, `INCOMPLETE …` when something else is missing; absent otherwise. */
  readonly problem?: string
  /** The Pods, `namespace/name`, of endpoints, where a command knows them. */
  readonly pods?: Readonly<Record<string, string>>
  /** The mode whose rules it was read from; absent for a computed row. */
  readonly mode?: string
}

/** The prefix of the problem of a place that packets do not reach. */
export const NOT_REACHED = 'NOT REACHED'
export const INCOMPLETE = 'INCOMPLETE'

/** Formats endpoints, sorted by address as a number, for every command and mode. */
export function endpointTexts(endpoints: readonly Pick<Backend, 'ip' | 'port'>[]): readonly string[] {
  return [...endpoints]
    .sort((a, b) => compareIps(a.ip, b.ip) || a.port - b.port)
    .map(({ ip, port }) => formatIpPort(ip, port))
}

/**
 * Tests whether the row belongs to the Service `namespace/name`, or to one of `namespace/`. An empty name matches all
 * Services.
 */
export function isOfService(services: readonly string[], service: string): boolean {
  if (service === '') return true
  const start = service.endsWith('/') ? service : `${service}:`
  return services.some(name => name === service || name.startsWith(start))
}

/** An address in a map of frontends. */
export interface CaughtPlace {
  /** The Service port, with its protocol. */
  readonly port: string
  readonly ip: Ip
  /** `yes` where only ClusterIPs are served in this way, `maybe` where other addresses can be too. */
  readonly isClusterIp: 'yes' | 'maybe' | 'no'
}

/**
 * Gives addresses that are missing from the set of ClusterIPs. Every port of a Service has a ClusterIP, so a
 * port without any address in the set has lost it. A named proxy also serves headless Services, so only
 * addresses that can be nothing but a ClusterIP count there.
 */
export function lostClusterIps(
  places: readonly CaughtPlace[],
  known: ReadonlySet<Ip>,
  isNamed: boolean,
): ReadonlySet<Ip> {
  const byPort = new Map<string, CaughtPlace[]>()
  for (const place of places) {
    append(byPort, place.port, place)
  }
  const lost = new Set<Ip>()
  for (const group of byPort.values()) {
    if (group.some(({ ip }) => known.has(ip))) continue
    const sure = group.filter(({ isClusterIp }) => isClusterIp === 'yes')
    const maybe = isNamed ? [] : group.filter(({ isClusterIp }) => isClusterIp === 'maybe')
    const [found, ...more] = sure.length > 0 ? sure : maybe
    if (found !== undefined && more.length === 0) lost.add(found.ip)
  }
  return lost
}

export interface ServedAddress {
  readonly type: string
  readonly text: string
  readonly problem?: string
}

/** The sets of a table that show the kind of a frontend's address. */
export interface AddressSets {
  readonly layout: FamilyLayout
  readonly clusterIps: ReadonlySet<Octets>
  /** ClusterIPs that are missing from the set of ClusterIPs. */
  readonly lost: ReadonlySet<Octets>
  /** Undefined when node ports are served on every address. */
  readonly nodePortIps: readonly Octets[] | undefined
}

/** Lists the addresses of a frontend or node port by its key. `follows` describes the effect of a lost ClusterIP. */
export function servedAddresses(
  key: Octets,
  { layout, clusterIps, lost, nodePortIps }: AddressSets,
  follows: string,
): readonly ServedAddress[] {
  const port = readU16be(key, key.length - 4)
  if (key.length > NODE_PORT_KEY_LENGTH) {
    const ip = key.slice(0, layout.addressLength)
    const text = formatIpPort(ip, port)
    if (lost.has(ip)) return [{ type: 'ClusterIP', text, problem: lostText(ip, follows) }]
    return [{ type: clusterIps.has(ip) ? 'ClusterIP' : 'External', text }]
  }
  const everywhere = `${layout.family === 'ip' ? '*' : '[*]'}:${port}`
  const texts = nodePortIps?.map(ip => formatIpPort(ip, port)) ?? [everywhere]
  return texts.map(text => ({ type: 'NodePort', text }))
}

/** A node port is served at any address: its key has only a protocol and a port. */
const NODE_PORT_KEY_LENGTH = 8

function lostText(ip: Ip, follows: string): string {
  return `${INCOMPLETE}: ${formatIp(ip)} is missing in set cluster-ips: ${follows}`
}
