import { anyContains } from '../base/cidr.ts'
import { type Family, familyOf, type Ip } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { Steps } from '../base/steps.ts'
import { type Here, isOurs } from './here.ts'
import type { Protocol, Service, ServiceKey } from './service.ts'

/** Services that want one thing, sorted. */
export type Claimants = readonly ServiceKey[]

/** Which Services want which addresses and ports, so that a change finds those it meets without asking all of them. */
export interface Claims {
  /** The point of view from which they were made. */
  readonly fingerprint: string
  /** By address: the Services, our own or another proxy's, whose ClusterIP it is. */
  readonly clusterIps: PersistentMap<Claimants>
  /** By address: our Services that want it as an external or load-balancer address. */
  readonly externals: PersistentMap<Claimants>
  /** By place (addressPlace, nodePortPlace): our Services that want it. */
  readonly places: PersistentMap<Claimants>
}

/** Key of one port of an external address. ClusterIPs need none: their addresses tell them apart. */
export function addressPlace(ip: Ip, protocol: Protocol, port: number): string {
  return protocol + ip + u16be(port)
}

/** Key of a NodePort; its length differs from that of any addressPlace. */
export function nodePortPlace(family: Family, protocol: Protocol, nodePort: number): string {
  return `${protocol}${family}${u16be(nodePort)}`
}

/** Why this node must not catch traffic to the address, whoever asks for it; undefined if it may. */
export function whyNotCaught(here: Here, kind: 'ExternalIP' | 'LoadBalancerIP', ip: Ip): string | undefined {
  if (here.nodeIps.has(ip)) return 'an address of this node, whose own traffic would be caught'
  const { allowedExternalCidrs, allowedLoadBalancerCidrs } = here.options
  const allowed = kind === 'ExternalIP' ? allowedExternalCidrs : allowedLoadBalancerCidrs
  if (allowed.length === 0 || anyContains(allowed, ip)) return undefined
  return `outside the prefixes allowed for ${kind === 'ExternalIP' ? 'external IPs' : 'load-balancer addresses'}`
}

export interface ClaimUpdate {
  readonly claims: Claims
  /** Services that meet a changed one on some address or port, the changed ones left aside. */
  readonly affected: ReadonlySet<ServiceKey>
}

export interface ClaimChange {
  readonly here: Here
  /** Undefined to start anew: every Service then counts as changed. */
  readonly claims: Claims | undefined
  readonly before: PersistentMap<Service>
  readonly after: PersistentMap<Service>
  readonly changed: Iterable<ServiceKey>
}

export function* updateClaims(change: ClaimChange): Steps<ClaimUpdate> {
  const { here, claims } = change
  const draft: Draft = {
    clusterIps: editOf(claims?.clusterIps),
    externals: editOf(claims?.externals),
    places: editOf(claims?.places),
    affected: new Set(),
  }
  let count = 0
  for (const key of change.changed) {
    const before = claims === undefined ? undefined : change.before.get(key)
    const after = change.after.get(key)
    if (before === after) continue
    if (before !== undefined) restate(draft, key, wishesOf(here, before), remove)
    if (after !== undefined) restate(draft, key, wishesOf(here, after), add)
    if (++count % YIELD_EVERY === 0) yield
  }
  const indexes = {
    clusterIps: done(draft.clusterIps),
    externals: done(draft.externals),
    places: done(draft.places),
  }
  return { claims: { fingerprint: here.fingerprint, ...indexes }, affected: draft.affected }
}

const YIELD_EVERY = 500

interface Wishes {
  readonly clusterIps: readonly Ip[]
  readonly externals: readonly Ip[]
  readonly places: readonly string[]
}

const NO_KEYS: readonly string[] = []

function wishesOf(here: Here, service: Service): Wishes {
  const { clusterIps } = service
  if (!isOurs(here, service) || clusterIps.length === 0)
    return { clusterIps, externals: NO_KEYS, places: NO_KEYS }
  const externals = [
    ...service.externalIps.filter(ip => whyNotCaught(here, 'ExternalIP', ip) === undefined),
    ...service.loadBalancerIps.filter(ip => whyNotCaught(here, 'LoadBalancerIP', ip) === undefined),
  ]
  const places: string[] = []
  for (const { protocol, port, nodePort } of service.ports) {
    for (const ip of externals) places.push(addressPlace(ip, protocol, port))
    if (nodePort === 0) continue
    for (const ip of clusterIps) places.push(nodePortPlace(familyOf(ip), protocol, nodePort))
  }
  return { clusterIps, externals, places }
}

/** A map and what is to be different in its next version. */
interface Edit {
  readonly base: PersistentMap<Claimants>
  readonly changes: Map<string, Claimants>
}

interface Draft {
  readonly clusterIps: Edit
  readonly externals: Edit
  readonly places: Edit
  readonly affected: Set<ServiceKey>
}

function editOf(base: PersistentMap<Claimants> | undefined): Edit {
  return { base: base ?? PersistentMap.empty(), changes: new Map() }
}

function current(edit: Edit, key: string): Claimants {
  return edit.changes.get(key) ?? edit.base.get(key) ?? NO_KEYS
}

/** Adds or removes all wishes of a Service, noting whom it meets. */
function restate(
  draft: Draft,
  key: ServiceKey,
  wishes: Wishes,
  how: (from: Claimants, key: ServiceKey) => Claimants,
): void {
  for (const ip of wishes.clusterIps) {
    meet(draft, key, current(draft.clusterIps, ip))
    meet(draft, key, current(draft.externals, ip))
    draft.clusterIps.changes.set(ip, how(current(draft.clusterIps, ip), key))
  }
  for (const ip of wishes.externals) draft.externals.changes.set(ip, how(current(draft.externals, ip), key))
  for (const place of wishes.places) {
    meet(draft, key, current(draft.places, place))
    draft.places.changes.set(place, how(current(draft.places, place), key))
  }
}

function meet(draft: Draft, key: ServiceKey, claimants: Claimants): void {
  for (const other of claimants) if (other !== key) draft.affected.add(other)
}

function add(claimants: Claimants, key: ServiceKey): Claimants {
  if (claimants.length === 0) return [key]
  return claimants.includes(key) ? claimants : [...claimants, key].sort()
}

function remove(claimants: Claimants, key: ServiceKey): Claimants {
  return claimants.filter(other => other !== key)
}

function done(edit: Edit): PersistentMap<Claimants> {
  return edit.base.with(withoutEmpty(edit.changes))
}

function* withoutEmpty(changes: ReadonlyMap<string, Claimants>): Iterable<[string, Claimants | undefined]> {
  for (const [key, claimants] of changes) yield [key, claimants.length === 0 ? undefined : claimants]
}
