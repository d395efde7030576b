import { formatCidr } from '../base/cidr.ts'
import { formatIp, formatIpPort } from '../base/ip.ts'
import { type ChainNames, isServiceChain, serviceChainKind } from '../dataplane/iptables/layout.ts'
import type { XtMatch, XtRule } from '../kernel/xt/rule.ts'
import { type ReadChain, type ReadRule, targetOf } from './iptables-chains.ts'
import type { ServiceRow } from './service-rows.ts'

/** What the chains of an iptables mode do for each Service, as `kprobe dump services` shows it in every mode. Pure. */
export function iptablesServiceRows(chains: readonly ReadChain[], names: ChainNames): readonly ServiceRow[] {
  const ours = chains.filter(({ ours }) => ours)
  const rows = (['ip', 'ip6'] as const).flatMap(family => {
    const own = ours.filter(chain => chain.family === family)
    const nat = new Map(own.filter(({ table }) => table === 'nat').map(chain => [chain.name, chain]))
    const reading = { names, chains: nat }
    return own
      .filter(({ table, name }) => !isServiceChain(names, table, name))
      .flatMap(chain => chain.rules.flatMap(rule => rowOf(chain, rule, reading)))
  })
  const unique = new Map(rows.map(row => [JSON.stringify([row.service, row.protocol, row.frontend]), row]))
  return [...unique.values()].sort((a, b) => compare(a.service, b.service) || compare(a.frontend, b.frontend))
}

const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'TCP', 17: 'UDP', 132: 'SCTP' }
interface Reading {
  readonly names: ChainNames
  /** Of one family in table nat, by name. */
  readonly chains: ReadonlyMap<string, ReadChain>
}

/** What the chains of NodePorts and of the firewall have in the table filter is about no way to an endpoint. */
function hasEnds({ services, externalServices }: ChainNames, name: string): boolean {
  return name === services || name === externalServices
}

function rowOf(
  { family, table, name }: ReadChain,
  { rule, services }: ReadRule,
  reading: Reading,
): readonly ServiceRow[] {
  const { names } = reading
  const port = portOf(rule.matches)
  const protocol = PROTOCOLS[rule.protocol?.number ?? 0]
  if (port === undefined || protocol === undefined) return []
  const { target } = rule
  const next = targetOf(rule)
  const leads = table === 'nat' && next !== undefined && isServiceChain(names, 'nat', next)
  const ends =
    table === 'filter' && hasEnds(names, name) && (target?.kind === 'REJECT' || target?.kind === 'DROP')
  if (!leads && !ends) return []
  const everywhere = `${family === 'ip' ? '*' : '[*]'}:${port}`
  return [
    {
      service: services[0] ?? '(unnamed)',
      type: typeOf(rule),
      protocol,
      frontend: isAddress(rule) ? formatIpPort(rule.destination.ip, port) : everywhere,
      ...(leads
        ? routeOf(next, reading)
        : { action: target?.kind === 'DROP' ? 'drop' : 'reject', endpoints: [] }),
    },
  ]
}

type Addressed = XtRule & { readonly destination: NonNullable<XtRule['destination']> }

/** NodePorts are about addresses of the node, or about all of loopback. */
function isAddress(rule: XtRule): rule is Addressed {
  const { destination } = rule
  return destination !== undefined && [...destination.mask].every(byte => byte === '\xff')
}

function typeOf(rule: XtRule): string {
  const text = commentOf(rule)
  if (!isAddress(rule)) return 'NodePort'
  if (text.endsWith('cluster IP')) return 'ClusterIP'
  if (text.endsWith('external IP')) return 'ExternalIP'
  return text.endsWith('loadbalancer IP') ? 'LoadBalancerIP' : 'Address'
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

/** FW leads to EXT for some clients, that to the endpoints for everybody, and to others for pods and the node. */
function routeOf(name: string, reading: Reading): Route {
  const { names, chains } = reading
  const kind = serviceChainKind(names, name)
  const rules = chains.get(name)?.rules.map(({ rule }) => rule) ?? []
  const ways = rules.flatMap(rule => {
    const target = targetOf(rule)
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
  const endpoints = new Set<string>()
  let affinitySeconds = 0
  for (const rule of rules) {
    const recent = rule.matches.find(match => match.kind === 'recent')
    if (recent?.kind === 'recent') affinitySeconds = Math.max(affinitySeconds, recent.seconds)
    for (const each of chains.get(targetOf(rule) ?? '')?.rules ?? []) {
      const { target } = each.rule
      if (target?.kind === 'DNAT') endpoints.add(formatIpPort(target.ip, target.port))
    }
  }
  return { endpoints: [...endpoints].sort(), ...(affinitySeconds === 0 ? {} : { affinitySeconds }) }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}
