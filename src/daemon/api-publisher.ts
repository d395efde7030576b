import { ApiFeed, type FeedSource } from '../api/feed.ts'
import { type ApiProjection, nextApiState, type ResolvedView } from '../api/next-state.ts'
import type { Clock } from '../base/clock.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'

interface ApiPublisherOptions {
  readonly clock: Clock
  readonly source: () => FeedSource | undefined
  /** Reports an internal error; the last state stays published. */
  readonly failed: (error: unknown) => void
}

/**
 * Computes the API state from resolved Snapshots and publishes it. Of several Snapshots that arrive during a
 * computation, it uses only the last.
 */
export class ApiPublisher {
  readonly feed: ApiFeed
  readonly #options: ApiPublisherOptions
  #projection: ApiProjection | undefined
  #next: ResolvedView | undefined
  #working: Promise<void> | undefined

  constructor(options: ApiPublisherOptions) {
    this.#options = options
    this.feed = new ApiFeed({ clock: options.clock, source: options.source })
  }

  offer(resolved: ResolvedView): void {
    this.#next = resolved
    this.#working ??= this.#work()
  }

  /** Resolves when all offered states are published. */
  async settled(): Promise<void> {
    await this.#working
  }

  async #work(): Promise<void> {
    const slicing = slicingOf(this.#options.clock)
    for (let next = this.#next; next !== undefined; next = this.#next) {
      this.#next = undefined
      try {
        const projection = await finishInSlices(nextApiState(this.#projection, next), slicing)
        this.#projection = projection
        this.feed.offer(projection.state)
      } catch (error) {
        this.#options.failed(error)
      }
    }
    this.#working = undefined
  }
}
