import { type Family, formatCidr, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { targetChain, type XtMatch, type XtRule } from '../../kernel/xt/rule.ts'
import {
  endpointTexts,
  HOOK_OF,
  type Hook,
  isOfService,
  NOT_REACHED,
  type ReadRules,
  remembered,
  type ServiceRow,
  UNNAMED,
} from '../common/show.ts'
import { familyName, NFT_FAMILIES } from '../common/tables.ts'
import type { HeldMode, KernelRead, ModeDump } from '../mode.ts'
import {
  type ChainNames,
  chainNames,
  dispatchNames,
  isServiceChain,
  serviceChainKind,
} from '../xt-common/layout.ts'
import {
  type ReadChain,
  type ReadRule,
  readIptables,
  saveIptables,
  traceable,
  tracedChains,
} from '../xt-common/read-chains.ts'
import { isSingle } from './optimize/dispatch.ts'

export function iptablesHeld({ chains, proxy }: KernelRead): Promise<HeldMode | undefined> {
  return Promise.resolve(heldIn(chains, chainNames(proxy)))
}

/** Makes the held state from chains. Pure. */
export function heldIn(chains: readonly ReadChain[], names: ChainNames): HeldMode | undefined {
  const rows = iptablesServiceRows(chains, names)
  if (rows.length === 0) return undefined
  return {
    mode: 'iptables',
    rows,
    rules: rulesOfChains(chains, names),
    damage: damageOfChains(chains, names),
    tables: [],
    tablesOf: () => [],
  }
}

/**
 * Makes the rows for what the chains of an iptables mode do for each Service, in the format of `kprobe dump services`
 * for all modes. Adds the chains of Services that no rule leads to. Pure.
 */
function iptablesServiceRows(chains: readonly ReadChain[], names: ChainNames): readonly ServiceRow[] {
  const rows = NFT_FAMILIES.flatMap(family => {
    const own = chains.filter(chain => chain.ours && chain.family === family)
    const nat = new Map(own.filter(({ table }) => table === 'nat').map(chain => [chain.name, chain]))
    const reading = { names, chains: nat, nodePortIps: nodePortIpsOf(nat, names) }
    const found = own
      .filter(({ table, name }) => !isServiceChain(names, table, name))
      .flatMap(chain => chain.rules.flatMap(rule => placesOf(chain, rule, reading)))
    // A rule that rejects counts only for a port without a rule that leads to endpoints.
    const led = new Set(found.filter(({ leads }) => leads).map(({ key }) => key))
    const shown = found.filter(({ leads, key }) => leads || !led.has(key))
    return [...shown.map(({ row }) => row), ...orphansOf(own, reading)]
  })
  return [
    ...new Map(rows.map(row => [JSON.stringify([row.service, row.protocol, row.frontend]), row])).values(),
  ]
}

const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'TCP', 17: 'UDP', 132: 'SCTP' }
interface Reading {
  readonly names: ChainNames
  /** Chains of one family in table nat, by name. */
  readonly chains: ReadonlyMap<string, ReadChain>
  /** Undefined when node ports are served on every address. */
  readonly nodePortIps: readonly Ip[] | undefined
}

/** Returns the addresses whose packets are sent to the chain of node ports. */
function nodePortIpsOf(nat: Reading['chains'], { nodePorts }: ChainNames): readonly Ip[] | undefined {
  const ways = [...nat.values()].flatMap(({ rules }) =>
    rules.filter(({ rule }) => targetChain(rule) === nodePorts).map(({ rule }) => rule),
  )
  const only = ways.filter(isAddress).map(({ destination }) => destination.ip)
  return ways.length === 0 || only.length < ways.length ? undefined : [...new Set(only)]
}

/**
 * Returns the type of the addresses in a chain of the table filter that rejects clients of Services. The chains of node
 * ports and of the firewall in that table lead to no endpoint.
 */
