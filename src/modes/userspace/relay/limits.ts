import { namespaceOf } from '../../../model/memory-shares.ts'
import type { ServiceKey } from '../../../model/service.ts'
import type { ProcessRoom } from '../../mode.ts'

export interface RelayLimits {
  /** Listening sockets of all Services. */
  readonly listeners: number
  /** Concurrent TCP connections of all Services; each takes two sockets. */
  readonly connections: number
  /** Concurrent UDP clients of all Services; each takes a socket. */
  readonly sessions: number
  /** Clients that one Service port with affinity remembers. */
  readonly affinityClients: number
  /** The timeout of each attempt to reach an endpoint for one connection, milliseconds. */
  readonly connectTimeoutsMs: readonly number[]
  /** How long a UDP client is remembered after its last datagram in either direction, milliseconds. */
  readonly udpIdleMs: number
  /** Datagrams of one client that wait for its socket; further ones are lost. */
  readonly datagramsWaiting: number
  /** Bytes that wait to be sent on one UDP socket; further datagrams are lost. */
  readonly datagramBytesQueued: number
}

export const DEFAULT_LIMITS: RelayLimits = {
  listeners: 8_192,
  connections: 4_096,
  sessions: 4_096,
  affinityClients: 10_000,
  connectTimeoutsMs: [250, 500, 1_000, 2_000],
  udpIdleMs: 30_000,
  datagramsWaiting: 16,
  datagramBytesQueued: 256 * 1024,
}

/** Four buffers of 64 KiB, for a connection whose two ends both do not read. */
const CONNECTION_BYTES = 256 * 1024
/** The minimum of the connection limit that memory alone sets. */
const LEAST = 64

/**
 * Computes limits within the relay's descriptors and half of the memory. A listener takes one descriptor, a
 * connection two, a UDP client one. They are divided in the proportions of the default limits.
 */
export function limitsWithin({ descriptors = Infinity, memoryBytes = Infinity }: ProcessRoom): RelayLimits {
  const { listeners, connections, sessions } = DEFAULT_LIMITS
  const part = descriptors / (listeners + 2 * connections + sessions)
  const within = (limit: number, room: number) => Math.min(limit, Math.floor(room))
  const inMemory = Math.max(LEAST, memoryBytes / 2 / CONNECTION_BYTES)
  return {
    ...DEFAULT_LIMITS,
    listeners: within(listeners, part * listeners),
    connections: within(connections, Math.min(part * connections, inMemory)),
    sessions: within(sessions, part * sessions),
  }
}

/**
 * Picks the Services that give way so that the listeners of the others fit into `limit`; a Service gives way
 * as a whole. `wanted` is the number of listeners of each Service; of equal Services the first one has
 * priority. Namespaces have equal shares, and the Services of a namespace are ordered by size. The unused
 * share of a namespace goes to the others.
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
