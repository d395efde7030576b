import { systemClock } from '../base/clock.ts'
import { count, oneLine } from '../base/text.ts'
import { openNetfilter } from '../daemon/open.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { watchPacketTrace } from '../kernel/nft/packet-trace.ts'
import { NFT_FAMILIES } from '../modes/common/tables.ts'
import { CHAIN_START, type TraceMatch, traceTableName, traceTables } from '../modes/common/trace-table.ts'
import type { Io } from './io.ts'
import { writeWarnings } from './output.ts'
import { isRefused, type PacketStory, storyLines, storyOf } from './packet-story.ts'
import type { RuleNames } from './rule-names.ts'
import type { TraceRequest } from './trace-request.ts'
import { PacketCollector, type TracedPacket } from './traced-packet.ts'

/** The tables that start the trace, while they are open. */
export class TraceTables {
  readonly name: string
  readonly #client: NftClient
  readonly #isOwned: boolean
  #isClosed = false

  private constructor(
    client: NftClient,
    { name, isOwned }: { readonly name: string; readonly isOwned: boolean },
  ) {
    this.#client = client
    this.name = name
    this.#isOwned = isOwned
  }

  /** Throws when the kernel rejects the tables. */
  static async open(match: TraceMatch): Promise<TraceTables> {
    const transport = openNetfilter()
    const client = createNftClient({ transport, clock: systemClock })
    const name = traceTableName(transport.portId)
    let first: Error | undefined
    // Kernels before 5.12 reject a table with an owner.
    for (const owned of [true, false]) {
      const { outcome, failures } = await client.commit(traceTables(name, match, { owned }))
      if (outcome === 'committed') return new TraceTables(client, { name, isOwned: owned })
      first ??= failures[0]?.error ?? new Error(`cannot start the trace: the kernel's answer: ${outcome}`)
    }
    await client.close()
    throw first
  }

  /** Counts the packets that matched, traced or not; undefined where the tables are gone. */
  async matched(): Promise<bigint | undefined> {
    let packets: bigint | undefined
    for (const family of NFT_FAMILIES) {
      const rules = await this.#client.ruleCounters({ family, table: this.name, chain: CHAIN_START })
      for (const rule of rules) packets = (packets ?? 0n) + rule.packets
    }
    return packets
  }

  /** Removes the tables; the kernel does it with the socket where it can. */
  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    if (!this.#isOwned)
      for (const family of NFT_FAMILIES)
        await this.#client.commit([{ verb: 'delete-table', family, table: this.name }])
    await this.#client.close()
  }
}

/** What is needed to follow packets and to name what they meet. */
interface Following {
  readonly names: RuleNames
  readonly tables: TraceTables
}

/** How often packets of which nothing is heard are looked for. */
const SWEEP_MS = 100
/** The packets that wait to be named and printed, at most; later ones are counted. */
const WAITING_MAX = 2_000

/** Prints packets until the time or their number is reached, or the command is to end. Then reports what is missing. */
export async function followPackets(
  request: TraceRequest,
  io: Io,
  { names, tables }: Following,
): Promise<void> {
  const printer = new StoryPrinter(request, io, names)
  const collector = new PacketCollector({
    clock: systemClock,
    wallMs: () => Date.now(),
    table: tables.name,
    onPacket: packet => printer.take(packet),
  })
  let lost = 0
  const transport = openNetfilter()
  const stop = watchPacketTrace({
    transport,
    onEvent: event => collector.take(event),
    onLost: () => {
      lost++
      collector.lost()
    },
  })
  try {
    await untilOver(request.durationMs, io, () => {
      collector.sweep()
      return printer.isFull
    })
    const matched = await tables.matched()
    await tables.close()
    stop()
    collector.sweep({ now: true })
    await printer.written()
    await writeWarnings(endTexts(request, { ...printer.counts, matched, lost }), io)
  } finally {
    stop()
    await transport.close()
  }
}

