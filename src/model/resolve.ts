import { Pauses, type Steps } from '../base/clock.ts'
import { append, cut, listFor, PersistentMap } from '../base/collections.ts'
import { type Cidr, FAMILIES, type Family, familyOf, formatIp, type Ip, mergeCidrs } from '../base/ip.ts'
import {
  type AddressOwnership,
  type Claims,
  type ClaimUpdate,
  clusterIpOwner,
  healthCheckPlaces,
  isContested,
  placeOwner,
  type Touched,
  updateClaims,
  wholePlace,
} from './claims.ts'
import { type Findings, isSame, type Refusal, refusalsOf, refuse } from './fields.ts'
import {
  type FrontendTable,
  healthCheckOf,
  type PortFrontends,
  type ServiceFrontends,
  type WholeAddresses,
} from './frontend.ts'
import { type CappedServices, cappedSnapshot, withinCaps } from './memory-caps.ts'
import {
  externalRoute,
  forwardedAtLocalhost,
  isOurs,
  type NodeContext,
  needsForRoute,
  nodeContextOf,
  nodePortAddresses,
  type ResolveOptions,
  selectBackends,
  survey,
} from './node-context.ts'
import {
  endpointsOf,
  endpointsOfOneSlice,
  isLarge,
  type MergedEndpoints,
  mergeOf,
  type PortEndpoints,
  type Wanted,
  wholeCandidatesOf,
} from './port-endpoints.ts'
import {
  API_ADDRESS,
  externalsOf,
  firstPortsOf,
  isSameService,
  localBackendsAfter,
  resolvePort,
  type ServiceWork,
} from './port-frontends.ts'
import { API_SERVICE, changedApiIps, isApiAddress, takenKeys } from './reserved.ts'
import type { Service, ServiceKey, ServicePortSpec, SliceList } from './service.ts'
import { type Snapshot, withoutLoops } from './snapshot.ts'

/** A Snapshot and what it means on this node. */
export interface Resolved {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
  readonly memo: Memo
}

/** The next `resolve` continues from this, so that its cost follows the change. */
export interface Memo {
  readonly here: NodeContext
  readonly claims: Claims
  readonly caps: CappedServices
  /** Merged endpoints by Service and port, of Services with many endpoints in several slices. */
  readonly merges: PersistentMap<readonly MergedEndpoints[]>
}

/**
 * Says what this node's kernel should do about a snapshot, in four steps: what has changed, which Services there is memory
 * for, who owns the addresses, and what each port of the Services then means. `previous` lends its results: a Service whose
 * objects, rivals and point of view did not change keeps its very objects, so that the cost follows the change. The result is
 * the same as without it. From another point of view, or within other memory, everything is decided anew.
 */
export function* resolve(
  options: ResolveOptions,
  previous: Resolved | undefined,
  snapshot: Snapshot,
): Steps<Resolved> {
  const here = hasContextOf(previous, options, snapshot)
    ? previous.memo.here
    : nodeContextOf(options, snapshot)
  const known = isSeenFrom(here, previous?.memo.claims) ? previous : undefined
  const changed = known === undefined ? allOf(previous, snapshot) : changedBetween(known.snapshot, snapshot)
  const { caps, affected } = withinCaps({
    here,
    previous: known?.memo.caps,
    snapshot,
    touched: changed.keys,
  })
  const view = cappedSnapshot(snapshot, caps)
  const touched = caps.refused.size + affected.size === 0 ? changed : withAffected(changed, affected, view)
  const owned = yield* claimsOf(here, { known, view, touched })
  const before = previous?.table.services ?? PersistentMap.empty<ServiceFrontends>()
  const { changes, merges } = yield* resolveAll(
    {
      here,
      claims: owned.claims,
      snapshot: view,
      before,
      merges: previous?.memo.merges ?? PersistentMap.empty(),
    },
    owned.affected.size === 0 ? touched : withAffected(touched, owned.affected, view),
  )
  const { nodePorts, serviceCidrs, localIps, node } = surroundings(here, previous, snapshot)
  const table = {
    number: snapshot.number,
    localBackends: localBackendsAfter(previous?.table, changes),
    services: before.withOwn(changes),
    nodePorts,
    ...forwardedAtLocalhost(here),
    serviceCidrs,
    localIps,
    node,
  }
  return { snapshot, table, memo: { here, claims: owned.claims, caps, merges } }
}

