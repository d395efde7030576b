import { namespaceOf } from '../../../model/memory-shares.ts'
import type { ServiceKey } from '../../../model/service.ts'

/**
 * Picks the Services that give way so that the listeners of the others fit into `limit`; each goes as a whole. `wanted` is how
 * many each Service asks for; of equal Services the first comes first. Namespaces have equal shares, the Services of a
 * namespace come by size, and what one namespace does not need is for the others.
 */
export function beyondShares(wanted: ReadonlyMap<ServiceKey, number>, limit: number): readonly ServiceKey[] {
  const total = [...wanted.values()].reduce((sum, listeners) => sum + listeners, 0)
  if (total <= limit) return []
  const held = new Map<string, number>()
  const bySize = [...wanted].toSorted(([, a], [, b]) => a - b)
  const ranked = bySize.map(([service, listeners]) => {
    const namespace = namespaceOf(service)
    const rank = (held.get(namespace) ?? 0) + listeners
    held.set(namespace, rank)
    return { service, listeners, rank }
  })
  const beyond: ServiceKey[] = []
  let free = limit
  for (const { service, listeners } of ranked.toSorted((a, b) => a.rank - b.rank)) {
    if (listeners > free) beyond.push(service)
    else free -= listeners
  }
  return beyond
}
