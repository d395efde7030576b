import type { Ruleset } from './state.ts'
import type { TracePacket, TraceSurroundings } from './trace-packet.ts'
import { indexElements } from './trace-sets.ts'
import { type Trace, traceOnce } from './trace-walk.ts'
import { allWays, type Way } from './trace-ways.ts'

export interface Tracer {
  trace(packet: TracePacket, surroundings: TraceSurroundings): Trace
  /** Every distinguishable end with its probability: all rolls of all random numbers, up to `limit` of them. */
  ways(packet: TracePacket, surroundings: Omit<TraceSurroundings, 'random'>, limit?: number): readonly Way[]
}

const WAYS_MAX = 100_000

/**
 * Follows packets through rules that exist as values only. It knows the expressions that this project writes, hooks and
 * priorities, and that a translated connection meets no further nat chain of the same hook.
 */
export function createTracer(ruleset: Ruleset): Tracer {
  const tables = ruleset.tables.map(table => ({ table, index: indexElements(table) }))
  const trace: Tracer['trace'] = (packet, surroundings) => traceOnce(tables, packet, surroundings)
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays(random => trace(packet, { ...surroundings, random }), limit),
  }
}

/** As createTracer(ruleset).trace, for a single packet. */
export function trace(ruleset: Ruleset, packet: TracePacket, surroundings: TraceSurroundings): Trace {
  return createTracer(ruleset).trace(packet, surroundings)
}
