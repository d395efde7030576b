import type { Ruleset } from './state.ts'
import type { TracePacket, TraceSurroundings } from './trace-packet.ts'
import { indexElements } from './trace-sets.ts'
import { type Trace, traceOnce } from './trace-walk.ts'

export interface Tracer {
  trace(packet: TracePacket, surroundings: TraceSurroundings): Trace
  /**
   * Returns every distinguishable outcome with its probability: all rolls of all random numbers, at most `limit` of
   * them.
   */
  ways(packet: TracePacket, surroundings: Omit<TraceSurroundings, 'random'>, limit?: number): readonly Way[]
}

const WAYS_MAX = 100_000

/**
 * Traces packets through rules that exist only as values. It knows the expressions that kprobe writes, hooks and
 * priorities, and that a translated connection passes no further nat chain of the same hook.
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

/** Traces a single packet as createTracer(ruleset).trace does. */
export function trace(ruleset: Ruleset, packet: TracePacket, surroundings: TraceSurroundings): Trace {
  return createTracer(ruleset).trace(packet, surroundings)
}

/** One possible outcome of a connection, with its probability. */
export interface Way {
  readonly trace: Trace
  readonly probability: number
}

interface Roll {
  readonly modulus: number
  readonly value: number
}

/**
 * Runs a trace repeatedly, each time with the next sequence of random numbers, in the order of an odometer. Equal
 * outcomes count as one. Throws after `limit` runs.
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

/** Returns the next rolls in counting order; undefined after the last. */
function successor(rolls: readonly Roll[]): readonly Roll[] | undefined {
  const at = rolls.findLastIndex(({ modulus, value }) => value + 1 < modulus)
  const roll = rolls[at]
  return roll === undefined ? undefined : [...rolls.slice(0, at), { ...roll, value: roll.value + 1 }]
}
