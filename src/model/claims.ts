import { PersistentMap } from '../base/collections.ts'
import { anyContains, type Family, familyOf, type Ip } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import { isOurs, type NodeContext } from './node-context.ts'
import { type ApiServers, apiConflict, isTaken, type ServiceListeners, takenKeys } from './reserved.ts'
import type { Protocol, Service, ServiceKey, ServicePortSpec, SilentEndpoints } from './service.ts'

/** The Services that claim one address or port, sorted: nearly always one. */
type Claimants = readonly ServiceKey[]

/**
 * Indexes Services by the addresses and ports that they claim: a change finds the Services that it concerns without a
 * search.
 */
export interface Claims {
  /** The point of view from which they were made. */
  readonly fingerprint: string
  readonly apiServers: ApiServers
  /** The Services, our own or another proxy's, by ClusterIP. */
  readonly clusterIps: PersistentMap<Claimants>
  /** Our Services by the external and load-balancer addresses that they claim. */
  readonly externals: PersistentMap<Claimants>
  /** Our Services by the places that they claim (addressPlace, wholePlace, nodePortPlace). */
  readonly places: PersistentMap<Claimants>
  /** Counts the ClusterIPs with more than one claimant. */
  readonly contested: number
}

/** Key of one port of an external address. ClusterIPs need none: their addresses are unique. */
export function addressPlace(ip: Ip, protocol: Protocol, port: number): string {
  return protocol + ip + u16be(port)
}

/** Key of an external address as a whole: shorter than any other place. */
export function wholePlace(ip: Ip): string {
  return ip
}

/**
 * Says why this node must not catch traffic to the address for any Service; undefined if it may. Controllers write
 * load-balancer addresses and may use the node's own, to balance on the nodes; anyone may write spec.externalIPs.
 */
export function whyNotCaught(
  here: NodeContext,
  kind: 'ExternalIP' | 'LoadBalancerIP',
  ip: Ip,
): string | undefined {
  const { allowedExternalCidrs, allowedLoadBalancerCidrs, allowServiceExternalIps } = here.options
  if (kind === 'ExternalIP' && !allowServiceExternalIps)
    return 'an external IP, which the feature gate AllowServiceExternalIPs=false forbids'
  const allowed = kind === 'ExternalIP' ? allowedExternalCidrs : allowedLoadBalancerCidrs
  if (anyContains(allowed, ip)) return undefined
  if (kind === 'ExternalIP' && here.nodeIps.has(ip))
    return 'it belongs to this node; allow it with --allowed-external-cidrs'
  if (kind === 'ExternalIP' && anyContains(here.node?.podCidrs ?? [], ip))
    return 'within the pod CIDR of this node; allow it with --allowed-external-cidrs'
  if (allowed.length === 0) return undefined
  return `outside ${kind === 'ExternalIP' ? '--allowed-external-cidrs' : '--allowed-load-balancer-cidrs'}`
}

export interface ClaimUpdate {
  readonly claims: Claims
  /** Unchanged Services that claim an address or port of a changed one. */
  readonly affected: ReadonlySet<ServiceKey>
}

/** Services that may have changed, each as it is now; undefined when it is gone. */
export type Touched = ReadonlyMap<ServiceKey, Service | undefined>

interface ClaimChange {
  readonly here: NodeContext
  /** Undefined to start anew: every Service then has to be touched. */
  readonly claims: Claims | undefined
  readonly before: PersistentMap<Service>
  readonly touched: Touched
  /** Listeners as in Snapshot; `claims` were made with those of `before`. */
  readonly listeners: Readonly<Record<'before' | 'after', PersistentMap<ServiceListeners>>>
}

export function updateClaims(change: ClaimChange): ClaimUpdate {
  const { here, claims, listeners } = change
  const draft: Draft = {
    here,
    clusterIps: new Edit(claims?.clusterIps),
    externals: new Edit(claims?.externals),
    places: new Edit(claims?.places),
    affected: new Set(),
    contested: claims?.contested ?? 0,
  }
  for (const [key, after] of change.touched) {
    const before = claims === undefined ? undefined : change.before.get(key)
    const [was, is] = [listeners.before.get(key), listeners.after.get(key)]
    if (before === after && was === is) continue
    if (before !== undefined) restate(draft, { service: before, found: was }, without)
    if (after !== undefined) restate(draft, { service: after, found: is }, including)
  }
  const indexes = {
    clusterIps: draft.clusterIps.finish(),
    externals: draft.externals.finish(),
    places: draft.places.finish(),
  }
  const { contested, affected } = draft
  const { fingerprint, apiServers } = here
  return { claims: { fingerprint, apiServers, ...indexes, contested }, affected }
}

