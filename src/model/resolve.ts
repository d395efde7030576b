import { type Cidr, mergeCidrs } from '../base/cidr.ts'
import { cut, listFor } from '../base/compact.ts'
import type { Ip } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { AddressOwnership } from './address-ownership.ts'
import { type Admission, type AdmissionUpdate, admit } from './admission.ts'
import { changedApiIps } from './api-server.ts'
import { endpointsOf, endpointsOfOneSlice } from './candidates.ts'
import { type Claims, type Touched, updateClaims } from './claims.ts'
import type { SliceList } from './endpoint.ts'
import { isSame } from './equal.ts'
import type { Backend, FrontendTable, PortFrontends, ServiceFrontends } from './frontend.ts'
import { type NodeContext, nodeContextOf, type ResolveOptions } from './node-context.ts'
import { nodePortAddresses } from './node-ports.ts'
import { resolvePort } from './port-frontends.ts'
import { closeService, openService } from './resolve-service.ts'
import { isSameService } from './same-frontends.ts'
import type { ServiceKey } from './service.ts'
import type { Snapshot } from './snapshot.ts'

/** A Snapshot and what it means on this node. */
export interface Resolved {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
  readonly memo: Memo
}

/** What the next `resolve` continues from, so that its cost follows the change. */
export interface Memo {
  readonly claims: Claims
  /** Which Services there is memory for; undefined without a bound. */
  readonly admission: Admission | undefined
}

/**
 * What this node's kernel should do about a snapshot. `previous` lends its results: Services whose objects, whose
 * rivals and whose point of view did not change keep their very objects, so that the cost follows the change. The
 * result is the same as without it, except at the edge of the memory: a Service that was refused stays refused until
 * there is clearly room for it. From another point of view, or within other memory, everything is decided anew.
 */
export function* resolve(
  options: ResolveOptions,
  previous: Resolved | undefined,
  snapshot: Snapshot,
): Steps<Resolved> {
  const here = nodeContextOf(options, snapshot)
  const known = isSeenFrom(here, previous?.memo.claims) ? previous : undefined
  const touched = known === undefined ? allOf(previous, snapshot) : changedBetween(known.snapshot, snapshot)
  const update = yield* admit({ here, previous: known?.memo.admission, snapshot, touched: touched.keys })
  const view = update === undefined ? snapshot : { ...snapshot, services: update.admission.services }
  const admitted = update === undefined ? touched : admittedOf(touched, update, view)
  const { claims, affected } = yield* updateClaims({
    here,
    claims: known?.memo.claims,
    before: known?.memo.admission?.services ?? known?.snapshot.services ?? snapshot.services,
    touched: admitted,
    listeners: { before: known?.snapshot.listeners ?? snapshot.listeners, after: snapshot.listeners },
  })
  const before = previous?.table.services ?? PersistentMap.empty<ServiceFrontends>()
  const changes = yield* resolveAll(
    { here, claims, snapshot: view, before },
    withAffected(admitted, affected, view),
  )
  const table = {
    number: snapshot.number,
    localBackends: localBackendsAfter(previous?.table, changes),
    services: before.withOwn(changes),
    ...surroundings(here, previous, snapshot),
  }
  return { snapshot, table, memo: { claims, admission: update?.admission } }
}

/** Whether a Service that stays as it is has the claims and the refusals that it had. */
function isSeenFrom(here: NodeContext, claims: Claims | undefined): boolean {
  if (claims?.fingerprint !== here.fingerprint) return false
  return changedApiIps(claims.apiServers, here.apiServers).every(ip => !claims.externals.has(ip))
}

interface Pass {
  readonly here: NodeContext
  readonly claims: Claims
  readonly snapshot: Snapshot
  readonly before: PersistentMap<ServiceFrontends>
}

const NO_CIDRS: readonly Cidr[] = []

type Changes = Map<ServiceKey, ServiceFrontends | undefined>

