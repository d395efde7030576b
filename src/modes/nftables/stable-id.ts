import type { Octets } from '../../base/octets.ts'
import { STABLE_MAX } from './layout.ts'

/**
 * Numbers of endpoints, below STABLE_MAX, that stay the same as long as the endpoint exists, whatever joins or leaves its
 * list, so that entries of `affinity` stay true: those they had `before`, and for a newcomer FNV-1a over address and
 * port, or the next free number. `endpoints` must be in an order that follows from its members alone. Undefined when
 * there are too many.
 */
export function stableIds(
  endpoints: readonly Octets[],
  before: ReadonlyMap<Octets, number>,
): ReadonlyMap<Octets, number> | undefined {
  if (endpoints.length > STABLE_MAX) return undefined
  const ids = new Map<Octets, number>()
  const taken = new Set<number>()
  for (const endpoint of endpoints) {
    const id = before.get(endpoint)
    if (id === undefined || taken.has(id)) continue
    taken.add(id)
    ids.set(endpoint, id)
  }
  for (const endpoint of endpoints) {
    if (ids.has(endpoint)) continue
    let id = hash(endpoint) % STABLE_MAX
    while (taken.has(id)) id = (id + 1) % STABLE_MAX
    taken.add(id)
    ids.set(endpoint, id)
  }
  return ids
}

function hash(octets: Octets): number {
  let value = 0x811c9dc5
  for (let i = 0; i < octets.length; i++) value = Math.imul(value ^ octets.charCodeAt(i), 0x01000193)
  return value >>> 0
}
