import { type Cidr, cidrOf, formatIpPort, type Ip } from '../../base/ip.ts'
import { readU32be } from '../../base/octets.ts'
import { compareTexts } from '../../base/text.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { XtMatch, XtRule, XtTarget } from '../../kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtTableName } from '../../kernel/xt/scope.ts'
import { needsOf } from '../../model/endpoint-choice.ts'
import type { Backend, Frontend, PortFrontends, Route } from '../../model/frontend.ts'
import type { Protocol } from '../../model/service.ts'
import type { VerdictReason } from '../common/logs.ts'
import {
  base32,
  base32Hash,
  type ChainNames,
  endpointChain,
  type PortChains,
  portChains,
  serviceChain,
} from '../xt-common/layout.ts'
import {
  ACCEPT,
  addressOf,
  comment,
  DROP,
  fromPods,
  hostAddress,
  jump,
  loggingRule,
  NO_MATCHES,
  PROTOCOLS,
  REJECT,
  TO_LOCAL,
  transport,
} from '../xt-common/rules-parts.ts'
import { NFACCT_LOCALHOST_ACCEPTED } from './settings.ts'
import type { FamilyStatics, Statics } from './state.ts'

export interface PortInputs {
  readonly port: PortFrontends
  readonly family: NftFamily
  readonly statics: Statics
  readonly ofFamily: FamilyStatics
  readonly uses: Uses
  readonly chains: PortChains
}

export interface PortRules extends PortInputs {
  /** KUBE-SVC, KUBE-SVL and KUBE-SEP: how a connection finds its endpoint. */
  readonly lists: readonly XtChain[]
}

/** The chains that a port needs: those that a frontend leads to. */
interface Uses {
  readonly cluster: boolean
  readonly local: boolean
  /** For addresses beside the ClusterIP, with the policy that applies there. */
  readonly external: 'cluster' | 'local' | undefined
  /** The clients that may connect to the load-balancer addresses, the same at all of them; undefined for all clients. */
  readonly clients: readonly Cidr[] | undefined
}

export function portInputs(port: PortFrontends, statics: Statics): PortInputs {
  const family = port.family === 'IPv4' ? 'ip' : 'ip6'
  const chains = portChains(statics.options.names, port.displayName, port.protocol)
  return { port, family, statics, ofFamily: statics.families[family], uses: usesOf(port), chains }
}

export function portRules(port: PortFrontends, statics: Statics, known: KnownEndpoints): PortRules {
  const inputs = portInputs(port, statics)
  const { uses, chains } = inputs
  const places = placesOf(inputs, known)
  const cluster = uses.cluster ? listChain(inputs, 'cluster', places.cluster) : undefined
  const local = uses.local ? listChain(inputs, 'local', places.local) : undefined
  const endpoints = new Set([...places.cluster, ...places.local].map(({ chain }) => chain))
  return {
    ...inputs,
    // Lists that Services share are named by their content.
    chains: { ...chains, svc: cluster?.name ?? chains.svc, svl: local?.name ?? chains.svl },
    lists: [cluster ?? [], local ?? [], ...endpoints].flat(),
  }
}

function usesOf({ frontends, cluster, local }: PortFrontends): Uses {
  const needs = needsOf(frontends)
  const external = frontends.filter(({ route }) => route.kind.startsWith('external'))
  const isLocal = external.some(({ route }) => route.kind === 'external-local')
  const [clients] = external.flatMap(({ writtenRanges, sourceRanges }) => {
    const ranges = writtenRanges ?? sourceRanges
    return ranges === undefined ? [] : [ranges]
  })
  return {
    cluster: needs.cluster && cluster.length > 0,
    local: needs.local && local.length > 0,
    external: external.length === 0 ? undefined : isLocal ? 'local' : 'cluster',
    clients,
  }
}

export function natChain({ family }: PortInputs, name: string, rules: readonly XtRule[]): XtChain {
  return { family, table: 'nat', name, rules, last: [] }
}

function entryIn({ family }: PortInputs, table: XtTableName, chain: string, rule: XtRule): XtEntry {
  return { family, table, chain, rule }
}

/** Makes the rules of one frontend in shared chains: rules that lead to its chains, or that reject clients. */
export function captureEntries(port: PortInputs, frontend: Frontend): readonly XtEntry[] {
  const { kind, ip } = frontend
  if (ip === undefined) return nodePortEntries(port, frontend)
  return kind === 'ClusterIP' ? clusterIpEntries(port, frontend, ip) : externalEntries(port, frontend, ip)
}