/** Tests whether nodeContextOf() would read the same values as before. */
function hasContextOf(
  previous: Resolved | undefined,
  options: ResolveOptions,
  { node, localIps, apiEndpoints, slices }: Snapshot,
): previous is Resolved {
  if (previous === undefined || previous.memo.here.options !== options) return false
  const before = previous.snapshot
  return (
    before.node === node &&
    before.localIps === localIps &&
    before.apiEndpoints === apiEndpoints &&
    before.slices.get(API_SERVICE) === slices.get(API_SERVICE)
  )
}

/** Claims are those of Services and listeners alone: most changes are of endpoints, and leave them as they are. */
function* claimsOf(here: NodeContext, { known, view, touched }: ClaimsInput): Steps<ClaimUpdate> {
  const services = known?.memo.caps.services ?? view.services
  const listeners = { before: known?.snapshot.listeners ?? view.listeners, after: view.listeners }
  const claims = known?.memo.claims
  const isSame = services === view.services && listeners.before === listeners.after
  if (isSame && claims?.apiServers === here.apiServers) return { claims, affected: NO_SERVICES }
  return yield* updateClaims({ here, claims, before: services, touched, listeners })
}

interface ClaimsInput {
  readonly known: Resolved | undefined
  readonly view: Snapshot
  readonly touched: Touched
}

const NO_SERVICES: ReadonlySet<ServiceKey> = new Set()

/** Tests whether unchanged Services keep their claims and refusals. */
function isSeenFrom(here: NodeContext, claims: Claims | undefined): boolean {
  if (claims?.fingerprint !== here.fingerprint) return false
  if (claims.apiServers === here.apiServers) return true
  return changedApiIps(claims.apiServers, here.apiServers).every(ip => !claims.externals.has(ip))
}

interface Pass {
  readonly here: NodeContext
  readonly claims: Claims
  readonly snapshot: Snapshot
  readonly before: PersistentMap<ServiceFrontends>
  readonly merges: PersistentMap<readonly MergedEndpoints[]>
}

const NO_CIDRS: readonly Cidr[] = []

type Changes = Map<ServiceKey, ServiceFrontends | undefined>

/** With fewer endpoints a merge costs less than what it is kept for. */
const KEPT_ENDPOINTS_MIN = 1_000

export function* resolveAll(
  pass: Pass,
  touched: Touched,
): Steps<Pick<Pass, 'merges'> & { readonly changes: Changes }> {
  const { snapshot, before } = pass
  const { keys, services } = touched
  const { services: all, listeners } = snapshot
  const ownership: AddressOwnership = { here: pass.here, services: all, listeners, claims: pass.claims }
  const changes: Changes = new Map()
  const merges = new Map<ServiceKey, MergedEndpoints[]>()
  const pauses = new Pauses()
  for (let index = 0; index < keys.length; index++) {
    const key = keys[index] ?? ''
    const service = services[index]
    const was = before.get(key)
    let now: ServiceFrontends | undefined
    if (service !== undefined) {
      const slices = snapshot.slices.get(key) ?? NO_SLICES
      const opened = openService(ownership, service, slices)
      if (opened !== undefined) {
        const { work, places, isLong } = opened
        const ports = listFor<PortFrontends>(places.length)
        let count = 0
        // Inlined: a generator of its own costs measurable time for each of tens of thousands of Services.
        for (let at = 0; at < places.length; at++) {
          const place = places[at]
          if (place === undefined) break
          let among: PortEndpoints | undefined = endpointsOfOneSlice(work.slices, place)
          if (among === undefined) {
            const former = mergeOf(pass.merges.get(key), place)
            const merge = yield* endpointsOf({ slices: work.slices, wanted: place, former })
            if (merge.endpoints.length >= KEPT_ENDPOINTS_MIN) append(merges, key, merge)
            among = merge
          }
          if (isLong) yield
          const { port, family, clusterIp } = place
          const former = was?.ports[count]
          const resolved = resolvePort(work, { port, family, clusterIp, among, former })
          if (resolved !== undefined) ports[count++] = resolved
          if (isLong) yield
        }
        now = closeService(work, slices, cut(ports, count))
      }
    }
    // An object that says the same is not a change: planes compare by identity.
    if (!isSameService(was, now)) changes.set(key, now)
    if (pauses.due()) yield
  }
  return { changes, merges: mergesAfter(pass.merges, touched, merges) }
}

/** Keeps the merges of this pass. A Service that no longer needs merging drops its own. */
function mergesAfter(
  before: Pass['merges'],
  { keys }: Touched,
  merges: ReadonlyMap<ServiceKey, readonly MergedEndpoints[]>,
): Pass['merges'] {
  const updates = new Map<ServiceKey, readonly MergedEndpoints[] | undefined>(merges)
  if (before.size > 0)
    for (const key of keys) if (!merges.has(key) && before.has(key)) updates.set(key, undefined)
  return before.withOwn(updates)
}

