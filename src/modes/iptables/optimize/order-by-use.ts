import type { Octets } from '../../../base/octets.ts'

/** A rule of a chain as it was read. Entries are in the order of the chain. */
export interface CountedEntry {
  readonly compiled: Octets
  readonly handle: bigint
  /** The connections that it matched since it was written. */
  readonly packets: bigint
}

/** The counters of a chain from the previous read. */
export interface ChainUse {
  readonly atMs: number
  /** Entries by the bytes of the rule, because a moved rule has a new handle. */
  readonly entries: ReadonlyMap<Octets, EntryUse>
}

interface EntryUse {
  readonly handle: bigint
  readonly packets: bigint
  /** Connections a second, smoothed; undefined until the rule was read twice. */
  readonly rate: number | undefined
}

const HALF_LIFE_MS = 300_000
/** The factor by which the saving of the rules that move must exceed the loss of the rules that they pass. */
const FACTOR = 2
/** The minimum saving, in rules a second that packets no longer pass. Less is not worth a commit. */
const SAVED_MIN = 5_000

/**
 * Updates the rates from one more read. A smaller counter, or a new handle, means that the counter started from 0.
 */
export function noteUse(
  before: ChainUse | undefined,
  counted: readonly CountedEntry[],
  nowMs: number,
): ChainUse {
  const entries = new Map<Octets, EntryUse>()
  const elapsedMs = before === undefined ? 0 : nowMs - before.atMs
  for (const { compiled, handle, packets } of counted) {
    const known = before?.entries.get(compiled)
    if (known === undefined || elapsedMs <= 0) {
      entries.set(compiled, { handle, packets, rate: known?.rate })
      continue
    }
    const isSame = known.handle === handle && packets >= known.packets
    const caught = Number(isSame ? packets - known.packets : packets)
    const recent = (caught * 1_000) / elapsedMs
    const weight = 0.5 ** (elapsedMs / HALF_LIFE_MS)
    const rate = known.rate === undefined ? recent : known.rate * weight + recent * (1 - weight)
    entries.set(compiled, { handle, packets, rate })
  }
  return { atMs: nowMs, entries }
}

/**
 * Returns the parts of a chain that should move to its head; the part that should come first is last. Parts are given
 * in the order of the chain, and the indexes refer to that order. Few parts move at a time, and only where the saving
 * clearly exceeds the cost. Of two parts with about equal use neither passes the other, and a chain in the order of
 * its use stays unchanged.
 */
export function orderByUse(
  parts: readonly { readonly size: number; readonly rate: number }[],
  movesMax: number,
): readonly number[] {
  let order = parts.map((part, index) => ({ ...part, index }))
  const moves: number[] = []
  while (moves.length < movesMax) {
    const best = bestMove(order)
    if (best === undefined) break
    moves.push(best.index)
    order = [best, ...order.filter(part => part !== best)]
  }
  return moves
}

interface RankedPart {
  readonly size: number
  readonly rate: number
  readonly index: number
}

function bestMove(order: readonly RankedPart[]): RankedPart | undefined {
  let best: RankedPart | undefined
  let most = SAVED_MIN
  let rulesBefore = 0
  let rateBefore = 0
  for (const part of order) {
    const gained = part.rate * rulesBefore
    const lost = rateBefore * part.size
    if (gained >= FACTOR * lost && gained - lost >= most) {
      best = part
      most = gained - lost
    }
    rulesBefore += part.size
    rateBefore += part.rate
  }
  return best
}
