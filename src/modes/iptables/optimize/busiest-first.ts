import { type Clock, Pacer } from '../../../base/clock.ts'
import { errorOf } from '../../../base/errors.ts'
import type { Octets } from '../../../base/octets.ts'
import type { NftClient } from '../../../kernel/nft/client.ts'
import type { CompiledRule } from '../../../kernel/nft/state.ts'
import type { Operation } from '../../../kernel/nft/transaction.ts'
import { readRule } from '../../../kernel/xt/read.ts'
import type { XtRule } from '../../../kernel/xt/rule.ts'
import type { ChainNames } from '../../xt-common/layout.ts'
import { destinationPorts, type EntryChain, entryChains, isSingle } from './dispatch.ts'

interface BusiestFirstOptions {
  /** The client of the plane, so that commits count as our own. */
  readonly client: Pick<NftClient, 'generation' | 'ruleCounters' | 'commit'>
  readonly clock: Clock
  readonly names: ChainNames
  readonly report: (event: BusiestFirstEvent) => void
}

export type BusiestFirstEvent =
  /** The entries of this many Services moved to the heads of their chains; the kernel has this generation. */
  | { readonly kind: 'moved'; readonly moves: number; readonly generation: number }
  /** Another program committed in between; the next round reads again. */
  | { readonly kind: 'overtaken' }
  /** Counters could not be read, or the kernel rejected the batch; retried after the next period. */
  | { readonly kind: 'failed'; readonly error: Error }

const PERIOD_MS = 10_000
/** The number of chains per period, of about 800: all of them take four minutes. */
const CHAINS_PER_PERIOD = 32
/** The maximum number of moves. Each commit briefly blocks all programs that write to nf_tables. */
const MOVES_PER_PERIOD = 4

/**
 * Keeps the entries with the most connections at the heads of their chains, by the counters that every rule has.
 * Entries of one chain match different packets, so their order affects only speed. All moves of a period are one
 * batch that names the generation at which the counters were read. If another program committed in between, the batch
 * has no effect.
 */
export class BusiestFirst {
  readonly #options: BusiestFirstOptions
  readonly #chains: readonly EntryChain[]
  readonly #uses = new Map<EntryChain, ChainUse>()
  readonly #pacer: Pacer
  #next = 0

  constructor(options: BusiestFirstOptions) {
    this.#options = options
    this.#chains = entryChains(options.names)
    this.#pacer = new Pacer({
      clock: options.clock,
      run: async () => {
        await this.#look()
        return PERIOD_MS
      },
    })
  }

  start(): void {
    this.#pacer.wake(PERIOD_MS)
  }

  /** Resolves when work in flight has ended. */
  close(): Promise<void> {
    return this.#pacer.stop()
  }

  async #look(): Promise<void> {
    const { client, report } = this.#options
    try {
      const generation = client.generation()
      const operations: Operation[] = []
      let moves = 0
      for (const chain of this.#turn()) {
        const moved = await this.#movesIn(chain, MOVES_PER_PERIOD - moves)
        if (this.#pacer.isStopped) return
        moves += moved.count
        operations.push(...moved.operations)
      }
      if (moves === 0) return
      const result = await client.commit(operations, { generation })
      if (result.outcome === 'committed') report({ kind: 'moved', moves, generation: result.generation })
      else if (result.outcome === 'stale') report({ kind: 'overtaken' })
      else throw result.failures[0]?.error ?? new Error(`order entries by use: ${result.outcome}`)
    } catch (thrown) {
      report({ kind: 'failed', error: errorOf(thrown) })
    }
  }

  #turn(): readonly EntryChain[] {
    const from = this.#next
    this.#next = from + CHAINS_PER_PERIOD < this.#chains.length ? from + CHAINS_PER_PERIOD : 0
    return this.#chains.slice(from, from + CHAINS_PER_PERIOD)
  }

  async #movesIn(chain: EntryChain, movesMax: number): Promise<Moves> {
    const counted = await this.#options.client.ruleCounters(chain)
    if (counted.length < 2) {
      this.#uses.delete(chain)
      return NO_MOVES
    }
    const use = noteUse(this.#uses.get(chain), counted, this.#options.clock.nowMs())
    this.#uses.set(chain, use)
    const rates = counted.map(({ compiled }) => use.entries.get(compiled)?.rate ?? 0)
    // Reading rules takes longer than counting them, and most chains are in the right order.
    const singles = rates.map(rate => ({ size: 1, rate }))
    if (movesMax <= 0 || orderByUse(singles, 1).length === 0) return NO_MOVES
    return movesOf(chain, partsOf(chain, counted, rates), movesMax)
  }
}

interface Moves {
  readonly count: number
  readonly operations: readonly Operation[]
}

const NO_MOVES: Moves = { count: 0, operations: [] }

/** A rule of a chain as it was read. Entries are in the order of the chain. */
export interface CountedEntry {
  readonly compiled: Octets
  readonly handle: bigint
  /** The connections that it matched since it was written. */
  readonly packets: bigint
}

/** The counters of a chain from the previous read. */
interface ChainUse {
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

/** Updates the rates from one more read. A smaller counter, or a new handle, means that the counter started from 0. */
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

/** Rules that may match the same packet. They move together and keep their order. */
interface Part {
  readonly rules: { readonly counted: CountedEntry; readonly rule: XtRule }[]
  rate: number
}

function partsOf(
  { family }: EntryChain,
  counted: readonly CountedEntry[],
  rates: readonly number[],
): readonly Part[] {
  const parts = new Map<string, Part>()
  for (const [index, entry] of counted.entries()) {
    const rule = readRule(entry.compiled, family)
    const { protocol, destination, matches } = rule
    const address = destination !== undefined && isSingle(destination) ? destination.ip : undefined
    const key = JSON.stringify([protocol, address, matches.flatMap(destinationPorts)])
    const part = parts.get(key) ?? { rules: [], rate: 0 }
    part.rules.push({ counted: entry, rule })
    part.rate += rates[index] ?? 0
    parts.set(key, part)
  }
  return [...parts.values()]
}

function movesOf(chain: EntryChain, parts: readonly Part[], movesMax: number): Moves {
  const sizes = parts.map(({ rules, rate }) => ({ size: rules.length, rate }))
  const chosen = orderByUse(sizes, movesMax).flatMap(index => parts[index] ?? [])
  return {
    count: chosen.length,
    operations: chosen.flatMap(({ rules }) =>
      rules.toReversed().flatMap(({ counted, rule }): readonly Operation[] => [
        { verb: 'insert-rule', ...chain, rule: compiledOf(counted, rule) },
        { verb: 'delete-rule', ...chain, handle: counted.handle },
      ]),
    ),
  }
}

/**
 * Adds the `-p` of the rule to the compiled expressions. The kernel does not report the protocol that the rule was
 * written with; its expressions contain it.
 */
function compiledOf({ compiled }: CountedEntry, { protocol }: XtRule): CompiledRule {
  return {
    compiled,
    protocol: protocol?.number ?? 0,
    protocolInverted: protocol?.inverted ?? false,
  }
}