function endsOf({ prefix, services, externalServices }: ChainNames, name: string): string | undefined {
  const divided = dispatchNames(prefix)
  if (name === services || name.startsWith(divided.services)) return 'ClusterIP'
  return name === externalServices || name.startsWith(divided.externalServices) ? 'External' : undefined
}

interface Place {
  readonly row: ServiceRow
  /** Returns whether the rule leads to chains of the Service. */
  readonly leads: boolean
  /** Equal for places of one port of a Service that have the same type. */
  readonly key: string
}

function placesOf(
  { family, table, name }: ReadChain,
  { rule, services }: ReadRule,
  reading: Reading,
): readonly Place[] {
  const { names, nodePortIps } = reading
  const port = portOf(rule.matches)
  const protocol = PROTOCOLS[rule.protocol?.number ?? 0]
  if (port === undefined || protocol === undefined) return []
  const { target } = rule
  const next = targetChain(rule)
  const leads = table === 'nat' && next !== undefined && isServiceChain(names, 'nat', next)
  const endsFor = table === 'filter' ? endsOf(names, name) : undefined
  const ends = endsFor !== undefined && (target?.kind === 'REJECT' || target?.kind === 'DROP')
  if (!leads && !ends) return []
  const service = services[0] ?? UNNAMED
  const type = isAddress(rule) ? (endsFor ?? typeOf(rule)) : 'NodePort'
  const everywhere = [`${family === 'ip' ? '*' : '[*]'}:${port}`]
  const listed =
    leads && nodePortIps !== undefined ? nodePortIps.map(ip => formatIpPort(ip, port)) : everywhere
  const frontends = isAddress(rule) ? [formatIpPort(rule.destination.ip, port)] : listed
  const route = leads
    ? routeOf(next, reading)
    : { action: target?.kind === 'DROP' ? 'drop' : 'reject', endpoints: [] }
  const address = isAddress(rule) ? rule.destination.ip : ''
  const key = JSON.stringify([service, type, protocol, port, address])
  return frontends.map(frontend => ({ row: { service, type, protocol, frontend, ...route }, leads, key }))
}

/** Returns chains that only shared rules can lead to, and that no rule leads to. */
function orphansOf(own: readonly ReadChain[], reading: Reading): readonly ServiceRow[] {
  const { names } = reading
  const led = new Set(own.flatMap(({ rules }) => rules.map(({ rule }) => targetChain(rule))))
  return [...reading.chains.values()].flatMap(({ name, rules }): readonly ServiceRow[] => {
    const kind = serviceChainKind(names, name)
    if (kind === undefined || kind === 'SEP' || led.has(name)) return []
    const known = rules
      .map(({ rule }) => rule)
      .find(rule => isAddress(rule) && portOf(rule.matches) !== undefined)
    const at = known !== undefined && isAddress(known) ? known.destination.ip : undefined
    return [
      {
        service: rules.flatMap(({ services }) => services)[0] ?? UNNAMED,
        type: kind === 'SVC' || kind === 'SVL' ? 'ClusterIP' : 'External',
        protocol: at === undefined ? '' : (PROTOCOLS[known?.protocol?.number ?? 0] ?? ''),
        frontend: at === undefined ? `chain ${name}` : formatIpPort(at, portOf(known?.matches ?? []) ?? 0),
        ...routeOf(name, reading),
        problem: `${NOT_REACHED} from prerouting and output: no rule leads to ${name}`,
      },
    ]
  })
}

type Addressed = XtRule & { readonly destination: NonNullable<XtRule['destination']> }

/** Returns whether a rule matches one address. Rules of node ports match addresses of the node, or all of loopback. */
function isAddress(rule: XtRule): rule is Addressed {
  const { destination } = rule
  return destination !== undefined && isSingle(destination)
}

function typeOf(rule: XtRule): string {
  return commentOf(rule).endsWith('cluster IP') ? 'ClusterIP' : 'External'
}