const NO_SLICES: SliceList = []

/** Includes Services that are gone since the last table. */
function allOf(previous: Resolved | undefined, { services }: Snapshot): Touched {
  const all = { keys: services.keys(), services: services.values() }
  const gone = previous?.table.services.keys().filter(key => !services.has(key)) ?? []
  return gone.length === 0 ? all : { ...all, keys: [...all.keys, ...gone] }
}

function changedBetween(from: Snapshot, to: Snapshot): Touched {
  const ofSlices = PersistentMap.changes(from.slices, to.slices)
  const ofServices = PersistentMap.changes(from.services, to.services)
  const ofListeners = PersistentMap.changes(from.listeners, to.listeners)
  const others = ofServices.length + ofListeners.length
  return touching(others === 0 ? ofSlices : [...new Set([...ofServices, ...ofListeners, ...ofSlices])], to)
}

function withAffected(touched: Touched, affected: ReadonlySet<ServiceKey>, snapshot: Snapshot): Touched {
  return touching([...new Set([...touched.keys, ...affected])], snapshot)
}

export function touching(keys: readonly ServiceKey[], { services }: Snapshot): Touched {
  return { keys, services: keys.map(key => services.get(key)) }
}

type Surroundings = Pick<FrontendTable, 'nodePorts' | 'serviceCidrs' | 'localIps' | 'node'>

/** Computes what belongs to no Service; equal values keep their objects. */
function surroundings(here: NodeContext, previous: Resolved | undefined, snapshot: Snapshot): Surroundings {
  if (previous?.memo.here === here && previous.snapshot.serviceCidrs === snapshot.serviceCidrs)
    return previous.table
  const now: Surroundings = {
    nodePorts: nodePortAddresses(here, snapshot.localIps),
    serviceCidrs: serviceCidrsOf(here, snapshot),
    localIps: snapshot.localIps,
    node: { ips: here.node?.ips ?? [], podCidrs: here.node?.podCidrs ?? [] },
  }
  if (previous === undefined) return now
  const { table } = previous
  return {
    nodePorts: isSame(table.nodePorts, now.nodePorts) ? table.nodePorts : now.nodePorts,
    serviceCidrs: isSame(table.serviceCidrs, now.serviceCidrs) ? table.serviceCidrs : now.serviceCidrs,
    localIps: isSame(table.localIps, now.localIps) ? table.localIps : now.localIps,
    node: isSame(table.node, now.node) ? table.node : now.node,
  }
}

/** An address that a named proxy does not know as a ClusterIP mostly belongs to the unnamed proxy. */
function serviceCidrsOf({ options }: NodeContext, snapshot: Snapshot): readonly Cidr[] {
  if (options.serviceProxyName !== undefined) return NO_CIDRS
  return mergeCidrs(snapshot.serviceCidrs.values().flat())
}

/** One port of the Service in one family. */
interface PortPlace extends Wanted {
  readonly port: ServicePortSpec
  /** Undefined for a headless Service. */
  readonly clusterIp: Ip | undefined
}

/**
 * Begins a Service, whose ports are then resolved one by one; undefined when it is another proxy's, or has neither
 * addresses nor refusals. `isLong`: it has so many endpoints that each port takes a while.
 */
function openService(ownership: AddressOwnership, service: Service, slices: SliceList) {
  if (!isServed(ownership, service)) return undefined
  return { work: begin(ownership, service, slices), places: placesOf(service), isLong: isLarge(slices) }
}

function placesOf(service: Service): readonly PortPlace[] {
  const { ports, headless } = service
  const members = membersOf(service)
  const places = listFor<PortPlace>(ports.length * members.length)
  let count = 0
  for (let index = 0; index < ports.length; index++) {
    const port = ports[index]
    if (port === undefined) continue
    const { name, protocol } = port
    for (let at = 0; at < members.length; at++) {
      const member = members[at] ?? ''
      const clusterIp = headless === undefined ? member : undefined
      places[count++] = { port, name, protocol, family: familyOf(member), clusterIp }
    }
  }
  return places
}

function isServed({ here }: AddressOwnership, service: Service): boolean {
  const { clusterIps, externalIps, refusals } = service
  // Without a ClusterIP, only headless Services of named proxies have external addresses.
  return clusterIps.length + externalIps.length + refusals.length > 0 && isOurs(here, service)
}

/** An address of each family that the Service is in. */
function membersOf({ clusterIps, externalIps, headless }: Service): readonly Ip[] {
  if (headless === undefined) return clusterIps
  return FAMILIES.flatMap(family => externalIps.find(ip => familyOf(ip) === family) ?? [])
}

