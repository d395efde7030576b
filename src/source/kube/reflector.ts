import { finishInSlices, pause, type Steps, slicingOf } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import { isMostGone } from '../source.ts'
import { requestPath } from './api-client.ts'
import { Attempt, WatchBackoff } from './attempt.ts'
import { ConsistencyCheck, isBehind } from './consistency-check.ts'
import { LIST_MS_MAX, type Opening, readPages, type WatchStream, type WholeList } from './exchange.ts'
import { type Failure, FailureError, failureOfError, failureOfStatus } from './failure.ts'
import type { Change, Listing } from './listing.ts'
import { isOlder, isPosition } from './object-index.ts'
import type { ReflectorOptions } from './reflector-options.ts'
import {
  type Attempted,
  afterList,
  type Decision,
  decide,
  isBackwards,
  isOutage,
  listVersion,
  type Outcome,
  type ReflectorState,
  SHORT_WATCH_MS,
  START,
  type Trouble,
} from './reflector-state.ts'
import { ResourceChanges, type SkipReason } from './resource-changes.ts'
import { learn, servedResource } from './server-traits.ts'
import { streamingQuery, WatchRun, watchQuery, watchSeconds } from './watch-run.ts'
import { statusOf } from './wire/encodings.ts'
import type { WatchEvent } from './wire/tables.ts'

/** A streaming list that brings no further object for so long is not going to end. */
const INITIAL_QUIET_MS = 10_000

/**
 * Follows the objects of one resource: lists them, watches from there, and restarts where the server cannot continue.
 * Runs until it is stopped, whatever happens; delivered objects stay valid meanwhile.
 */
export class Reflector<E extends Change = SourceEvent> {
  readonly #options: ReflectorOptions<E>
  readonly #changes: ResourceChanges<E>
  readonly #backoff: WatchBackoff
  readonly #check: ConsistencyCheck
  #state = START
  #attempt: Attempt<Outcome> | undefined
  #running: Promise<void> = Promise.resolve()
  #stopped = false
  #rest = new AbortController()
  /** The last attempt failed as all do while a server is away or has just started. */
  #isOutage = false
  #isListed = false
  #isAbsent = false
  /** The sink was notified that it need not wait. */
  #isTold = false
  /** The first attempt that failed; undefined once all is well. */
  #troubled: ReflectorState['next'] | undefined
  #heardMs: number | undefined
  /** They wait for a list of the API server itself. */
  readonly #awaiting: (() => void)[] = []
  /** Objects that the list to come repairs. */
  #repairs = 0

