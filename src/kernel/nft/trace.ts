import type { Ruleset } from './state.ts'
import type { TracePacket, TraceSurroundings } from './trace-packet.ts'
import { indexElements } from './trace-sets.ts'
import { type Trace, traceOnce } from './trace-walk.ts'

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

/** One of the ways that a connection can go, with its share of all connections. */
export interface Way {
  readonly trace: Trace
  readonly probability: number
}

interface Roll {
  readonly modulus: number
  readonly value: number
}

/**
 * Runs a trace again and again, each time with the next sequence of random numbers, as an odometer counts. Ways that end alike
 * count as one. Throws after `limit` runs.
 */
export function allWays(run: (random: (modulus: number) => number) => Trace, limit: number): readonly Way[] {
  const ways = new Map<string, { trace: Trace; probability: number }>()
  let next: readonly Roll[] | undefined = []
  for (let count = 0; next !== undefined; count++) {
    if (count >= limit) throw new Error(`more than ${limit} sequences of random numbers`)
    const prefix: readonly Roll[] = next
    const rolls: Roll[] = []
    const trace = run(modulus => {
      const value = prefix[rolls.length]?.value ?? 0
      rolls.push({ modulus, value })
      return value
    })
    const { verdict, destination, masquerade } = trace
    const key = JSON.stringify([verdict, destination, masquerade])
    const probability = rolls.reduce((product, { modulus }) => product / modulus, 1)
    const known = ways.get(key)
    if (known === undefined) ways.set(key, { trace, probability })
    else known.probability += probability
    next = successor(rolls)
  }
  return [...ways.values()]
}

/** The rolls after these in counting order; undefined after the last. */
function successor(rolls: readonly Roll[]): readonly Roll[] | undefined {
  const at = rolls.findLastIndex(({ modulus, value }) => value + 1 < modulus)
  const roll = rolls[at]
  return roll === undefined ? undefined : [...rolls.slice(0, at), { ...roll, value: roll.value + 1 }]
}
