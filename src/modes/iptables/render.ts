import { stepsOver } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import type { Cidr } from '../../base/ip.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import { chainKey, fixedRules, type ServiceRules, type XtChain, type XtEntry } from '../../kernel/xt/scope.ts'
import type { Refusal } from '../../model/fields.ts'
import { endpointCount, type FrontendTable, type ServiceFrontends } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { cidrKey } from '../common/detector.ts'
import { changedServices } from '../common/tables.ts'
import { addressOf, comment, FROM_LOCAL, fromPods, jump, NO_MATCHES } from '../xt-common/rules-parts.ts'
import { fixedChains, jumpsOf } from './chains.ts'
import { placeEntries } from './optimize/dispatch.ts'
import {
  captureEntries,
  healthCheckEntry,
  type KnownEndpoints,
  natChain,
  type PortInputs,
  portInputs,
  portRules,
} from './rules.ts'
import type { IptablesOptions } from './settings.ts'
import { type IptablesState, LARGE_ENDPOINTS, type RenderedState, type Statics, staticsOf } from './state.ts'

const NO_REFUSALS: ReadonlyMap<string, readonly Refusal[]> = new Map()

/**
 * Renders the kernel state that the mode wants. If the base was rendered, endpoints and shared chains are counted
 * again only for Services that changed since, unless all rules changed.
 */
export function renderIptablesState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<IptablesState>,
  options: IptablesOptions,
) {
  const before = base.kind === 'rendered' ? base : undefined
  const changed =
    before === undefined ? frontends.services.keys() : servicesBetween(before, { frontends, without })
  let endpoints = before?.endpoints ?? 0
  for (const key of changed) {
    const was = before === undefined ? undefined : serviceIn(before, key)
    const is = serviceIn({ frontends, without }, key)
    endpoints += (is === undefined ? 0 : endpointsOf(is)) - (was === undefined ? 0 : endpointsOf(was))
  }
  const made = staticsOf(options, frontends, endpoints > LARGE_ENDPOINTS)
  const isSame = before?.statics.key === made.key
  const statics = isSame ? before.statics : made
  const fixed = isSame ? before.fixed : fixedRules(fixedChains(made), jumpsOf(made), before?.fixed.jumps)
  const counted = { frontends, without, statics }
  const continues = before?.statics.serviceKey === statics.serviceKey
  const shared = new SharedCount(continues ? before : undefined, counted)
  return stepsOver(options.optimize ? shared.services : [], {
    each: key => shared.count(key),
    result: (): RenderedState => ({
      kind: 'rendered',
      frontends,
      without,
      statics,
      fixed,
      endpoints,
      sharedChains: shared.finish(),
      refusals: NO_REFUSALS,
    }),
  })
}

type Given = Pick<RenderedState, 'frontends' | 'without'>

/** Returns a Service of a state; undefined for one that does not exist, and for a quarantined one. */
function serviceIn({ frontends, without }: Given, key: ServiceKey) {
  return without.has(key) ? undefined : frontends.services.get(key)
}

/** Returns the Services whose objects may differ between two states with the same statics. */
export function servicesBetween(from: Given, to: Given): Iterable<ServiceKey> {
  return changedServices(to.frontends, { ...from, refusals: NO_REFUSALS }, to.without)
}

type Counted = Pick<RenderedState, 'frontends' | 'without' | 'statics'>

/** Counts the Services of each shared chain, from the counts of a state before. */
class SharedCount {
  readonly #before: RenderedState | undefined
  readonly #after: Counted
  readonly #counts = new Map<string, number>()

  constructor(before: RenderedState | undefined, after: Counted) {
    this.#before = before
    this.#after = after
  }

  get services(): Iterable<ServiceKey> {
    const [before, after] = [this.#before, this.#after]
    return before === undefined ? after.frontends.services.keys() : servicesBetween(before, after)
  }

  count(service: ServiceKey): void {
    if (this.#before !== undefined) this.#add(sharedBy(this.#before, service), -1)
    this.#add(sharedBy(this.#after, service), 1)
  }

  finish(): PersistentMap<number> {
    return this.#base.with([...this.#counts].map(([key, number]) => [key, number === 0 ? undefined : number]))
  }

  get #base(): PersistentMap<number> {
    return this.#before?.sharedChains ?? PersistentMap.empty()
  }

  #add(keys: ReadonlySet<string>, by: 1 | -1): void {
    for (const key of keys) this.#counts.set(key, (this.#counts.get(key) ?? this.#base.get(key) ?? 0) + by)
  }
}

function sharedBy(state: Counted, service: ServiceKey): ReadonlySet<string> {
  return new Set(
    rulesIn(state, service).chains.flatMap(chain =>
      chain.shared === true ? [chainKey(chain, chain.name)] : [],
    ),
  )
}

const NOTHING: ServiceRules = { chains: [], entries: [] }

export function rulesIn(state: Counted, key: ServiceKey, known?: KnownEndpoints): ServiceRules {
  const service = serviceIn(state, key)
  return service === undefined ? NOTHING : rulesOfService(service, state.statics, known)
}

