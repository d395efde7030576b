import type { Cancel, Clock } from '../../base/clock.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import { FIRST_VIEW, SORTS } from '../live/live-table.ts'
import { rowsOf } from '../live/top-rows.ts'
import { TopSampler, type TopState } from '../live/top-sampler.ts'
import { TableNames } from './page-names.ts'

/** Does work for one viewer, and counts the processor time that it takes. */
export type Timed = <T>(work: () => T) => T

type Sampler = Pick<TopSampler, 'sample' | 'close'>

interface Sampling {
  readonly sampler: Promise<Sampler>
  state: Promise<TopState>
  last?: TopState
  sampledMs: number
}

/** Counts for the page as `kprobe top` does: one sampler for all viewers, which ends with the last of them. */
export class PageRates {
  readonly #clock: Clock
  readonly #open: () => Promise<Sampler>
  readonly #left: () => void
  #sampling: Sampling | undefined
  #idle: Cancel | undefined
  #closing: Promise<void> = Promise.resolve()

  /** `left` is called when the page counts as closed. */
  constructor(clock: Clock, open: () => Promise<Sampler>, left: () => void = () => undefined) {
    this.#clock = clock
    this.#open = open
    this.#left = left
  }

  /** Gives the rows that a viewer requests: `by=endpoint`, `filter` and `sort`, the first 100. Selects them in `timed`. */
  async read(query: URLSearchParams, timed: Timed): Promise<unknown> {
    const { rows: all, ...state } = await this.state()
    const sort = SORTS.find(each => each === query.get('sort')) ?? FIRST_VIEW.sort
    const by = query.get('by') === 'endpoint' ? 'endpoint' : 'service'
    const view = { ...FIRST_VIEW, sort, by, filter: query.get('filter') ?? '' } as const
    const rows = timed(() => rowsOf({ rows: all }, view))
    return { ...state, matching: rows.length, rows: rows.slice(0, 100) }
  }

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

  /** The last sample, while there is one: what a table shows beside its own data does not wait for another. */
  get last(): TopState | undefined {
    return this.#sampling?.last
  }

  /** Gives a sample that is at most a second old. Throws where the kernel denies it. */
  async state(): Promise<TopState> {
    const clock = this.#clock
    this.#idle?.()
    // The page counts as closed after so long without a request.
    this.#idle = clock.after(10_000, () => {
      this.#left()
      void this.close()
    })
    const sampling = this.#sampling ?? this.#begin()
    try {
      // Time between two samples, for any number of viewers.
      if (clock.nowMs() - sampling.sampledMs >= 1_000) {
        sampling.sampledMs = clock.nowMs()
        sampling.state = sampling.state.then(async () => await (await sampling.sampler).sample())
      }
      sampling.last = await sampling.state
      return sampling.last
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

/** Opens the sampler of `kprobe top` with the names that this daemon has itself. */
export async function openSampler(source: PageSource): Promise<TopSampler> {
  const { clock, wallMs, config } = source
  const { serviceProxyName: proxyName } = config()
  const names = new TableNames(source)
  await names.refresh()
  return new TopSampler({ clock, wallMs, names, service: '', proxyName })
}
