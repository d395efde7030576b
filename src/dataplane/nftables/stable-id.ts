import type { Octets } from '../../base/octets.ts'
import { STABLE_ID } from './layout.ts'

/**
 * Ids of endpoints that stay the same as long as the endpoint exists, whatever joins or leaves its list, so that
 * entries of `affinity` stay true: FNV-1a over address and port, with the top bit set; on a collision within the port
 * the next free id. `endpoints` must be in an order that follows from its members alone.
 */
export function stableIds(endpoints: Iterable<Octets>): ReadonlyMap<Octets, number> {
  const ids = new Map<Octets, number>()
  const taken = new Set<number>()
  for (const endpoint of endpoints) {
    if (ids.has(endpoint)) continue
    let id = hash(endpoint)
    while (taken.has(id)) id = ((id + 1) | STABLE_ID) >>> 0
    taken.add(id)
    ids.set(endpoint, id)
  }
  return ids
}

function hash(octets: Octets): number {
  let value = 0x811c9dc5
  for (let i = 0; i < octets.length; i++) value = Math.imul(value ^ octets.charCodeAt(i), 0x01000193)
  return (value | STABLE_ID) >>> 0
}
