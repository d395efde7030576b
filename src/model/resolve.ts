import { stepsOver } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { type Cidr, type Ip, mergeCidrs } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'
import { type Claims, type ClaimUpdate, type Touched, updateClaims } from './claims.ts'
import type { Backend, FrontendTable, PortFrontends, ServiceFrontends } from './frontend.ts'
import { type CappedServices, cappedSnapshot, withinCaps } from './memory-caps.ts'
import {
  forwardedAtLocalhost,
  type NodeContext,
  nodeContextOf,
  nodePortAddresses,
  type ResolveOptions,
} from './node-context.ts'
import { API_SERVICE, changedApiIps } from './reserved.ts'
import { resolveService } from './resolve-service.ts'
import type { ServiceKey } from './service.ts'
import type { Snapshot } from './snapshot.ts'

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
}

/**
 * Says what this node's kernel should do about a snapshot, in four steps: what has changed, which Services there is memory
 * for, who owns the addresses, and what each port of the Services then means. `previous` lends its results: a Service whose
 * objects, rivals and point of view did not change keeps its very objects, so that the cost follows the change. The result is
 * the same as without it. From another point of view, or within other memory, everything is decided anew.
 */
export function resolve(options: ResolveOptions, previous: Resolved | undefined, snapshot: Snapshot) {
  const here = hasContextOf(previous, options, snapshot)
    ? previous.memo.here
    : nodeContextOf(options, snapshot)
  const known = isSeenFrom(here, previous?.memo.claims) ? previous : undefined
  const changed = known === undefined ? allOf(previous, snapshot) : changedBetween(known.snapshot, snapshot)
  const { caps, affected } = withinCaps({
    here,
    previous: known?.memo.caps,
    snapshot,
    touched: [...changed.keys()],
  })
  const view = cappedSnapshot(snapshot, caps)
  // Some of the changed Services may be stubs in the view.
  const touched =
    caps.refused.size + affected.size === 0 ? changed : touching([...changed.keys(), ...affected], view)
  const { claims, affected: rivals } = claimsOf(here, { known, view, touched })
  const before = previous?.table.services ?? PersistentMap.empty<ServiceFrontends>()
  const pass = { here, claims, snapshot: view, before }
  return resolveAll(pass, withAffected(touched, rivals, view), (changes): Resolved => {
    const table = {
      number: snapshot.number,
      localBackends: localBackendsAfter(previous?.table, changes),
      services: before.withOwn(changes),
      ...surroundings(here, previous, snapshot),
    }
    return { snapshot, table, memo: { here, claims, caps } }
  })
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
function claimsOf(here: NodeContext, { known, view, touched }: ClaimsInput): ClaimUpdate {
  const services = known?.memo.caps.services ?? view.services
  const listeners = { before: known?.snapshot.listeners ?? view.listeners, after: view.listeners }
  const claims = known?.memo.claims
  const isSame = services === view.services && listeners.before === listeners.after
  if (isSame && claims?.apiServers === here.apiServers) return { claims, affected: NO_SERVICES }
  return updateClaims({ here, claims, before: services, touched, listeners })
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
}

type Changes = Map<ServiceKey, ServiceFrontends | undefined>

/** Resolves these Services, with addresses owned as in `claims`. `result` gets those that differ from `before`. */
export function resolveAll<R>(
  { here, claims, snapshot, before }: Pass,
  touched: Touched,
  result: (changes: Changes) => R,
) {
  const { services, listeners, slices, silent } = snapshot
  const ownership = { here, claims, services, listeners, silent }
  const changes: Changes = new Map()
  return stepsOver(touched, {
    each: ([key, service]) => {
      const resolved = service && resolveService(ownership, service, slices.get(key) ?? [])
      // An equal object is not a change: planes compare by identity.
      if (!isSame(before.get(key), resolved)) changes.set(key, resolved)
    },
    result: () => result(changes),
  })
}

/** Includes Services that are gone since the last table. */
function allOf(previous: Resolved | undefined, snapshot: Snapshot): Touched {
  const gone = previous?.table.services.keys() ?? []
  return touching([...snapshot.services.keys(), ...gone], snapshot)
}

function changedBetween(from: Snapshot, to: Snapshot): Touched {
  return touching(
    [
      ...PersistentMap.changes(from.services, to.services),
      ...PersistentMap.changes(from.listeners, to.listeners),
      ...PersistentMap.changes(from.slices, to.slices),
      ...PersistentMap.changes(from.silent, to.silent),
    ],
    to,
  )
}

function withAffected(touched: Touched, affected: ReadonlySet<ServiceKey>, snapshot: Snapshot): Touched {
  if (affected.size === 0) return touched
  return touching([...touched.keys(), ...affected], snapshot)
}

export function touching(keys: readonly ServiceKey[], { services }: Snapshot): Touched {
  return new Map(keys.map(key => [key, services.get(key)]))
}

type Surroundings = Pick<
  FrontendTable,
  'nodePorts' | 'serviceCidrs' | 'localIps' | 'node' | 'forwardedAtLocalhost'
>

/** Computes what belongs to no Service; equal values keep their objects. */
function surroundings(here: NodeContext, previous: Resolved | undefined, snapshot: Snapshot): Surroundings {
  if (previous?.memo.here === here && previous.snapshot.serviceCidrs === snapshot.serviceCidrs) {
    const { nodePorts, serviceCidrs, localIps, node, forwardedAtLocalhost } = previous.table
    return { nodePorts, serviceCidrs, localIps, node, ...(forwardedAtLocalhost && { forwardedAtLocalhost }) }
  }
  const kept = <V>(before: V | undefined, now: V): V =>
    before !== undefined && isSame(before, now) ? before : now
  const table = previous?.table
  return {
    nodePorts: kept(table?.nodePorts, nodePortAddresses(here, snapshot.localIps)),
    serviceCidrs: kept(table?.serviceCidrs, serviceCidrsOf(here, snapshot)),
    localIps: kept(table?.localIps, snapshot.localIps),
    node: kept(table?.node, { ips: here.node?.ips ?? [], podCidrs: here.node?.podCidrs ?? [] }),
    ...forwardedAtLocalhost(here),
  }
}

/** An address that a named proxy does not know as a ClusterIP mostly belongs to the unnamed proxy. */
function serviceCidrsOf({ options }: NodeContext, snapshot: Snapshot): readonly Cidr[] {
  if (options.serviceProxyName !== undefined) return []
  return mergeCidrs(snapshot.serviceCidrs.values().flat())
}

/** FrontendTable.localBackends after some Services changed. */
function localBackendsAfter(
  table: FrontendTable | undefined,
  changes: ReadonlyMap<ServiceKey, ServiceFrontends | undefined>,
): PersistentMap<number> {
  const deltas = new Map<Ip, number>()
  for (const [key, now] of changes) {
    countLocal(deltas, table?.services.get(key)?.ports, -1)
    countLocal(deltas, now?.ports, 1)
  }
  const counts = table?.localBackends ?? PersistentMap.empty<number>()
  const updates = new Map<Ip, number | undefined>()
  for (const [ip, delta] of deltas) {
    const now = (counts.get(ip) ?? 0) + delta
    updates.set(ip, now === 0 ? undefined : now)
  }
  return counts.withOwn(updates)
}

function countLocal(deltas: Map<Ip, number>, ports: readonly PortFrontends[] | undefined, by: 1 | -1): void {
  const add = ({ ip, local }: Backend) => {
    if (local) deltas.set(ip, (deltas.get(ip) ?? 0) + by)
  }
  for (const { cluster, local } of ports ?? []) {
    cluster.forEach(add)
    local.forEach(add)
  }
}