function commentOf({ matches }: XtRule): string {
  const found = matches.find(match => match.kind === 'comment')
  return found?.kind === 'comment' ? found.text : ''
}

function portOf(matches: readonly XtMatch[]): number | undefined {
  for (const match of matches)
    if (match.kind === 'tcp' || match.kind === 'udp' || match.kind === 'sctp')
      return match.destinationPorts?.from
  return undefined
}

type Route = Pick<ServiceRow, 'action' | 'endpoints' | 'localEndpoints' | 'allowedFrom' | 'affinitySeconds'>

/**
 * Returns the route of a chain. FW leads to EXT for some clients. EXT leads to the endpoints for all clients, or to
 * different ones for pods and the node.
 */
function routeOf(name: string, reading: Reading): Route {
  const { names, chains } = reading
  const kind = serviceChainKind(names, name)
  const rules = chains.get(name)?.rules.map(({ rule }) => rule) ?? []
  const ways = rules.flatMap(rule => {
    const target = targetChain(rule)
    return target !== undefined && isServiceChain(names, 'nat', target) ? [{ rule, target }] : []
  })
  if (kind === 'FW') {
    const [first] = ways
    const allowedFrom = ways.flatMap(({ rule }) => sourcesOf(rule)).sort()
    return { ...(first === undefined ? BLIND : routeOf(first.target, reading)), allowedFrom }
  }
  if (kind !== 'EXT') return { action: 'balance', ...endpointsOf(name, chains) }
  const outside = ways.find(({ rule }) => isForAll(rule))
  const inside = ways.find(({ rule }) => !isForAll(rule))
  const all = outside === undefined ? { endpoints: [] } : endpointsOf(outside.target, chains)
  if (inside === undefined) return { action: 'balance', ...all }
  return { action: 'balance', ...endpointsOf(inside.target, chains), localEndpoints: all.endpoints }
}

function isForAll({ source, inInterface, matches }: XtRule): boolean {
  return source === undefined && inInterface === undefined && matches.every(({ kind }) => kind === 'comment')
}

const BLIND: Route = { action: 'drop', endpoints: [] }

function sourcesOf({ source }: XtRule): readonly string[] {
  if (source === undefined) return []
  const bits = [...source.mask].reduce((sum, byte) => sum + ones(byte.charCodeAt(0)), 0)
  return [bits === source.ip.length * 8 ? formatIp(source.ip) : formatCidr({ ip: source.ip, bits })]
}

function ones(byte: number): number {
  let count = 0
  for (let rest = byte; rest > 0; rest >>= 1) count += rest & 1
  return count
}

function endpointsOf(
  name: string,
  chains: ReadonlyMap<string, ReadChain>,
): Pick<Route, 'endpoints' | 'affinitySeconds'> {
  const rules = chains.get(name)?.rules.map(({ rule }) => rule) ?? []
  const endpoints = new Map<string, { readonly ip: Ip; readonly port: number }>()
  let affinitySeconds = 0
  for (const rule of rules) {
    const recent = rule.matches.find(match => match.kind === 'recent')
    if (recent?.kind === 'recent') affinitySeconds = Math.max(affinitySeconds, recent.seconds)
    for (const each of chains.get(targetChain(rule) ?? '')?.rules ?? []) {
      const { target } = each.rule
      if (target?.kind === 'DNAT') endpoints.set(formatIpPort(target.ip, target.port), target)
    }
  }
  return {
    endpoints: endpointTexts([...endpoints.values()]),
    ...(affinitySeconds === 0 ? {} : { affinitySeconds }),
  }
}

/** Makes the rules of iptables mode: our chains, and the rules that lead to them. */
function rulesOfChains(chains: readonly ReadChain[], names: ChainNames): ReadRules {
  const made = traceable(chains, names.firewall)
  return {
    traced: () => tracedChains(made),
    localIps: new Set(),
    obstacle: remembered((family, hook) => chainObstacle(chains, names, { family, hook })),
    rejectsOutsideOnly: true,
  }
}