/** Returns the entries alone of rulesIn, for less where the names of chains do not depend on endpoints. */
export function entriesIn(state: Counted, key: ServiceKey): readonly XtEntry[] {
  const service = serviceIn(state, key)
  if (service === undefined) return NOTHING.entries
  const { statics } = state
  const known: KnownEndpoints = new Map()
  const ports = service.ports.map(port =>
    statics.options.optimize ? portRules(port, statics, known) : portInputs(port, statics),
  )
  return entriesOf(service, ports, statics)
}

/** Makes the chains of a Service in table nat, and its rules in shared chains. */
export function rulesOfService(
  service: ServiceFrontends,
  statics: Statics,
  known: KnownEndpoints = new Map(),
): ServiceRules {
  const ports = service.ports.map(port => portRules(port, statics, known))
  const chains = ports.flatMap(port => [...externalChains(port), ...port.lists])
  const entries = entriesOf(service, ports, statics)
  if (!statics.options.optimize) return { chains, entries }
  // Two ports of the Service may share a chain as well.
  const once = new Map(chains.map(chain => [chainKey(chain, chain.name), chain]))
  return { chains: [...once.values()], entries }
}

function entriesOf(
  { healthCheck }: ServiceFrontends,
  ports: readonly PortInputs[],
  statics: Statics,
): readonly XtEntry[] {
  const entries: XtEntry[] = []
  const checked = new Set<string>()
  for (const port of ports) {
    for (const frontend of port.port.frontends) entries.push(...captureEntries(port, frontend))
    // Ports of one name with several protocols would repeat the rule.
    const name = `${port.family} ${port.port.displayName}`
    if (healthCheck !== undefined && !checked.has(name)) {
      checked.add(name)
      entries.push(healthCheckEntry(port, healthCheck.port))
    }
  }
  return statics.options.optimize ? placeEntries(entries, statics) : entries
}

/** Counts the distinct endpoints of a Service in its larger family: kube-proxy counts each family separately. */
export function endpointsOf({ ports }: ServiceFrontends): number {
  let v4 = 0
  let v6 = 0
  for (const port of ports) {
    const count = endpointCount(port)
    if (port.family === 'IPv4') v4 += count
    else v6 += count
  }
  return Math.max(v4, v6)
}

/** Makes EXT and FW: the chains for clients of addresses beside the ClusterIP. */
function externalChains(port: PortInputs): readonly XtChain[] {
  const { external, clients } = port.uses
  if (external === undefined) return NO_CHAINS
  const rules = external === 'cluster' ? clusterRules(port) : localRules(port)
  const ext = natChain(port, port.chains.ext, rules)
  return clients === undefined ? [ext] : [ext, firewallChain(port, clients)]
}

const NO_CHAINS: readonly XtChain[] = []

function clusterRules({ port, chains, statics }: PortInputs): readonly XtRule[] {
  const text = `masquerade traffic for ${port.displayName} external destinations`
  return [
    { matches: [comment(text)], target: jump(statics.options.names.markMasq) },
    { matches: NO_MATCHES, target: jump(chains.svc) },
  ]
}

/** Makes the rules by which pods and this node bypass policy Local, as if a load balancer returned their packets. */
function localRules({ port, chains, uses, ofFamily, statics }: PortInputs): readonly XtRule[] {
  const { displayName } = port
  const { detector } = ofFamily
  const say = (what: string) => comment(`${what} traffic for ${displayName} external destinations`)
  const rules: XtRule[] = []
  if (detector !== undefined)
    rules.push({ ...fromPods(detector, false), matches: [say('pod')], target: jump(chains.svc) })
  rules.push(
    // The node's own packets have their destination address as their source.
    { matches: [say('masquerade LOCAL'), FROM_LOCAL], target: jump(statics.options.names.markMasq) },
    { matches: [say('route LOCAL'), FROM_LOCAL], target: jump(chains.svc) },
  )
  if (uses.local) rules.push({ matches: NO_MATCHES, target: jump(chains.svl) })
  return rules
}

/** Makes the firewall chain. A client outside the ranges passes untranslated, and the table filter drops its packets. */
function firewallChain(port: PortInputs, clients: readonly Cidr[]): XtChain {
  const { displayName } = port.port
  const { fw, ext } = port.chains
  const { names, optimize } = port.statics.options
  const matches = [comment(`${displayName} loadbalancer IP`)]
  const toExt = (client: Cidr): XtRule => ({ source: addressOf(client), matches, target: jump(ext) })
  // Without rules that do nothing: a range that a Service lists twice, and a rule that only counts.
  if (optimize)
    return natChain(port, fw, [...new Map(clients.map(client => [cidrKey(client), toExt(client)])).values()])
  const others = comment(`other traffic to ${displayName} will be dropped by ${names.proxyFirewall}`)
  return natChain(port, fw, [...clients.map(toExt), { matches: [others], target: undefined }])
}
