import type { Ip } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { Backend, FrontendTable, ServiceFrontends } from './frontend.ts'
import type { ServiceKey } from './service.ts'

/** FrontendTable.localBackends after some Services changed. */
export function localBackendsAfter(
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
