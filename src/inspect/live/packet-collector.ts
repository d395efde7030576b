import type { Clock } from '../../base/clock.ts'
import type { PacketHead } from '../../base/ip-packet.ts'
import { NF_ACCEPT, NF_DROP } from '../../kernel/nft/constants.ts'
import type { TraceEvent } from '../../kernel/nft/monitor.ts'
import { CHAIN_DELIVERED, CHAIN_SENT, CHAIN_START, isTraceTable } from '../../modes/common/trace-table.ts'

/** A rule or a policy that a packet met, in order. */
export type PacketStep = Pick<TraceEvent, 'family' | 'table' | 'chain' | 'handle' | 'verdict'>

/** A real packet, from the hook where it entered to its end. */
export interface TracedPacket {
  readonly id: number
  readonly atMs: number
  readonly origin: 'interface' | 'process'
  /** The head before any translation. */
  readonly first: PacketHead
  readonly last: PacketHead
  /** Indexes; undefined where there is none. */
  readonly inputInterface: number | undefined
  readonly outputInterface: number | undefined
  readonly steps: readonly PacketStep[]
  readonly end: PacketEnd
  /** The kernel dropped messages meanwhile: steps may be missing. */
  readonly isTorn: boolean
}

type PacketEnd =
  | 'dropped'
  /** It passed all rules, to a process of this node. */
  | 'delivered'
  /** It passed all rules, and leaves by an interface. */
  | 'sent'
  /** The last step gave it to a program (`queue`), and nothing came back. */
  | 'queued'
  /** No rule dropped it, and no further hook saw it. */
  | 'vanished'

type Writable<T> = { -readonly [K in keyof T]: T[K] }
type Known = Omit<TracedPacket, 'end' | 'steps'>

interface Draft extends Writable<Known> {
  readonly steps: PacketStep[]
  /** Our rule has set its trace bit: it is no packet that another program traces. */
  isOurs: boolean
  /** Monotonic time of the last step. */
  seenMs: number
}

const VERDICT_MASK = 0xff
const NF_QUEUE = 3

interface CollectorOptions {
  readonly clock: Pick<Clock, 'nowMs'>
  readonly wallMs: () => number
  readonly table: string
  readonly onPacket: (packet: TracedPacket) => void
}

/** Joins the steps that the kernel reports to packets. */
export class PacketCollector {
  readonly #options: CollectorOptions
  /** Drafts by packet id; the packet that waits longest comes first. */
  readonly #open = new Map<number, Draft>()

  constructor(options: CollectorOptions) {
    this.#options = options
  }

  get openPackets(): number {
    return this.#open.size
  }

  take(event: TraceEvent): void {
    const isOwnTable = event.table === this.#options.table
    const isStart = isOwnTable && event.chain === CHAIN_START && event.type === 'rule'
    let draft = this.#open.get(event.id)
    // Another packet may get the number of one that vanished.
    if (draft?.isOurs === true && isStart) {
      this.#finish(draft, 'vanished')
      draft = undefined
    }
    draft ??= isOwnTable ? this.#begin(event) : undefined
    if (draft === undefined) return
    this.#note(draft, event)
    if (isStart) draft.isOurs = true
    if (isOwnTable) {
      if (event.chain === CHAIN_DELIVERED) this.#finish(draft, 'delivered')
      else if (event.chain === CHAIN_SENT) this.#finish(draft, 'sent')
      return
    }
    this.#step(draft, event)
  }

  #begin(event: TraceEvent): Draft | undefined {
    const { id, head, inputInterface, outputInterface } = event
    if (head === undefined || event.chain === CHAIN_DELIVERED || event.chain === CHAIN_SENT) return undefined
    for (const oldest of this.#open.values()) {
      // The limit in the kernel, in both families, lets at most 2,000 packets begin in that time.
      if (this.#open.size < 4_096) break
      this.#finish(oldest, 'vanished')
    }
    const draft: Draft = {
      id,
      atMs: this.#options.wallMs(),
      origin: inputInterface === undefined ? 'process' : 'interface',
      first: head,
      last: head,
      inputInterface,
      outputInterface,
      steps: [],
      isOurs: false,
      isTorn: false,
      seenMs: 0,
    }
    this.#open.set(id, draft)
    return draft
  }

  #note(draft: Draft, { head, inputInterface, outputInterface }: TraceEvent): void {
    draft.seenMs = this.#options.clock.nowMs()
    draft.last = head ?? draft.last
    draft.inputInterface ??= inputInterface
    draft.outputInterface = outputInterface ?? draft.outputInterface
  }

  #step(draft: Draft, event: TraceEvent): void {
    const { type, verdict } = event
    const isDropping = verdict !== undefined && (verdict.code & VERDICT_MASK) === NF_DROP && verdict.code >= 0
    // A policy that accepts, and the end of a chain, decide nothing.
    if (type === 'rule' || (type === 'policy' && isDropping)) {
      const { family, table, chain, handle } = event
      // Trace tables of other processes are no rules about packets.
      if (!isTraceTable(table) && draft.steps.length < 256)
        draft.steps.push({ family, table, chain, handle, verdict })
    }
    if (isDropping) this.#finish(draft, 'dropped')
  }

  lost(): void {
    for (const draft of this.#open.values()) draft.isTorn = true
  }

  /** Ends the packets without a step for some time; all of them with `now`. */
  sweep({ now = false } = {}): void {
    // A packet ends at once, or waits for a queue of a program.
    const beforeMs = this.#options.clock.nowMs() - 1_000
    for (const draft of this.#open.values())
      if (now || draft.seenMs <= beforeMs) this.#finish(draft, isQueued(draft) ? 'queued' : 'vanished')
  }

  #finish(draft: Draft, end: PacketEnd): void {
    this.#open.delete(draft.id)
    if (!draft.isOurs) return
    const { isOurs: _, seenMs: __, ...packet } = draft
    this.#options.onPacket({ ...packet, end })
  }
}

function isQueued({ steps }: Draft): boolean {
  const code = steps.at(-1)?.verdict?.code ?? NF_ACCEPT
  return code >= 0 && (code & VERDICT_MASK) === NF_QUEUE
}