interface Side {
  readonly family: Family
  readonly hook: Hook
}

function chainObstacle(chains: readonly ReadChain[], names: ChainNames, side: Side): string | undefined {
  const family = familyName(side.family)
  const { builtin } = HOOK_OF[side.hook]
  if (!leadsTo(natChain(chains, family, builtin), names.services))
    return `chain ${family} nat ${builtin} has no jump to ${names.services}`
  return emptyNat(chains, family, names.services)
}

function natChain(chains: readonly ReadChain[], family: NftFamily, name: string): ReadChain | undefined {
  return chains.find(chain => chain.family === family && chain.table === 'nat' && chain.name === name)
}

function emptyNat(chains: readonly ReadChain[], family: NftFamily, name: string): string | undefined {
  const count = natChain(chains, family, name)?.rules.length ?? 0
  return count === 0 ? `chain ${family} nat ${name} is empty` : undefined
}

function leadsTo(chain: ReadChain | undefined, target: string): boolean {
  return chain?.rules.some(({ rule }) => targetChain(rule) === target) === true
}

/** Lists damage to the chains of iptables mode, as damageOfTables does, in the families that have any. */
function damageOfChains(chains: readonly ReadChain[], names: ChainNames): readonly string[] {
  const families = NFT_FAMILIES.filter(family => natChain(chains, family, names.services) !== undefined)
  return families.flatMap(family => {
    const ways = [
      ['PREROUTING', names.services],
      ['OUTPUT', names.services],
      ['POSTROUTING', names.postrouting],
    ] as const
    const missing = ways
      .filter(([builtin, to]) => !leadsTo(natChain(chains, family, builtin), to))
      .map(([builtin, to]) => `chain ${family} nat ${builtin} has no jump to ${to}`)
    return [
      ...missing,
      ...[names.postrouting, names.markMasq].flatMap(name => emptyNat(chains, family, name) ?? []),
    ]
  })
}

/** The chains of iptables mode, and other programs' rules that jump to them. */
export const CHAIN_DUMP: ModeDump = {
  what: 'iptables',
  saveFormat: 'iptables-save',
  isNamed: true,
  saveTables: {
    note: 'this is the input of two commands: `--family=IPv4` prints that of iptables-restore, `--family=IPv6` that of ip6tables-restore',
    print: saveIptables,
  },
  async read(kernel, { families, service, proxy, chains }) {
    const rules = ruleRows(chains ?? (await readIptables(kernel, families, chainNames(proxy))), service)
    return {
      heading: ['SERVICE', 'CHAIN', 'RULE'],
      rows: rules.map(({ services, family, table, chain, rule }) => [
        services.join(', ') || '-',
        `${family} ${table} ${chain}`,
        rule,
      ]),
      value: { rules },
      save: [],
      isEmpty: rules.length === 0,
      hasUnnamed: false,
    }
  },
}

interface RuleRow extends Pick<ReadChain, 'family' | 'table'> {
  readonly chain: string
  readonly services: readonly string[]
  /** The rule as iptables-save prints it, without `-A CHAIN `. */
  readonly rule: string
}

function ruleRows(chains: readonly ReadChain[], service: string): readonly RuleRow[] {
  const isOurs = new Set(chains.filter(({ ours }) => ours).map(placeKey))
  return chains.flatMap(chain =>
    chain.rules
      .filter(({ rule, services }) => {
        const leads = isOurs.has(placeKey({ ...chain, name: targetChain(rule) ?? '' }))
        return (chain.ours || leads) && isOfService(services, service)
      })
      .map(({ text, services }): RuleRow => {
        const { family, table, name } = chain
        return { family, table, chain: name, services, rule: text }
      }),
  )
}

function placeKey({ family, table, name }: Pick<ReadChain, 'family' | 'table' | 'name'>): string {
  return `${family} ${table} ${name}`
}
