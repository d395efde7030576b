import { PersistentMap } from '../../base/collections.ts'
import { FAMILIES, type Family, familyOf } from '../../base/ip.ts'
import { isMissingFamily } from '../../kernel/missing-family.ts'
import type { ServiceFrontends } from '../../model/frontend.ts'
import type { KernelRefusal } from '../../reconcile/dataplane.ts'
import { keptFrom } from '../common/tables.ts'
import { familyOfSet } from './layout.ts'
import type { IpvsState } from './state.ts'
import { countEntries } from './upkeep.ts'

/*
 * A family that the kernel cannot program: nothing of it is wanted, and what the kernel holds of it stays. See
 * RenderOptions.without.
 */

/** Tests whether two states leave out the same families. */
export function leavesSameFamilies(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return FAMILIES.every(family => a.has(family) === b.has(family))
}

/** Removes the ports and addresses of families that are left out from a Service. */
export function servedPart(
  service: ServiceFrontends | undefined,
  without: ReadonlySet<string>,
): ServiceFrontends | undefined {
  if (service === undefined || leavesSameFamilies(without, NONE)) return service
  const ports = service.ports.filter(({ family }) => !without.has(family))
  const clusterIps = service.clusterIps.filter(ip => !without.has(familyOf(ip)))
  return { ...service, ports, clusterIps }
}

const NONE: ReadonlySet<string> = new Set()

/** Gives the wanted state with the objects of `from` in the families that are left out. */
export function keepFamilies(from: IpvsState, to: IpvsState): IpvsState {
  const { without, rendering } = to
  if (leavesSameFamilies(without, NONE)) return to
  const isKept = (set: string): boolean => without.has(familyOfSet(set))
  const merged = <T>(before: Iterable<[string, T]>, after: Iterable<[string, T]>) =>
    new Map([...[...after].filter(([set]) => !isKept(set)), ...[...before].filter(([set]) => isKept(set))])
  return {
    ...to,
    servers: kept(from.servers, to.servers, ({ server }) => without.has(familyOf(server.ip))),
    sets: merged(from.sets, to.sets),
    entries: kept(from.entries, to.entries, ({ set }) => isKept(set)),
    addresses: kept(from.addresses, to.addresses, ({ ip }) => without.has(familyOf(ip))),
    ruleset: keptFrom(from.ruleset, to.ruleset, without),
    ...(rendering && { rendering: { ...rendering, entries: merged(countEntries(from), rendering.entries) } }),
  }
}

function kept<T>(from: PersistentMap<T>, to: PersistentMap<T>, isKept: (object: T) => boolean) {
  const changes = new Map<string, T | undefined>()
  for (const [key, before, after] of PersistentMap.differences(from, to)) {
    const object = before ?? after
    if (object !== undefined && isKept(object)) changes.set(key, before)
  }
  return to.withOwn(changes)
}

export interface Failure {
  readonly code: string
  readonly error: Error
}

/** Makes a refusal of a family for an error that means that the kernel lacks it, whatever Service the object serves. */
export function familyRefusal({ code, error }: Failure, family: Family): KernelRefusal | undefined {
  return isMissingFamily('ipvs', code) ? { services: [], error, family } : undefined
}
