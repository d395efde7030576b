import type { FlowFilter } from '../kernel/conntrack/messages.ts'
import type { RuleBook } from './stale.ts'

/**
 * Walks of the kernel's whole table that one dump of everything and its decoding here are worth: 10 ms per 100,000
 * entries for a walk that gives little, 100 ms for one that gives all.
 */
export const WALKS_MAX = 9

/** The dumps that together list every flow the book is about, and as few others as that allows. */
export function dumpsFor(book: RuleBook): readonly FlowFilter[] {
  const { family, protocol } = book
  const filters = family === 'IPv4' ? byAddress(book) : byPort(book)
  return filters.length > WALKS_MAX ? [{ family, protocol }] : filters
}

function byAddress({ family, protocol, addresses, nodePorts }: RuleBook): FlowFilter[] {
  const filters: FlowFilter[] = nodePorts.map(destinationPort => ({ family, protocol, destinationPort }))
  for (const [destination, ports] of addresses) {
    const [first, ...others] = ports
    const isOnly = first !== undefined && others.length === 0
    filters.push({ family, protocol, destination, ...(isOnly ? { destinationPort: first } : {}) })
  }
  return filters
}

/** The kernel cannot dump the flows of one IPv6 address (see encodeDump). */
function byPort({ family, protocol, addresses, nodePorts }: RuleBook): FlowFilter[] {
  const ports = new Set([...nodePorts, ...[...addresses.values()].flat()])
  return [...ports].map(destinationPort => ({ family, protocol, destinationPort }))
}
