import type { Ip } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { FrontendTable, ServiceFrontends } from './frontend.ts'
import type { ServiceKey } from './service.ts'

/** FrontendTable.localBackends after some Services changed. */
export function localBackendsAfter(
  table: FrontendTable | undefined,
  changes: ReadonlyMap<ServiceKey, ServiceFrontends | undefined>,
): PersistentMap<number> {
  const deltas = new Map<Ip, number>()
  for (const [key, now] of changes) {
    const before = table?.services.get(key)
    if (before !== undefined) count(deltas, before, -1)
    if (now !== undefined) count(deltas, now, 1)
  }
  const counts = table?.localBackends ?? PersistentMap.empty<number>()
  return counts.with(updates(counts, deltas))
}

function count(deltas: Map<Ip, number>, service: ServiceFrontends, by: number): void {
  for (const port of service.ports) {
    for (const list of [port.cluster, port.local]) {
      for (const { ip, local } of list) if (local) deltas.set(ip, (deltas.get(ip) ?? 0) + by)
    }
  }
}

function* updates(
  counts: PersistentMap<number>,
  deltas: ReadonlyMap<Ip, number>,
): Iterable<[Ip, number | undefined]> {
  for (const [ip, delta] of deltas) {
    const now = (counts.get(ip) ?? 0) + delta
    yield [ip, now === 0 ? undefined : now]
  }
}