function* resolveAll(pass: Pass, touched: Touched): Steps<Changes> {
  const { snapshot, before } = pass
  const { keys, services } = touched
  const { services: all, listeners } = snapshot
  const ownership: AddressOwnership = { here: pass.here, services: all, listeners, claims: pass.claims }
  const changes: Changes = new Map()
  const pauses = new Pauses()
  for (let index = 0; index < keys.length; index++) {
    const key = keys[index] ?? ''
    const service = services[index]
    let now: ServiceFrontends | undefined
    if (service !== undefined) {
      const slices = snapshot.slices.get(key) ?? NO_SLICES
      const opened = openService(ownership, service, slices)
      if (opened !== undefined) {
        const { work, places, isLong } = opened
        const ports = listFor<PortFrontends>(places.length)
        let count = 0
        // Here, and not in steps of its own, which would take time of each of tens of thousands of Services.
        for (let at = 0; at < places.length; at++) {
          const place = places[at]
          if (place === undefined) break
          const among = endpointsOfOneSlice(work.slices, place) ?? (yield* endpointsOf(work.slices, place))
          if (isLong) yield
          const { port, family, clusterIp } = place
          const resolved = resolvePort(work, { port, family, clusterIp, among })
          if (resolved !== undefined) ports[count++] = resolved
          if (isLong) yield
        }
        now = closeService(work, slices, cut(ports, count))
      }
    }
    // An object that says the same is not a change: planes compare by identity.
    if (!isSameService(before.get(key), now)) changes.set(key, now)
    if (pauses.due()) yield
  }
  return changes
}

const NO_SLICES: SliceList = []

/** What is gone since the last table counts, too. */
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
  return affected.size === 0 ? touched : touching([...new Set([...touched.keys, ...affected])], snapshot)
}

function touching(keys: readonly ServiceKey[], { services }: Snapshot): Touched {
  return { keys, services: keys.map(key => services.get(key)) }
}

/** The Services as they may be resolved, with those that have gained or lost their place. */
function admittedOf(touched: Touched, { admission, affected }: AdmissionUpdate, view: Snapshot): Touched {
  if (admission.oversized.size + affected.size === 0) return touched
  return touching([...new Set([...touched.keys, ...affected])], view)
}

type Surroundings = Pick<FrontendTable, 'nodePorts' | 'serviceCidrs' | 'localIps' | 'node'>

/** What belongs to no Service; equal values keep their objects. */
function surroundings(here: NodeContext, previous: Resolved | undefined, snapshot: Snapshot): Surroundings {
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

/** FrontendTable.localBackends after some Services changed. */
function localBackendsAfter(
  table: FrontendTable | undefined,
  changes: ReadonlyMap<ServiceKey, ServiceFrontends | undefined>,
): PersistentMap<number> {
  const deltas = new Map<Ip, number>()
  changes.forEach((now, key) => {
    const before = table?.services.get(key)
    if (before !== undefined) count(deltas, before, -1)
    if (now !== undefined) count(deltas, now, 1)
  })
  const counts = table?.localBackends ?? PersistentMap.empty<number>()
  const updates = new Map<Ip, number | undefined>()
  for (const [ip, delta] of deltas) {
    const now = (counts.get(ip) ?? 0) + delta
    updates.set(ip, now === 0 ? undefined : now)
  }
  return counts.withOwn(updates)
}

function count(deltas: Map<Ip, number>, { ports }: ServiceFrontends, by: number): void {
  for (let index = 0; index < ports.length; index++) {
    const port = ports[index]
    if (port === undefined) continue
    countList(deltas, port.cluster, by)
    countList(deltas, port.local, by)
  }
}

function countList(deltas: Map<Ip, number>, backends: readonly Backend[], by: number): void {
  for (let index = 0; index < backends.length; index++) {
    const backend = backends[index]
    if (backend?.local === true) deltas.set(backend.ip, (deltas.get(backend.ip) ?? 0) + by)
  }
}
