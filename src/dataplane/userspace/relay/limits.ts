import { DEFAULT_LIMITS, type RelayLimits } from './context.ts'

/** What a process may take of its machine; undefined where nobody says. */
export interface ProcessRoom {
  /** Descriptors that it may have open. */
  readonly descriptors: number | undefined
  /** Memory of its control group. */
  readonly memoryBytes: number | undefined
}

/** Four buffers of 64 KiB, for a connection neither end of which reads. */
const CONNECTION_BYTES = 256 * 1024
/** Whatever is asked for, so many are relayed. */
const LEAST = 64

/**
 * Limits that leave half of the descriptors, and half of the memory, to all else: listeners, the API server's connection,
 * the kernel's sockets, and what is known of Services. A connection takes two descriptors, a UDP client one.
 */
export function limitsWithin({ descriptors = Infinity, memoryBytes = Infinity }: ProcessRoom): RelayLimits {
  const flows = descriptors / 2 / 3
  const within = (limit: number, room: number) => Math.max(LEAST, Math.min(limit, Math.floor(room)))
  const { connections, sessions } = DEFAULT_LIMITS
  return {
    ...DEFAULT_LIMITS,
    connections: within(connections, Math.min(flows, memoryBytes / 2 / CONNECTION_BYTES)),
    sessions: within(sessions, flows),
  }
}