/** Accepts packets to the health check node port. Load balancers query every node, whatever else it filters. */
export function healthCheckEntry(port: PortInputs, number: number): XtEntry {
  return entryIn(port, 'filter', namesOf(port).nodePorts, {
    protocol: PROTOCOLS.TCP,
    matches: [comment(`${port.port.displayName} health check node port`), transport('TCP', number)],
    target: ACCEPT,
  })
}

function namesOf({ statics }: PortInputs): ChainNames {
  return statics.options.names
}

/** The comment and the target of a rule for packets to one port of an address. */
interface Words {
  readonly text: string
  readonly target: XtTarget
}

/** The words of a rule that refuses clients, with the reason. */
interface Refusal extends Words {
  readonly reason: VerdictReason
}

function ruleTo({ port }: PortInputs, ip: Ip, number: number, { text, target }: Words): XtRule {
  return {
    protocol: PROTOCOLS[port.protocol],
    destination: hostAddress(ip),
    matches: [comment(text), transport(port.protocol, number)],
    target,
  }
}

/** Returns how clients without an endpoint are refused; undefined when every client has one. */
function refusalOf({ port, family }: PortInputs, route: Route): Refusal | undefined {
  const { displayName, local } = port
  if (route.kind === 'reject')
    return { text: `${displayName} has no endpoints`, target: REJECT[family], reason: 'no-endpoints' }
  const isWithoutLocal = route.kind === 'drop' || (route.kind === 'external-local' && local.length === 0)
  if (!isWithoutLocal) return undefined
  return { text: `${displayName} has no local endpoints`, target: DROP, reason: 'no-local-endpoints' }
}

/** Makes the entry of a rule that refuses clients, behind one that logs them if that is configured. */
function refusingEntries(
  port: PortInputs,
  { chain, rule, reason }: { readonly chain: string; readonly rule: XtRule; readonly reason: VerdictReason },
): readonly XtEntry[] {
  const { logGroup } = port.statics.options
  const entry = entryIn(port, 'filter', chain, rule)
  if (logGroup === 0) return [entry]
  const sequence = JSON.stringify([rule.protocol?.number, rule.destination?.ip, rule.matches])
  return [
    { ...entry, rule: loggingRule(rule, logGroup, reason), sequence },
    { ...entry, sequence },
  ]
}

function clusterIpEntries(port: PortInputs, { port: number, route }: Frontend, ip: Ip): readonly XtEntry[] {
  const refusal = refusalOf(port, route)
  if (refusal !== undefined)
    return refusingEntries(port, {
      chain: namesOf(port).services,
      rule: ruleTo(port, ip, number, refusal),
      reason: refusal.reason,
    })
  const { svc, svl } = port.chains
  const isLocal = route.kind === 'internal' && route.over === 'local'
  const words = { text: `${port.port.displayName} cluster IP`, target: jump(isLocal ? svl : svc) }
  return [entryIn(port, 'nat', namesOf(port).services, ruleTo(port, ip, number, words))]
}

function externalEntries(port: PortInputs, frontend: Frontend, ip: Ip): readonly XtEntry[] {
  const { kind, port: number, route, sourceRanges } = frontend
  const { displayName } = port.port
  const { ext, fw } = port.chains
  const entries: XtEntry[] = []
  if (route.kind !== 'reject') {
    const text = `${displayName} ${kind === 'ExternalIP' ? 'external' : 'loadbalancer'} IP`
    const target = jump(sourceRanges === undefined ? ext : fw)
    entries.push(entryIn(port, 'nat', namesOf(port).services, ruleTo(port, ip, number, { text, target })))
    if (sourceRanges !== undefined) {
      // Packets that the chain let through have another destination at this point.
      const others = { text: `${displayName} traffic not accepted by ${fw}`, target: DROP }
      const rule = ruleTo(port, ip, number, others)
      const chain = namesOf(port).proxyFirewall
      entries.push(...refusingEntries(port, { chain, rule, reason: 'source-ranges' }))
    }
  }
  const refusal = refusalOf(port, route)
  if (refusal !== undefined) {
    const rule = ruleTo(port, ip, number, refusal)
    const chain = namesOf(port).externalServices
    entries.push(...refusingEntries(port, { chain, rule, reason: refusal.reason }))
  }
  return entries
}

