import type { ProcessRoom } from '../../mode.ts'
import { DEFAULT_LIMITS, type RelayLimits } from './context.ts'

/** Four buffers of 64 KiB, for a connection neither end of which reads. */
const CONNECTION_BYTES = 256 * 1024
/** The least that memory alone limits connections to. */
const LEAST = 64

/**
 * Limits within the descriptors that are the relay's, and that leave half of the memory to all else. A listener takes one descriptor,
 * a connection two, a UDP client one; they are divided as the default limits are.
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
