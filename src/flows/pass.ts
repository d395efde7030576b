import type { Clock } from '../base/clock.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import { finishInSlices, type Slicing } from '../base/steps.ts'
import type { ConntrackClient, FlowVisitor } from '../kernel/conntrack/client.ts'
import type { Flow } from '../kernel/conntrack/flow.ts'
import type { FlowFilter } from '../kernel/conntrack/messages.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Drains } from './drains.ts'
import { dumpsFor } from './dumps.ts'
import type { FlowCheck } from './look.ts'
import { type Judging, type RuleBook, ruleBooks } from './stale.ts'

interface PassOptions {
  readonly client: ConntrackClient
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
  readonly drains: Drains
  readonly slicing: Slicing
  /** Asked at every entry: whether to give up. */
  readonly isStopped: () => boolean
}

interface PassWork {
  readonly looks: ReadonlyMap<ServiceKey, FlowCheck>
  readonly node: Judging['node']
}

interface FamilyResult {
  readonly family: Family
  readonly examined: number
  readonly deleted: number
  readonly cut: number
  readonly durationMs: number
}

/** Thrown out of a pass that was stopped. */
export class Stopped extends Error {
  override readonly name = 'Stopped'
}

/** A listing that changed while it was made may lack entries; those it has are judged all the same. */
const DUMP_ATTEMPTS = 5
const DUMP_RETRY_MS = 20
/** Stale entries that wait for one send. */
const DELETES_A_SEND = 256

/** One pass through conntrack: deletes stale entries while it reads, and keeps no more than one send of them. */
export class FlowPass {
  readonly #options: PassOptions

  constructor(options: PassOptions) {
    this.#options = options
  }

  /** Rejects when not all could be read or deleted; what was deleted stays so. */
  async run({ looks, node }: PassWork): Promise<readonly FamilyResult[]> {
    const { clock, drains, slicing } = this.#options
    const books = await finishInSlices(ruleBooks({ looks: looks.values(), node }), slicing)
    const results: FamilyResult[] = []
    drains.begin()
    for (const family of FAMILIES) {
      const ofFamily = books.filter(book => book.family === family)
      if (ofFamily.length === 0) continue
      const startMs = clock.nowMs()
      const counts = { examined: 0, deleted: 0, cut: 0 }
      for (const book of ofFamily) {
        const { examined, deleted } = await this.#apply(book)
        counts.examined += examined
        counts[book.protocol === 'UDP' ? 'deleted' : 'cut'] += deleted
      }
      results.push({ family, ...counts, durationMs: clock.nowMs() - startMs })
    }
    drains.finish(new Set(looks.keys()), clock.nowMs())
    return results
  }

  async #apply(book: RuleBook): Promise<{ readonly examined: number; readonly deleted: number }> {
    const deletes = new Deletes(this.#options.client)
    let examined = 0
    const visitor: FlowVisitor = {
      isWanted: (destination, port) => {
        if (this.#options.isStopped()) throw new Stopped()
        deletes.rethrow()
        examined++
        return book.concerns(destination, port)
      },
      visit: flow => {
        if (this.#isOver(book, flow)) deletes.add(flow)
      },
    }
    try {
      for (const filter of dumpsFor(book)) await this.#dumpWhole(filter, visitor)
    } finally {
      // Whatever becomes of the list: what it has shown to be stale is stale.
      await deletes.settle()
    }
    deletes.rethrow()
    return { examined, deleted: deletes.deleted }
  }

  #isOver(book: RuleBook, flow: Flow): boolean {
    const judgment = book.judge(flow)
    if (judgment.kind !== 'drain') return judgment.kind === 'stale'
    return this.#options.drains.isDue(judgment, this.#options.clock.nowMs())
  }

  async #dumpWhole(filter: FlowFilter, visitor: FlowVisitor): Promise<void> {
    const { client, clock, random, isStopped } = this.#options
    for (let attempt = 1; attempt <= DUMP_ATTEMPTS; attempt++) {
      if (isStopped()) throw new Stopped()
      if (await client.dump(filter, visitor)) return
      const delayMs = DUMP_RETRY_MS * attempt * (0.5 + random())
      await new Promise<void>(resolve => clock.after(delayMs, resolve))
    }
    throw new Error(`the kernel's table of flows changed during each of ${DUMP_ATTEMPTS} attempts to list it`)
  }
}

/** Sends deletions off while the list is still being read, one send after the other. */
class Deletes {
  readonly #client: ConntrackClient
  #waiting: Flow[] = []
  #sent: Promise<void> = Promise.resolve()
  #deleted = 0
  #failure: { readonly error: unknown } | undefined

  constructor(client: ConntrackClient) {
    this.#client = client
  }

  add(flow: Flow): void {
    this.#waiting.push(flow)
    if (this.#waiting.length >= DELETES_A_SEND) this.#send()
  }

  /** Throws what went wrong so far. */
  rethrow(): void {
    if (this.#failure !== undefined) throw this.#failure.error
  }

  async settle(): Promise<void> {
    this.#send()
    await this.#sent
  }

  get deleted(): number {
    return this.#deleted
  }

  #send(): void {
    const flows = this.#waiting
    this.#waiting = []
    if (flows.length === 0) return
    this.#sent = this.#sent.then(async () => {
      if (this.#failure !== undefined) return
      try {
        this.#deleted += (await this.#client.delete(flows)).deleted
      } catch (error) {
        this.#failure = { error }
      }
    })
  }
}
