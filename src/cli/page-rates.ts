import type { Cancel, Clock } from '../base/clock.ts'
import type { PageSource } from '../daemon/page.ts'
import { FlowNames } from './flow-names.ts'
import { TopSampler } from './top-sampler.ts'
import { FIRST_VIEW, rowsOf, SORTS, type TopState } from './top-view.ts'

/** Time between two samples, however many look. */
const INTERVAL_MS = 1_000
/** Without a request for so long, nobody looks. */
const IDLE_MS = 10_000
const ROWS_MAX = 100

/** Does work for one viewer, and counts the processor time that it takes. */
export type Timed = <T>(work: () => T) => T

type Sampler = Pick<TopSampler, 'sample' | 'close'>

interface Sampling {
  readonly sampler: Promise<Sampler>
  state: Promise<TopState>
  sampledMs: number
}

/** Counts what `kprobe top` shows while somebody looks: one sampler for all viewers, which ends with the last of them. */
export class PageRates {
  readonly #clock: Clock
  readonly #open: () => Promise<Sampler>
  #sampling: Sampling | undefined
  #idle: Cancel | undefined
  #closing: Promise<void> = Promise.resolve()

  constructor(clock: Clock, open: () => Promise<Sampler>) {
    this.#clock = clock
    this.#open = open
  }

  /** Gives the rows that a viewer looks at: `by=endpoint`, `filter` and `sort`, the first 100. Selects them in `timed`. */
  async read(query: URLSearchParams, timed: Timed): Promise<unknown> {
    const { rows: all, ...state } = await this.#state()
    const sort = SORTS.find(each => each === query.get('sort')) ?? FIRST_VIEW.sort
    const by = query.get('by') === 'endpoint' ? 'endpoint' : 'service'
    const view = { ...FIRST_VIEW, sort, by, filter: query.get('filter') ?? '' } as const
    const rows = timed(() => rowsOf({ rows: all }, view))
    return { ...state, matching: rows.length, rows: rows.slice(0, ROWS_MAX) }
  }

  /** Ends the counting. */
  async close(): Promise<void> {
    this.#idle?.()
    const sampling = this.#sampling
    this.#sampling = undefined
    if (sampling === undefined) return await this.#closing
    this.#closing = sampling.sampler.then(
      async sampler => {
        // A sample that is under way reads from sockets that close() would end.
        await sampling.state.catch(() => undefined)
        await sampler.close()
      },
      () => undefined,
    )
    await this.#closing
  }

  async #state(): Promise<TopState> {
    const clock = this.#clock
    this.#idle?.()
    this.#idle = clock.after(IDLE_MS, () => void this.close())
    const sampling = this.#sampling ?? this.#begin()
    try {
      if (clock.nowMs() - sampling.sampledMs >= INTERVAL_MS) {
        sampling.sampledMs = clock.nowMs()
        sampling.state = sampling.state.then(async () => await (await sampling.sampler).sample())
      }
      return await sampling.state
    } catch (error) {
      await this.close()
      throw error
    }
  }

  #begin(): Sampling {
    const sampler = this.#open()
    const state = sampler.then(its => its.sample())
    this.#sampling = { sampler, state, sampledMs: this.#clock.nowMs() }
    return this.#sampling
  }
}

/** Begins to count new connections on this node. Throws when the kernel denies its events. */
export async function openSampler({ clock, wallMs, config }: PageSource): Promise<TopSampler> {
  const { adminSocket, serviceProxyName: proxyName } = config()
  const names = await FlowNames.open({ clock, adminSocket, proxyName })
  return new TopSampler({ clock, wallMs, names, service: '', namespace: '', proxyName })
}
