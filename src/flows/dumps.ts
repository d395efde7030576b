import type { FlowFilter } from '../kernel/conntrack/messages.ts'
import type { RuleBook } from './stale.ts'

/**
 * Walks of the kernel's whole table that one dump of everything and its decoding here are worth: 10 ms per 100,000
 * entries for a walk that gives little, 100 ms for one that gives all.
 */
export const WALKS_MAX = 9

/** The dumps that together list every flow the book is about, and as few others as that allows. */
export function dumpsFor({ family, protocol, addresses, nodePorts }: RuleBook): readonly FlowFilter[] {
  if (addresses.size + nodePorts.length > WALKS_MAX) return [{ family, protocol }]
  const filters: FlowFilter[] = []
  for (const [destination, ports] of addresses) {
    const [first, ...others] = ports
    const isOnly = first !== undefined && others.length === 0
    filters.push({ family, protocol, destination, ...(isOnly ? { destinationPort: first } : {}) })
  }
  for (const destinationPort of nodePorts) filters.push({ family, protocol, destinationPort })
  return filters
}
