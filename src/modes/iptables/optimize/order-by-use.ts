import type { Octets } from '../../../base/octets.ts'

/** A rule of a chain as it was read, in the order of the chain. */
export interface CountedEntry {
  readonly compiled: Octets
  readonly handle: bigint
  /** Connections that it caught since it was written. */
  readonly packets: bigint
}

/** What is remembered of a chain between two looks. */
export interface ChainUse {
  readonly atMs: number
  /** By the bytes of the rule: it has another handle once it was moved. */
  readonly entries: ReadonlyMap<Octets, EntryUse>
}

interface EntryUse {
  readonly handle: bigint
  readonly packets: bigint
  /** Connections a second, smoothed; undefined until the rule was looked at twice. */
  readonly rate: number | undefined
}

/** Rates lose half of their weight in this time. */
const HALF_LIFE_MS = 300_000
/** So much more must be saved for those that move than is lost for those that they pass. */
const FACTOR = 2
/** Rules a second that are no longer met. Less is not worth a commit. */
const SAVED_MIN = 5_000

/** Rates after one more look. A counter that went back, or a new handle, is one that began anew. */
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
 * Which parts of a chain should move to its head, the one that should stand first last. Parts are given in the order of the
 * chain, and so is what the indexes mean. Few at a time, and only where it saves clearly more than it costs: of two that
 * are used about alike neither passes the other, and a chain in the order of its use stays as it is.
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

interface Part {
  readonly size: number
  readonly rate: number
  readonly index: number
}

function bestMove(order: readonly Part[]): Part | undefined {
  let best: Part | undefined
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
