import { ApiFeed, type FeedSource, type FeedStatus } from '../api/feed.ts'
import { type ApiServer, type ApiServerCounts, startApiServer } from '../api/grpc/server.ts'
import { type ApiProjection, nextApiState, type ResolvedView } from '../api/next-state.ts'
import { type Clock, finishInSlices, slicingOf } from '../base/clock.ts'
import type { DescriptorBudget } from '../base/descriptor-budget.ts'
import type { Log } from '../base/log.ts'
import { type Crowd, NONE_OVER_SHARE, type OverShare } from '../base/shares.ts'
import type { ApiConfig, Config } from '../config/config.ts'
import { logCrowd } from './servers.ts'

interface ApiServiceOptions {
  readonly clock: Clock
  readonly log: Log
  readonly config: ApiConfig
  readonly nodeName: string
  /** Maximum number of connections of back ends at the same time. */
  readonly connectionsMax: number
  readonly source: () => FeedSource | undefined
}

/** Makes the ApiService; undefined if the configuration has no API. */
export function apiOf(
  { api, nodeName }: Config,
  {
    clock,
    log,
    descriptors,
  }: Pick<ApiServiceOptions, 'clock' | 'log'> & { readonly descriptors: DescriptorBudget },
  source: ApiServiceOptions['source'],
): ApiService | undefined {
  return api === undefined
    ? undefined
    : new ApiService({ config: api, nodeName, clock, log, connectionsMax: descriptors.api, source })
}

/** The back-end API of a daemon. It serves resolved state, from the first complete one on. */
export class ApiService {
  readonly #options: ApiServiceOptions
  readonly #publisher: ApiPublisher
  #server: ApiServer | undefined

  constructor(options: ApiServiceOptions) {
    this.#options = options
    const { clock, log, source } = options
    this.#publisher = new ApiPublisher({
      clock,
      source,
      failed: err => log.error({ err }, 'cannot compute the API state; keeping the last one'),
    })
  }

  /** Listens. Gives false after a failure, which it logs. */
  async listen(): Promise<boolean> {
    const { clock, log, nodeName, config, connectionsMax } = this.#options
    const failed = (err: Error) => log.warn({ err }, 'API server error')
    const crowded = (crowd: Crowd) => logCrowd(log, 'api', crowd)
    try {
      const { feed } = this.#publisher
      const serving = { feed, nodeName, clock, connectionsMax, failed, crowded }
      this.#server = await startApiServer({ ...config, ...serving })
    } catch (err) {
      log.fatal(
        { err, address: config.address },
        'cannot serve the back-end API; change the address with --api',
      )
      return false
    }
    log.info({ address: this.#server.address }, 'back-end API listening')
    return true
  }

  offer(resolved: ResolvedView): void {
    this.#publisher.offer(resolved)
  }

  readonly numbers = (): FeedStatus & Partial<ApiServerCounts> => {
    return { ...this.#publisher.feed.status(), ...this.#server?.counts() }
  }

  get overShare(): OverShare {
    return this.#server?.overShare ?? NONE_OVER_SHARE
  }

  async close(): Promise<void> {
    await this.#server?.close()
    await this.#publisher.settled()
  }
}

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