  constructor(options: ReflectorOptions<E>) {
    this.#options = options
    this.#changes = new ResourceChanges({ ...options, skipped: reason => this.#observeSkipped(reason) })
    this.#backoff = new WatchBackoff(options)
    this.#check = new ConsistencyCheck({
      ...options,
      periodMs: options.checkPeriodMs,
      index: this.#changes.index,
      isBeyondCap: object => this.#changes.isBeyondCap(object),
      position: () => (this.#state.next === 'watch' ? this.#state.position : undefined),
      lost: objects => this.#relistLost(objects),
      ended: failure => options.sink.checked(failure),
    })
  }

  start(): void {
    this.#running = this.#run()
    this.#check.start()
  }

  /** Resolves when the sink will not be called any more. */
  async stop(): Promise<void> {
    this.#stopped = true
    this.#attempt?.breakOff()
    this.#rest.abort()
    await this.#check.stop()
    await this.#running
  }

  /** Another resource has found the server well: a delay that an outage had caused is over. */
  hurry(): void {
    if (this.#isOutage) this.#rest.abort()
  }

  /** Monotonic milliseconds of the last word from the server; undefined before the first. */
  get heardMs(): number | undefined {
    return this.#heardMs
  }

  /** The server has no such resource, or does not let us read it, and that is no reason to wait. */
  get isAbsent(): boolean {
    return this.#isAbsent
  }

  async #run(): Promise<void> {
    while (!this.#stopped) {
      const outcome = await this.#try()
      if (this.#stopped) return
      this.#isOutage = isOutage(outcome)
      const { next } = this.#state
      const decision = decide(this.#state, outcome, this.#options.clock.nowMs())
      this.#state = decision.state
      const absence = this.#absenceIn(outcome)
      const waitMs = absence === undefined ? this.#next(decision, next) : this.#accept(absence)
      this.#rest = new AbortController()
      if (waitMs > 0) await pause(this.#options.clock, waitMs, this.#rest.signal)
    }
  }

  async #try(): Promise<Outcome> {
    const { clock, resource, exchange } = this.#options
    const { next, plain, consistent } = this.#state
    const attempt = new Attempt<Outcome>(clock)
    this.#attempt = attempt
    const streaming = next === 'list' && exchange.traits.streamsLists && !plain && !consistent
    const during: Attempted = next === 'watch' ? 'watch' : streaming ? 'streaming list' : 'list'
    try {
      return during === 'list' ? await this.#list(attempt) : await this.#stream(attempt, streaming)
    } catch (error) {
      if (attempt.result !== undefined) return attempt.result
      const failure = failureOfError(error)
      if (learn(exchange.traits, resource, { failure, during })) return { kind: 'unselected' }
      return { kind: 'failed', during, failure }
    } finally {
      attempt.end()
      this.#attempt = undefined
      this.#changes.closeListing()
    }
  }

  async #list(attempt: Attempt<Outcome>): Promise<Outcome> {
    const { exchange } = this.#options
    const failure: Failure = { kind: 'connection', text: 'a list took too long', retryAfterMs: 0 }
    const list = await readPages({
      atLeast: listVersion(this.#state),
      openListing: () => this.#changes.openListing(),
      request: async (query, listing) => {
        const lift = attempt.after(LIST_MS_MAX, () =>
          attempt.breakOff({ kind: 'failed', during: 'list', failure }),
        )
        const page = await exchange.list(this.#opening(attempt, query), item => listing.take(item))
        lift()
        return page
      },
    })
    const outcome = await this.#land(list, attempt.beganMs)
    // A consumer of the list may request another one.
    return outcome ?? attempt.result ?? { kind: 'landed' }
  }

  /** A watch, and the list before it when the server streams that as well. */
  async #stream(attempt: Attempt<Outcome>, streaming: boolean): Promise<Outcome> {
    const { clock, exchange, random, resource, sink } = this.#options
    const { position } = this.#state
    const seconds = watchSeconds(random)
    const query = streaming ? streamingQuery(position, seconds) : watchQuery(position, seconds)
    if (!streaming && this.#state.wasAway) {
      if (await isBehind(exchange, this.#opening(attempt, { limit: '1' }), position))
        return { kind: 'backwards' }
      this.#state = { ...this.#state, wasAway: false }
    }
    // A streamed list is passed on piece by piece: gathered objects would survive collections of the young generation.
    const stream = await exchange.watch(this.#opening(attempt, query), () => run.listing === undefined)
    const run = new WatchRun({
      clock,
      position,
      listing: streaming ? this.#changes.openListing() : undefined,
    })
    // One that continues for longer than the server had agreed to has died unnoticed.
    attempt.after((seconds + 30) * 1_000, () => attempt.breakOff(run.ended()))
    if (streaming) this.#expectEnd(attempt, run)
    else attempt.after(SHORT_WATCH_MS, () => this.#well())
    const outcome = await this.#follow(stream, attempt, run)
    const { events, bytes } = run
    sink.observed({ kind: 'watch-ended', resource: resource.name, reason: outcome.kind, events, bytes })
    return outcome
  }

  async #follow(stream: WatchStream, attempt: Attempt<Outcome>, run: WatchRun<E>): Promise<Outcome> {
    try {
      for await (const { events, bytes } of stream) {
        run.bytes += bytes
        const outcome = await this.#takeEvents(events, run)
        if (outcome !== undefined) return outcome
      }
      if (attempt.result !== undefined) return attempt.result
      this.#heardMs = this.#options.clock.nowMs()
      return run.ended()
    } catch (error) {
      if (attempt.result !== undefined) return attempt.result
      const failure = failureOfError(error)
      if (failure.kind === 'connection') return run.ended(failure.text)
      return { kind: 'failed', during: run.listing === undefined ? 'watch' : 'streaming list', failure }
    }
  }

  #expectEnd(attempt: Attempt<Outcome>, run: WatchRun<E>): void {
    const { clock } = this.#options
    const leftMs = run.growingMs + INITIAL_QUIET_MS - clock.nowMs()
    attempt.after(leftMs, () => {
      if (run.listing === undefined) return
      if (clock.nowMs() - run.growingMs >= INITIAL_QUIET_MS) attempt.breakOff({ kind: 'late' })
      else this.#expectEnd(attempt, run)
    })
  }

  /** Gives how the stream ends, when one of the events ends it. */
  async #takeEvents(events: readonly WatchEvent[], run: WatchRun<E>): Promise<Outcome | undefined> {
    for (const event of events) {
      if (event.type === 'ERROR') {
        await this.#deliver(run)
        const status = statusOf(event.object)
        throw new FailureError(failureOfStatus(status?.code ?? 0, status))
      }
      run.events++
      if (run.listing === undefined) {
        const changes = run.takeLive(event, this.#changes)
        if (changes.length > 0) run.taken = this.#options.sink.events(changes)
      } else if (run.takeInitial(run.listing, event)) {
        const outcome = await this.#land(run.endListing(run.listing, event), run.beganMs)
        if (outcome !== undefined) return outcome
        this.#attempt?.after(SHORT_WATCH_MS, () => this.#well())
      }
    }
    await this.#deliver(run)
    return undefined
  }

  async #deliver(run: WatchRun<E>): Promise<void> {
    const { heard, progress, position, taken } = run.takeNews()
    if (!heard) return
    this.#heardMs = this.#options.clock.nowMs()
    this.#options.sink.reached?.(position, 'watch')
    if (!progress) return
    this.#state = { ...this.#state, position, broken: 0, fruitless: 0 }
    this.#well()
    await this.#untilTaken(taken)
    // Bookmarks come every minute, so that this check runs often enough.
    if (this.#changes.takeRoom()) this.#relist({ kind: 'room' })
  }

  /** Makes a list the state of everything, unless it is not to be believed yet. */
  async #land(
    { listing, resourceVersion, bytes }: WholeList<Listing<E>>,
    beganMs: number,
  ): Promise<Outcome | undefined> {
    const { clock, resource, sink } = this.#options
    const state = this.#state
    this.#heardMs = clock.nowMs()
    if (!isPosition(resourceVersion)) throw new WireError('a list without a resource version')
    if (isBackwards(state, resourceVersion, clock.nowMs())) {
      this.#observeSkipped('older')
      return { kind: 'backwards' }
    }
    listing.end()
    const missing = await this.#inSlices(this.#changes.vanishing(listing))
    if (isMostGone(this.#changes.index.size, missing.length) && !state.doubted) return { kind: 'vanished' }
    const backwards = state.anew || isOlder(resourceVersion, state.position)
    const batch = await this.#inSlices(this.#changes.land(listing, { resourceVersion, missing, backwards }))
    this.#changes.closeListing()
    await this.#untilTaken(sink.events(batch))
    this.#state = afterList(state, resourceVersion)
    sink.reached?.(resourceVersion, state.anew ? 'another-history' : 'list')
    sink.observed({
      kind: 'listed',
      resource: resource.name,
      reason: state.reason,
      objects: listing.size,
      bytes,
      durationMs: clock.nowMs() - beganMs,
    })
    this.#landed(state)
    return undefined
  }

  #landed({ doubted }: ReflectorState): void {
    const { resource, sink } = this.#options
    if (this.#repairs > 0)
      sink.observed({ kind: 'repaired', resource: resource.name, objects: this.#repairs })
    this.#repairs = 0
    this.#isListed = true
    this.#isAbsent = false
    if (doubted) for (const resolve of this.#awaiting.splice(0)) resolve()
    const isAwaited = this.#awaiting.length > 0
    // A list of a relay counts meanwhile, and confirms nothing.
    if (isAwaited) this.#instead({ kind: 'vanished' })
    // Watches that fail are not mended by the lists that replace them.
    else if (this.#troubled !== 'watch') this.#well()
    this.#tellListed()
  }

  async #untilTaken(taken: Promise<void> | undefined): Promise<void> {
    const { sink } = this.#options
    try {
      await taken
      const refusals = this.#changes.takeRefusals()
      if (refusals !== undefined && !this.#stopped) sink.refusals(refusals, this.#changes.index.size)
    } catch (error) {
      // It is unknown which objects were delivered: deliver all of them again.
      this.#changes.index.forgetVersions()
      throw error
    }
  }

  /** Lists once more, from the store itself and past any relay. Resolves when such a list was taken. */
  relist(): Promise<void> {
    const taken = new Promise<void>(resolve => this.#awaiting.push(resolve))
    if (!this.#state.doubted) this.#instead({ kind: 'vanished' })
    return taken
  }

  #relistLost(objects: number): void {
    if (this.#state.next === 'watch') this.#repairs = objects
    this.#relist({ kind: 'lost-events' })
  }

  /** Lists instead of watching, unless a list runs already. */
  #relist(outcome: Outcome): void {
    if (this.#state.next === 'watch') this.#instead(outcome)
  }

  /** Ends what runs now with this outcome. */
  #instead(outcome: Outcome): void {
    if (this.#stopped) return
    if (this.#attempt === undefined)
      this.#state = decide(this.#state, outcome, this.#options.clock.nowMs()).state
    else this.#attempt.breakOff(outcome)
  }

  /** Gives the failure that shows that an optional resource does not exist or is forbidden. */
  #absenceIn(outcome: Outcome): Failure | undefined {
    if (!this.#options.resource.optional || this.#isListed || outcome.kind !== 'failed') return undefined
    const { during, failure } = outcome
    if (during === 'streaming list') return undefined
    return failure.kind === 'absent' || failure.kind === 'forbidden' ? failure : undefined
  }

  /** Gives the milliseconds until the next read. */
  #accept({ kind, text }: Failure): number {
    this.#isAbsent = true
    const isDenied = kind === 'forbidden'
    if (isDenied) this.#trouble({ scope: 'denied', text: `${text}; continuing without it` }, 'list')
    else this.#trouble({ scope: 'absent', text: `API not served; continuing without it (${text})` }, 'list')
    this.#tellListed()
    // An API server that has just started denies everything for a moment. One that lacks the API may be upgraded: it is
    // asked every 5 minutes, by each node at another time.
    return isDenied ? this.#backoff.nextMs() : 240_000 + 120_000 * this.#options.random()
  }

  #next({ wait, trouble }: Decision, during: ReflectorState['next']): number {
    if (trouble !== undefined) this.#trouble(trouble, during)
    if (wait.kind === 'pause') return wait.ms * (1 + this.#options.random())
    return wait.kind === 'none' ? 0 : this.#backoff.nextMs(wait.atLeastMs)
  }

  #tellListed(): void {
    if (this.#isTold || this.#stopped) return
    this.#isTold = true
    this.#options.sink.listed()
  }

  #trouble(trouble: Trouble, during: ReflectorState['next']): void {
    this.#troubled ??= during
    this.#options.sink.trouble(trouble)
  }

  #well(): void {
    if (this.#troubled === undefined || this.#stopped) return
    this.#troubled = undefined
    this.#options.sink.trouble(undefined)
  }

  #observeSkipped(reason: SkipReason): void {
    this.#options.sink.observed({ kind: 'skipped', resource: this.#options.resource.name, reason })
  }

  #opening(attempt: Attempt<Outcome>, query: Readonly<Record<string, string>>): Opening {
    const { resource, exchange } = this.#options
    const path = requestPath(servedResource(resource, exchange.traits), query)
    // A relay that lacks most objects cannot confirm that they are gone.
    return { kind: resource.kind, path, isDirect: this.#state.doubted, signal: attempt.signal }
  }

  #inSlices<T>(steps: Steps<T>): Promise<T> {
    return finishInSlices(steps, slicingOf(this.#options.clock))
  }
}