const LOOPBACK = addressOf(cidrOf('\x7f\0\0\0', 8))
const LOOPBACK_COUNTER: XtMatch = { kind: 'nfacct', name: NFACCT_LOCALHOST_ACCEPTED }

function nodePortEntries(port: PortInputs, { port: number, route }: Frontend): readonly XtEntry[] {
  const { displayName } = port.port
  const protocol = PROTOCOLS[port.port.protocol]
  const atPort = transport(port.port.protocol, number)
  const entries: XtEntry[] = []
  if (route.kind !== 'reject') {
    const matches = [comment(displayName), atPort]
    const rule: XtRule = { protocol, matches, target: jump(port.chains.ext) }
    if (port.ofFamily.loopback && port.statics.options.nfacct.localhostAccepted) {
      const counting = { ...rule, destination: LOOPBACK, matches: [...matches, LOOPBACK_COUNTER] }
      // The counting rule must come first: packets that match the other rule do not reach later ones.
      const sequence = `${port.port.protocol}/${number}`
      entries.push({ ...entryIn(port, 'nat', namesOf(port).nodePorts, counting), sequence })
      entries.push({ ...entryIn(port, 'nat', namesOf(port).nodePorts, rule), sequence })
    } else entries.push(entryIn(port, 'nat', namesOf(port).nodePorts, rule))
  }
  const refusal = refusalOf(port, route)
  if (refusal !== undefined) {
    const { text, target, reason } = refusal
    const rule = { protocol, matches: [comment(text), TO_LOCAL, atPort], target }
    entries.push(...refusingEntries(port, { chain: namesOf(port).externalServices, rule, reason }))
  }
  return entries
}

interface Place {
  /** `10.180.0.1:80` */
  readonly text: string
  readonly chain: XtChain
}

/**
 * The endpoints of Services that were rendered with the same statics. Two versions of a Service share them, so that
 * rules of an endpoint that stays are made, and compared, once.
 */
export type KnownEndpoints = Map<string, Place>

/** Returns the endpoints of both lists, as far as they are in use, sorted by text. */
function placesOf(
  inputs: PortInputs,
  known: KnownEndpoints,
): Readonly<Record<'cluster' | 'local', readonly Place[]>> {
  const { port, uses } = inputs
  const ofPort = `${port.displayName} ${port.protocol} ${port.affinityTimeoutS}`
  const placed = (backends: readonly Backend[]) => {
    const places = backends.map(backend => {
      const text = formatIpPort(backend.ip, backend.port)
      const key = `${text} ${ofPort}`
      const place = known.get(key) ?? placeOf(inputs, backend, text)
      known.set(key, place)
      return place
    })
    // As kube-proxy does: 10.0.0.10 comes before 10.0.0.9.
    return places.sort((a, b) => compareTexts(a.text, b.text))
  }
  return {
    cluster: uses.cluster ? placed(port.cluster) : [],
    local: uses.local ? placed(port.local) : [],
  }
}

/**
 * Services may share chains with equal rules (optimize/README.md), except with session affinity: lists of `recent` belong
 * to one Service.
 */
function mayShare({ port, statics }: PortInputs): boolean {
  return statics.options.optimize && port.affinityTimeoutS === 0
}

/** Makes a chain that other Services may want, too. The end of its name identifies its rules. */
function sharedChain(
  inputs: PortInputs,
  kind: 'SVC' | 'SEP',
  rules: readonly XtRule[],
  end?: string,
): XtChain {
  const name = serviceChain(namesOf(inputs), kind, end ?? base32Hash(JSON.stringify(rules)))
  return { ...natChain(inputs, name, rules), shared: true }
}

/**
 * Makes the chain of a list: remembered clients first, then random choice. Of the remaining n endpoints, each rule
 * takes one connection in n.
 */