async function untilOver(durationMs: number, io: Io, isOver: () => boolean): Promise<void> {
  const endMs = systemClock.nowMs() + durationMs
  while (!isOver() && !io.signal.aborted && !io.outLost.aborted) {
    const leftMs = endMs - systemClock.nowMs()
    if (leftMs <= 0) return
    await new Promise<void>(resolve => {
      const wake = () => {
        cancel()
        io.signal.removeEventListener('abort', wake)
        resolve()
      }
      const cancel = systemClock.after(Math.min(SWEEP_MS, leftMs), wake)
      io.signal.addEventListener('abort', wake, { once: true })
    })
  }
}

interface Counts {
  readonly traced: number
  readonly printed: number
  readonly dropped: number
}

/** Names packets one after the other, and prints them in their order. */
class StoryPrinter {
  readonly #request: TraceRequest
  readonly #io: Io
  readonly #names: RuleNames
  readonly #waiting: TracedPacket[] = []
  #work: Promise<void> | undefined
  #traced = 0
  #printed = 0
  #dropped = 0

  constructor(request: TraceRequest, io: Io, names: RuleNames) {
    this.#request = request
    this.#io = io
    this.#names = names
  }

  get counts(): Counts {
    return { traced: this.#traced, printed: this.#printed, dropped: this.#dropped }
  }

  get isFull(): boolean {
    return this.#printed >= this.#request.packets
  }

  take(packet: TracedPacket): void {
    this.#traced++
    if (this.#waiting.length >= WAITING_MAX) {
      this.#dropped++
      return
    }
    this.#waiting.push(packet)
    this.#work ??= this.#print().finally(() => {
      this.#work = undefined
    })
    // written() reports the error.
    this.#work.catch(() => undefined)
  }

  /** Resolves when all packets are printed. Throws what naming them throws. */
  async written(): Promise<void> {
    await this.#work
    await this.#print()
  }

  async #print(): Promise<void> {
    for (let packet = this.#waiting.shift(); packet !== undefined; packet = this.#waiting.shift()) {
      if (this.isFull) continue
      const story = await this.#storyOf(packet)
      if (this.#request.rejectOnly && !isRefused(story.outcome)) continue
      this.#printed++
      this.#io.out(storyText(story, this.#request.output))
      await this.#io.outWritten()
    }
  }

  async #storyOf(packet: TracedPacket): Promise<PacketStory> {
    const names = this.#names
    const steps = await names.steps(packet)
    const { first } = packet
    return storyOf(packet, {
      steps,
      row: names.rowAt(first),
      tracked: names.tracked(first),
      interfaceName: names.interfaceName,
    })
  }
}

function storyText(story: PacketStory, output: TraceRequest['output']): string {
  if (output === 'json') return `${JSON.stringify(story)}\n`
  return `${storyLines(story)
    .map(line => `${oneLine(line)}\n`)
    .join('')}\n`
}

interface Ending extends Counts {
  readonly matched: bigint | undefined
  readonly lost: number
}

/** Names what the output does not show. */
function endTexts(
  { perSecond, rejectOnly, packets }: TraceRequest,
  { traced, printed, dropped, matched, lost }: Ending,
): readonly string[] {
  if (matched === undefined)
    return ['kprobe trace: the rules that start the trace were removed meanwhile; run the command again']
  if (matched === 0n)
    return ['no packet matched; packets of established connections do not match without --all-packets']
  const summary = `traced ${count(traced, 'packet')} of ${matched} that matched, printed ${printed}`
  const untraced = matched - BigInt(traced)
  return [
    printed >= packets ? `${summary}; --count ${packets} is reached` : summary,
    ...(untraced > 0n && printed < packets
      ? [`the rate limit left out the others: --rate ${perSecond} a second in each address family`]
      : []),
    ...(rejectOnly && printed === 0 ? ['none of them was rejected, dropped or lost'] : []),
    ...(lost > 0
      ? [`the kernel dropped messages ${count(lost, 'time')}: packets and steps are missing; lower --rate`]
      : []),
    ...(dropped > 0 ? [`${count(dropped, 'packet')} not printed: standard output is too slow`] : []),
  ]
}
