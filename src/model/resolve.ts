import { stepsOver } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { type Cidr, type Ip, mergeCidrs } from '../base/ip.ts'
import { type AddressOwnership, type Claims, type ClaimUpdate, type Touched, updateClaims } from './claims.ts'
import { isSame } from './fields.ts'
import type { Backend, FrontendTable, PortFrontends, ServiceFrontends } from './frontend.ts'
import { type CappedServices, cappedSnapshot, withinCaps } from './memory-caps.ts'
import type { MergedEndpoints } from './merged-endpoints.ts'
import {
  forwardedAtLocalhost,
  type NodeContext,
  nodeContextOf,
  nodePortAddresses,
  type ResolveOptions,
} from './node-context.ts'
import { API_SERVICE, changedApiIps } from './reserved.ts'
import { resolveService } from './resolve-service.ts'
import type { Service, ServiceKey, SliceList } from './service.ts'
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
  /** Merged endpoints by Service and port, of Services with many endpoints in several slices. */
  readonly merges: PersistentMap<readonly MergedEndpoints[]>
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
  const touched = caps.refused.size + affected.size === 0 ? changed : withAffected(changed, affected, view)
  const { claims, affected: rivals } = claimsOf(here, { known, view, touched })
  const before = previous?.table.services ?? PersistentMap.empty<ServiceFrontends>()
  const merges = previous?.memo.merges ?? PersistentMap.empty()
  const draft = new ServicesDraft({ here, claims, snapshot: view, before, merges })
  return stepsOver(rivals.size === 0 ? touched : withAffected(touched, rivals, view), {
    each: ([key, service]) => draft.replace(key, service),
    result: (): Resolved => {
      const { changes, merges } = draft.finish()
      const table = {
        number: snapshot.number,
        localBackends: localBackendsAfter(previous?.table, changes),
        services: before.withOwn(changes),
        ...surroundings(here, previous, snapshot),
      }
      return { snapshot, table, memo: { here, claims, caps, merges } }
    },
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
  readonly merges: PersistentMap<readonly MergedEndpoints[]>
}

const NO_CIDRS: readonly Cidr[] = []

type Changes = Map<ServiceKey, ServiceFrontends | undefined>

/** Resolves these Services, with addresses owned as in `claims`. */
export function resolveAll(pass: Pass, touched: Touched) {
  const services = new ServicesDraft(pass)
  return stepsOver(touched, {
    each: ([key, service]) => services.replace(key, service),
    result: () => services.finish(),
  })
}

/** Collects the changes of Services, each resolved alone. */
class ServicesDraft {
  readonly #pass: Pass
  readonly #ownership: AddressOwnership
  readonly #changes: Changes = new Map()
  readonly #merges = new Map<ServiceKey, readonly MergedEndpoints[] | undefined>()

  constructor(pass: Pass) {
    this.#pass = pass
    const { here, claims, snapshot } = pass
    this.#ownership = { here, claims, services: snapshot.services, listeners: snapshot.listeners }
  }

  replace(key: ServiceKey, service: Service | undefined): void {
    const { before, snapshot, merges } = this.#pass
    const former = before.get(key)
    const slices = snapshot.slices.get(key) ?? NO_SLICES
    const resolved =
      service && resolveService(this.#ownership, { service, slices, former, merges: merges.get(key) })
    // An equal object is not a change: planes compare by identity.
    if (!isSameService(former, resolved?.frontends)) this.#changes.set(key, resolved?.frontends)
    const kept = resolved?.merges ?? []
    if (kept.length > 0 || merges.has(key)) this.#merges.set(key, kept.length === 0 ? undefined : kept)
  }

  finish(): { readonly changes: Changes; readonly merges: Pass['merges'] } {
    return { changes: this.#changes, merges: this.#pass.merges.withOwn(this.#merges) }
  }
}

const NO_SLICES: SliceList = []

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
    ],
    to,
  )
}

function withAffected(touched: Touched, affected: ReadonlySet<ServiceKey>, snapshot: Snapshot): Touched {
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
  if (options.serviceProxyName !== undefined) return NO_CIDRS
  return mergeCidrs(snapshot.serviceCidrs.values().flat())
}

/** Compares as isSame() does, but lists of back ends, which may be long, in a faster way. */
export function isSameService(a: ServiceFrontends | undefined, b: ServiceFrontends | undefined): boolean {
  if (a === undefined || b === undefined || a.ports.length !== b.ports.length) return a === b
  const { ports: portsOfA, ...restOfA } = a
  const { ports: portsOfB, ...restOfB } = b
  return portsOfA.every((port, index) => isSamePort(port, portsOfB[index])) && isSame(restOfA, restOfB)
}

function isSamePort(a: PortFrontends, b: PortFrontends | undefined): boolean {
  if (b === undefined) return false
  const { cluster: clusterOfA, local: localOfA, ...restOfA } = a
  const { cluster: clusterOfB, local: localOfB, ...restOfB } = b
  return isSameList(clusterOfA, clusterOfB) && isSameList(localOfA, localOfB) && isSame(restOfA, restOfB)
}

function isSameList(a: readonly Backend[], b: readonly Backend[]): boolean {
  if (a.length !== b.length) return false
  for (let index = 0; index < a.length; index++) {
    const left = a[index]
    const right = b[index]
    if (left === right) continue
    if (left?.ip !== right?.ip || left?.port !== right?.port || left?.local !== right?.local) return false
  }
  return true
}

/** FrontendTable.localBackends after some Services changed. */
export function localBackendsAfter(
  table: FrontendTable | undefined,
  changes: ReadonlyMap<ServiceKey, ServiceFrontends | undefined>,
): PersistentMap<number> {
  const deltas = new Map<Ip, number>()
  for (const [key, now] of changes) countPorts(deltas, table?.services.get(key)?.ports, now?.ports)
  const counts = table?.localBackends ?? PersistentMap.empty<number>()
  const updates = new Map<Ip, number | undefined>()
  for (const [ip, delta] of deltas) {
    const now = (counts.get(ip) ?? 0) + delta
    updates.set(ip, now === 0 ? undefined : now)
  }
  return counts.withOwn(updates)
}

const NO_PORTS: readonly PortFrontends[] = []
const NO_BACKENDS: readonly Backend[] = []

function countPorts(deltas: Map<Ip, number>, before = NO_PORTS, now = NO_PORTS): void {
  for (let index = 0; index < Math.max(before.length, now.length); index++) {
    const was = before[index]
    const is = now[index]
    countLists(deltas, was?.cluster, is?.cluster)
    countLists(deltas, was?.local, is?.local)
  }
}

/** Passes over what begins and ends both lists: most back ends of an earlier version are used again. */
function countLists(deltas: Map<Ip, number>, before = NO_BACKENDS, now = NO_BACKENDS): void {
  let from = 0
  while (from < before.length && before[from] === now[from]) from++
  let endBefore = before.length
  let endNow = now.length
  while (endBefore > from && endNow > from && before[endBefore - 1] === now[endNow - 1]) {
    endBefore--
    endNow--
  }
  if (from < endBefore) countList(deltas, before, { from, to: endBefore, by: -1 })
  if (from < endNow) countList(deltas, now, { from, to: endNow, by: 1 })
}

function countList(
  deltas: Map<Ip, number>,
  backends: readonly Backend[],
  { from, to, by }: Readonly<Record<'from' | 'to' | 'by', number>>,
): void {
  for (let index = from; index < to; index++) {
    const backend = backends[index]
    if (backend?.local === true) deltas.set(backend.ip, (deltas.get(backend.ip) ?? 0) + by)
  }
}