function begin(ownership: AddressOwnership, service: Service, slices: SliceList): ServiceWork {
  const findings: Findings = { kind: 'Service', key: service.key, refusals: undefined }
  return {
    ownership,
    service,
    findings,
    externals: externalsOf(ownership, service, findings),
    taken: ownership.listeners.size === 0 ? undefined : takenKeys(ownership.listeners.get(service.key)),
    slices: withoutLoops(slices, service, findings),
    firstPorts: service.ports.length < 2 ? undefined : firstPortsOf(service),
    isContested: ownership.claims.contested > 0 && isContested(ownership, service),
  }
}

/** Completes a Service whose ports are resolved. */
function closeService(
  work: ServiceWork,
  slices: SliceList,
  ports: readonly PortFrontends[],
): ServiceFrontends {
  const { ownership, service, findings } = work
  const wholes = service.headless === 'whole' ? wholesOf(work) : NO_WHOLES
  const hasHealthCheck = service.healthCheckNodePort !== 0 && hasHealthPort(work)
  const resolved = {
    service: service.key,
    clusterIps: work.isContested ? ownClusterIps(ownership, service) : service.clusterIps,
    ports,
    refusals: allRefusals(service, slices, findings),
  }
  if (service.headless === 'whole') return { ...resolved, wholes }
  const healthCheck = hasHealthCheck
    ? healthCheckOf(service, work.slices, ownership.here.nodeName)
    : undefined
  return healthCheck === undefined ? resolved : { ...resolved, healthCheck }
}

function hasHealthPort({ ownership, service, findings }: ServiceWork): boolean {
  for (const place of healthCheckPlaces(service)) {
    const owner = placeOwner(ownership, service, place)
    if (owner === undefined) continue
    const reason = `already claimed by Service ${owner.key}, which comes first`
    refuse(findings, 'spec.healthCheckNodePort', `${service.healthCheckNodePort}/TCP`, reason)
    return false
  }
  return true
}

const NO_WHOLES: readonly WholeAddresses[] = []

function ownClusterIps(ownership: AddressOwnership, service: Service): readonly Ip[] {
  const own = service.clusterIps.filter(ip => clusterIpOwner(ownership, service, ip) === undefined)
  return own.length === service.clusterIps.length ? service.clusterIps : own
}

/** Collects the refusals of the Service, its slices and the resolver, each once: both families lose one NodePort. */
function allRefusals(service: Service, slices: SliceList, findings: Findings): readonly Refusal[] {
  if (findings.refusals === undefined && !hasRefusals(slices)) return service.refusals
  const found = new Map(
    refusalsOf(findings).map(its => [`${its.object} ${its.field} ${its.value} ${its.reason}`, its]),
  )
  return [service.refusals, ...slices.map(slice => slice.refusals), [...found.values()]].flat()
}

function hasRefusals(slices: SliceList): boolean {
  for (let index = 0; index < slices.length; index++) if (slices[index]?.refusals.length !== 0) return true
  return false
}

/** The whole addresses of a headless Service without ports that no older Service has, by family. */
function wholesOf(work: ServiceWork): readonly WholeAddresses[] {
  const ips = work.externals.filter(({ ip }) => isOwn(work, ip)).map(({ ip }) => ip)
  return FAMILIES.flatMap(family => {
    const ofFamily = ips.filter(ip => familyOf(ip) === family)
    return ofFamily.length === 0 ? [] : [wholeOf(work, family, ofFamily)]
  })
}

function wholeOf(
  { ownership, service, slices }: ServiceWork,
  family: Family,
  ips: readonly Ip[],
): WholeAddresses {
  const endpoints = wholeCandidatesOf(slices, family).map(({ endpoint }) => endpoint)
  const found = survey(endpoints, ownership.here)
  const route = externalRoute(service, found)
  const among = { endpoints, ports: 0 }
  const lists = selectBackends({ among, found, place: ownership.here, former: [] }, needsForRoute(route))
  return { family, ips, route, affinityTimeoutS: service.affinityTimeoutS, ...lists }
}

function isOwn({ ownership, service, findings }: ServiceWork, ip: Ip): boolean {
  if (isApiAddress(ownership.here.apiServers, ip)) {
    refuse(findings, 'spec.externalIPs', formatIp(ip), API_ADDRESS)
    return false
  }
  const owner = placeOwner(ownership, service, wholePlace(ip))
  if (owner === undefined) return true
  const reason = `already claimed as a whole by Service ${owner.key}, which comes first`
  refuse(findings, 'spec.externalIPs', formatIp(ip), reason)
  return false
}