function listChain(inputs: PortInputs, over: 'cluster' | 'local', places: readonly Place[]): XtChain {
  const { displayName, affinityTimeoutS: seconds } = inputs.port
  const masquerading = masqueradeRules(inputs, over)
  const isShared = mayShare(inputs) && masquerading.length === 0
  const about = places.map(({ text }) =>
    isShared ? NO_MATCHES : aboutEndpoint(inputs, `${displayName} -> ${text}`),
  )
  const rules: XtRule[] = [...masquerading]
  if (seconds > 0) {
    places.forEach(({ chain: { name } }, index) => {
      const known: XtMatch = { kind: 'recent', mode: 'rcheck', name, seconds, reap: true }
      rules.push({ matches: [...(about[index] ?? NO_MATCHES), known], target: jump(name) })
    })
  }
  places.forEach(({ chain: { name } }, index) => {
    const left = places.length - index
    const words = about[index] ?? NO_MATCHES
    rules.push({ matches: left === 1 ? words : [...words, oneOf(left)], target: jump(name) })
  })
  if (isShared) return sharedChain(inputs, 'SVC', rules)
  return natChain(inputs, over === 'local' ? inputs.chains.svl : inputs.chains.svc, rules)
}

/** Makes the match for one in `count`, rounded as `--probability 0.3333333333`: ten decimals, in units of 1 / 2^31. */
function oneOf(count: number): XtMatch {
  return { kind: 'statistic', probability: Math.round(2 ** 31 * Number((1 / count).toFixed(10))) }
}

/**
 * Makes the comment of an endpoint's rules. In clusters with very many endpoints there is none, because comments
 * would take a large share of the kernel's memory.
 */
function aboutEndpoint({ statics }: PortInputs, text: string): readonly XtMatch[] {
  return statics.large ? NO_MATCHES : [comment(text)]
}

/** Masquerades clients outside the cluster that connect to the ClusterIP, so that replies come back through this node. */
function masqueradeRules(inputs: PortInputs, over: 'cluster' | 'local'): readonly XtRule[] {
  const { displayName, protocol, frontends } = inputs.port
  const who = whoIsMasqueraded(inputs)
  if (who === undefined) return []
  return frontends.flatMap(({ kind, ip, port: number, route }) => {
    const isOfList = kind === 'ClusterIP' && route.kind === 'internal' && route.over === over
    if (ip === undefined || !isOfList) return []
    return {
      ...who,
      protocol: PROTOCOLS[protocol],
      destination: hostAddress(ip),
      matches: [comment(`${displayName} cluster IP`), transport(protocol, number)],
      target: jump(namesOf(inputs).markMasq),
    }
  })
}

/** Returns the condition for masquerading; undefined when nothing is masqueraded. */
function whoIsMasqueraded({
  statics,
  ofFamily,
}: PortInputs): Pick<XtRule, 'source' | 'inInterface'> | undefined {
  if (statics.options.masqueradeAll) return {}
  return ofFamily.detector === undefined ? undefined : fromPods(ofFamily.detector, true)
}

function placeOf(inputs: PortInputs, backend: Backend, text: string): Place {
  const { displayName, protocol, affinityTimeoutS } = inputs.port
  if (mayShare(inputs)) {
    const rules = endpointRules(inputs, backend, NO_MATCHES, NO_MATCHES)
    return { text, chain: sharedChain(inputs, 'SEP', rules, shortName(protocol, backend)) }
  }
  const name = endpointChain(namesOf(inputs), { displayName, protocol, ipPort: text })
  const about = aboutEndpoint(inputs, displayName)
  const remember: XtMatch = { kind: 'recent', mode: 'set', name, seconds: 0, reap: false }
  const remembering = affinityTimeoutS > 0 ? [...about, remember] : about
  return { text, chain: natChain(inputs, name, endpointRules(inputs, backend, about, remembering)) }
}

function endpointRules(
  inputs: PortInputs,
  { ip, port }: Backend,
  about: readonly XtMatch[],
  remembering: readonly XtMatch[],
): readonly XtRule[] {
  const { protocol } = inputs.port
  return [
    // Without this, an endpoint that connects to itself would reply to itself directly, past the translation.
    { source: hostAddress(ip), matches: about, target: jump(namesOf(inputs).markMasq) },
    {
      protocol: PROTOCOLS[protocol],
      matches: [...remembering, transport(protocol)],
      target: { kind: 'DNAT', ip, port },
    },
  ]
}

/** Encodes an endpoint of IPv4, because a hash takes longer, and chains of endpoints are the most numerous. */
function shortName(protocol: Protocol, { ip, port }: Backend): string | undefined {
  if (ip.length !== 4) return undefined
  const address = readU32be(ip)
  const high = (PROTOCOLS[protocol].number << 24) | (port << 8) | (address >>> 24)
  return base32(high, (address >>> 16) & 255) + base32(address << 16, 0)
}