/** A map with the changes of its next version. */
class Edit {
  readonly #base: PersistentMap<Claimants>
  readonly #changes = new Map<string, Claimants | undefined>()

  constructor(base: PersistentMap<Claimants> = PersistentMap.empty()) {
    this.#base = base
  }

  get(wish: string): Claimants {
    return (this.#changes.has(wish) ? this.#changes.get(wish) : this.#base.get(wish)) ?? NONE
  }

  set(wish: string, claimants: Claimants): void {
    this.#changes.set(wish, claimants.length === 0 ? undefined : claimants)
  }

  finish(): PersistentMap<Claimants> {
    return this.#base.withOwn(this.#changes)
  }
}

interface Draft {
  readonly here: NodeContext
  readonly clusterIps: Edit
  readonly externals: Edit
  readonly places: Edit
  readonly affected: Set<ServiceKey>
  contested: number
}

type Restate = (claimants: Claimants, key: ServiceKey) => Claimants

interface Claimant {
  readonly service: Service
  readonly found: ServiceListeners | undefined
}

/** Adds or removes all claims of a Service, and notes the Services that it meets. */
function restate(draft: Draft, { service, found }: Claimant, how: Restate): void {
  const { key, clusterIps, externalIps, ports } = service
  for (const ip of clusterIps) {
    const claimants = draft.clusterIps.get(ip)
    meet(draft, key, claimants)
    meet(draft, key, draft.externals.get(ip))
    const after = how(claimants, key)
    draft.clusterIps.set(ip, after)
    draft.contested += contests(after) - contests(claimants)
  }
  if (clusterIps.length + externalIps.length === 0 || hasOnlyClusterIps(service)) return
  if (!isOurs(draft.here, service)) return
  const externals = externalsOf(draft.here, service)
  for (const ip of externals) draft.externals.set(ip, how(draft.externals.get(ip), key))
  const held = heldOf(draft.here, service, externals)
  const taken = takenKeys(found)
  for (const port of ports)
    for (const place of placesOf(draft.here, service, { port, held, taken }))
      restatePlace(draft, key, place, how)
  for (const place of placesOnNode(draft.here, service, held)) restatePlace(draft, key, place, how)
  if (service.headless === 'whole') for (const ip of held) restatePlace(draft, key, wholePlace(ip), how)
}

/** Most Services claim no other address, and no port of the node. */
function hasOnlyClusterIps({ externalIps, loadBalancerIps, healthCheckNodePort, ports }: Service): boolean {
  const others = externalIps.length + loadBalancerIps.length + healthCheckNodePort
  return others === 0 && ports.every(({ nodePort }) => nodePort === 0)
}

function restatePlace(draft: Draft, key: ServiceKey, place: string, how: Restate): void {
  const claimants = draft.places.get(place)
  meet(draft, key, claimants)
  draft.places.set(place, how(claimants, key))
}

function contests(claimants: Claimants): number {
  return claimants.length > 1 ? 1 : 0
}

function externalsOf(here: NodeContext, { externalIps, loadBalancerIps }: Service): readonly Ip[] {
  return [
    ...externalIps.filter(ip => whyNotCaught(here, 'ExternalIP', ip) === undefined),
    ...loadBalancerIps.filter(ip => whyNotCaught(here, 'LoadBalancerIP', ip) === undefined),
  ]
}

/** The external addresses that the Service claims: an address that is both is a load-balancer address. */
function heldOf(here: NodeContext, { loadBalancerIps }: Service, externals: readonly Ip[]): readonly Ip[] {
  return externals.filter(
    ip => !loadBalancerIps.includes(ip) || whyNotCaught(here, 'LoadBalancerIP', ip) === undefined,
  )
}

interface Wishes {
  readonly port: ServicePortSpec
  readonly held: readonly Ip[]
  readonly taken: ReadonlySet<string> | undefined
}

function placesOf(
  here: NodeContext,
  service: Service,
  { port: spec, held, taken }: Wishes,
): readonly string[] {
  const { protocol, port, nodePort } = spec
  // What is always refused must not keep a load-balancer address from another Service.
  const isClaimed = (ip: Ip) =>
    service.loadBalancerIps.includes(ip) ||
    (apiConflict(here.apiServers, ip, spec) === undefined &&
      !isTaken(taken, { ip, protocol, port }, here.options.allowedExternalCidrs))
  const places = held.filter(isClaimed).map(ip => addressPlace(ip, protocol, port))
  if (nodePort === 0) return places
  for (const ip of service.clusterIps) places.push(nodePortPlace(familyOf(ip), protocol, nodePort))
  return places
}

function meet(draft: Draft, key: ServiceKey, claimants: Claimants): void {
  for (const other of claimants) if (other !== key) draft.affected.add(other)
}

function including(claimants: Claimants, key: ServiceKey): Claimants {
  if (claimants.length === 0) return [key]
  return claimants.includes(key) ? claimants : [...claimants, key].sort()
}

function without(claimants: Claimants, key: ServiceKey): Claimants {
  return claimants.filter(other => other !== key)
}

/** The Services that a Service may have to yield to. */
export interface AddressOwnership {
  readonly here: NodeContext
  readonly services: PersistentMap<Service>
  readonly claims: Claims
  readonly listeners: PersistentMap<ServiceListeners>
  readonly silent: PersistentMap<SilentEndpoints>
}

/** Tests whether another Service claims one of the Service's ClusterIPs, too. */
export function isContested(ownership: AddressOwnership, { clusterIps }: Service): boolean {
  return clusterIps.some(ip => ownership.claims.clusterIps.get(ip)?.length !== 1)
}

/** The Service that has this port of the ClusterIP, if it is not `service`. */
export function clusterPortOwner(
  ownership: AddressOwnership,
  service: Service,
  ip: Ip,
  port: ServicePortSpec,
): Service | undefined {
  return firstRival(ownership, service, ownership.claims.clusterIps.get(ip), other =>
    other.ports.some(its => its.port === port.port && its.protocol === port.protocol),
  )
}

/** The Service that has this ClusterIP as a whole, if it is not `service`. */
export function clusterIpOwner(ownership: AddressOwnership, service: Service, ip: Ip): Service | undefined {
  return firstRival(ownership, service, ownership.claims.clusterIps.get(ip))
}

/** The Service that claims this place (see Claims) and comes before `service`, which need not want it. */
export function placeOwner(
  ownership: AddressOwnership,
  service: Service,
  place: string,
): Service | undefined {
  return firstRival(ownership, service, ownership.claims.places.get(place))
}

/** The best-placed other claimant that comes before `service`. */
function firstRival(
  ownership: AddressOwnership,
  service: Service,
  claimants: Claimants = NONE,
  wants: (other: Service) => boolean = () => true,
): Service | undefined {
  let first = service
  for (const key of claimants) {
    const other = ownership.services.get(key)
    if (other !== undefined && isOurs(ownership.here, other) && wants(other) && comesBefore(other, first))
      first = other
  }
  return first === service ? undefined : first
}

/** The order in which Services own what several of them claim: age, then UID, then key. */
function comesBefore(a: Service, b: Service): boolean {
  if (a.creationTimestamp !== b.creationTimestamp) {
    // Without a date there is no seniority to show.
    if (a.creationTimestamp === '' || b.creationTimestamp === '') return b.creationTimestamp === ''
    return a.creationTimestamp < b.creationTimestamp
  }
  return a.uid === b.uid ? a.key < b.key : a.uid < b.uid
}

/** Key of a NodePort in Claims.places; longer than that of any address and port, which may have any octets. */
export function nodePortPlace(family: Family, protocol: Protocol, nodePort: number): string {
  return `NodePort ${protocol}${family}${u16be(nodePort)}`
}

/** A health check node port is a TCP port of the node as a NodePort is: one Service has it. */
export function healthCheckPlaces({ clusterIps, healthCheckNodePort }: Service): readonly string[] {
  if (healthCheckNodePort === 0) return NONE
  return clusterIps.map(ip => nodePortPlace(familyOf(ip), 'TCP', healthCheckNodePort))
}

const NONE: readonly string[] = []

/**
 * The places that a Service has besides its NodePorts and addresses: its health check, and where NodePorts meet external
 * addresses of the Node. Owners of the latter are those of the NodePorts, which changes affect.
 */
function placesOnNode(here: NodeContext, service: Service, held: readonly Ip[]): readonly string[] {
  const { clusterIps, ports } = service
  const checks = healthCheckPlaces(service)
  const own = held.filter(ip => here.nodeIps.has(ip))
  const meetings = checks.map(meetingOf)
  for (const { protocol, port, nodePort } of ports) {
    for (const ip of own) meetings.push(meetingOf(nodePortPlace(familyOf(ip), protocol, port)))
    if (nodePort === 0) continue
    for (const ip of clusterIps) meetings.push(meetingOf(nodePortPlace(familyOf(ip), protocol, nodePort)))
  }
  return [...checks, ...meetings]
}

function meetingOf(place: string): string {
  return `at ${place}`
}
