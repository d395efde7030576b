import { type Cidr, mergeCidrs } from '../base/cidr.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { Steps } from '../base/steps.ts'
import { type Claims, updateClaims } from './claims.ts'
import type { Arena } from './contest.ts'
import { isSame } from './equal.ts'
import type { FrontendTable, ServiceFrontends } from './frontend.ts'
import { type Here, hereOf, type ResolveOptions } from './here.ts'
import { localBackendsAfter } from './local-backends.ts'
import { nodePortAddresses } from './node-ports.ts'
import { resolveService } from './resolve-service.ts'
import type { ServiceKey } from './service.ts'
import type { Snapshot } from './snapshot.ts'

export interface Resolved {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
}

/**
 * What this node's kernel should do about a snapshot. `previous` lends its results: Services whose objects, whose
 * rivals and whose point of view did not change keep their very objects, so that the cost follows the change. The
 * result is the same as without it.
 */
export function* resolve(
  options: ResolveOptions,
  previous: Resolved | undefined,
  snapshot: Snapshot,
): Steps<FrontendTable> {
  const here = hereOf(options, snapshot.node)
  const known = previous?.table.claims?.fingerprint === here.fingerprint ? previous : undefined
  const changed = known === undefined ? allKeys(previous, snapshot) : changedKeys(known.snapshot, snapshot)
  const { claims, affected } = yield* updateClaims({
    here,
    claims: known?.table.claims,
    before: known?.snapshot.services ?? snapshot.services,
    after: snapshot.services,
    changed,
  })
  for (const key of affected) changed.add(key)
  const before = previous?.table.services ?? PersistentMap.empty<ServiceFrontends>()
  const changes = yield* resolveAll({ here, claims, snapshot, before }, changed)
  return {
    number: snapshot.number,
    services: before.with(changes),
    localBackends: localBackendsAfter(previous?.table, changes),
    ...surroundings(here, previous, snapshot),
    claims,
  }
}

interface Pass {
  readonly here: Here
  readonly claims: Claims
  readonly snapshot: Snapshot
  readonly before: PersistentMap<ServiceFrontends>
}

export type Changes = ReadonlyMap<ServiceKey, ServiceFrontends | undefined>

/** Services between two offers to pause: some milliseconds of work at ten endpoints each. */
const YIELD_EVERY = 200

function* resolveAll(pass: Pass, keys: Iterable<ServiceKey>): Steps<Changes> {
  const { services, slices } = pass.snapshot
  const arena: Arena = { here: pass.here, services, claims: pass.claims }
  const changes = new Map<ServiceKey, ServiceFrontends | undefined>()
  let count = 0
  for (const key of keys) {
    const service = services.get(key)
    const now = service === undefined ? undefined : resolveService(arena, service, slices.get(key))
    // An object that says the same is not a change: planes compare by identity.
    if (!isSame(pass.before.get(key), now)) changes.set(key, now)
    if (++count % YIELD_EVERY === 0) yield
  }
  return changes
}

function allKeys(previous: Resolved | undefined, snapshot: Snapshot): Set<ServiceKey> {
  const keys = new Set(snapshot.services.keys())
  if (previous !== undefined) for (const key of previous.table.services.keys()) keys.add(key)
  return keys
}

function changedKeys(from: Snapshot, to: Snapshot): Set<ServiceKey> {
  const keys = new Set(PersistentMap.changes(from.services, to.services))
  for (const key of PersistentMap.changes(from.slices, to.slices)) keys.add(key)
  return keys
}

type Surroundings = Pick<FrontendTable, 'nodePorts' | 'serviceCidrs' | 'node'>

/** What belongs to no Service; equal values keep their objects. */
function surroundings(here: Here, previous: Resolved | undefined, snapshot: Snapshot): Surroundings {
  const now: Surroundings = {
    nodePorts: nodePortAddresses(here, snapshot.localIps),
    serviceCidrs: serviceCidrsOf(snapshot),
    node: { ips: here.node?.ips ?? [], podCidrs: here.node?.podCidrs ?? [] },
  }
  if (previous === undefined) return now
  const { table } = previous
  return {
    nodePorts: isSame(table.nodePorts, now.nodePorts) ? table.nodePorts : now.nodePorts,
    serviceCidrs: isSame(table.serviceCidrs, now.serviceCidrs) ? table.serviceCidrs : now.serviceCidrs,
    node: isSame(table.node, now.node) ? table.node : now.node,
  }
}

function serviceCidrsOf(snapshot: Snapshot): readonly Cidr[] {
  return mergeCidrs([...snapshot.serviceCidrs.values()].flat())
}
