import type { Clock } from '../base/clock.ts'
import { assert } from '../base/errors.ts'
import { type ApiState, skipState } from './state.ts'

export interface FeedSource {
  /** Parts that have not been read entirely even once. */
  readonly missing: readonly string[]
  /** Monotonic milliseconds of the last word from the part that has been silent longest. */
  readonly heardMs: number | undefined
  /** The present problem, one line for people. */
  readonly trouble: string | undefined
}

interface FeedOptions {
  readonly clock: Pick<Clock, 'nowMs'>
  /** Undefined before there is one. */
  readonly source: () => FeedSource | undefined
}

export interface FeedStatus {
  /** The number of the newest state; 0 before the first. */
  readonly number: number
  readonly services: number
  readonly endpoints: number
  /** The time since the state last changed; undefined when there is none yet. */
  readonly sinceMs: number | undefined
  /** The time since the last word of the source's most silent part: it bounds the age of the state. */
  readonly silentMs: number | undefined
  /** The source is complete and has no problem now. */
  readonly sourceConnected: boolean
  readonly trouble: string | undefined
}

/**
 * Publishes the newest state to servers and programs. A reader asks when it is ready and gets the newest state then, never
 * one twice. The feed keeps only what differs between the state that a reader holds and the newest.
 */
export class ApiFeed {
  readonly #options: FeedOptions
  /** States that readers hold, oldest first, and the newest. */
  #positions: readonly Position[] = []
  #changedMs: number | undefined
  readonly #waiting = new Set<(state: ApiState) => void>()

  constructor(options: FeedOptions) {
    this.#options = options
  }

  /** Undefined until everything that exists is known. */
  get current(): ApiState | undefined {
    return this.#positions.at(-1)?.state
  }

  /** Takes the next state; the same one again changes nothing. */
  offer(state: ApiState): void {
    const before = this.#positions.at(-1)
    if (before?.state === state) return
    assert(before === undefined || before.state.number < state.number, 'states come in their order')
    this.#positions = [...this.#positions, { state, holders: 0 }]
    this.#changedMs = this.#options.clock.nowMs()
    if (before?.holders === 0) this.#forget(before)
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (const take of waiting) take(state)
  }

  /** The newest state once its number is above `seen` (0: any). Rejects with the signal's reason. */
  newer(seen: number, signal: AbortSignal): Promise<ApiState> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const { current } = this
      if (current !== undefined && current.number > seen) {
        resolve(current)
        return
      }
      const aborted = (): void => {
        this.#waiting.delete(take)
        reject(signal.reason)
      }
      const take = (state: ApiState): void => {
        signal.removeEventListener('abort', aborted)
        resolve(state)
      }
      this.#waiting.add(take)
      signal.addEventListener('abort', aborted, { once: true })
    })
  }

  /**
   * Says that `state` (one that came from here) will be compared with a newer one: until it is released as often, what
   * differs is remembered, once for all holders. Pass only held states to difference().
   */
  hold(state: ApiState): void {
    const position = this.#positions.find(its => its.state === state)
    assert(position !== undefined, 'a state is held while it is the newest, or while others hold it')
    position.holders++
  }

  release(state: ApiState): void {
    const position = this.#positions.find(its => its.state === state)
    assert(position !== undefined && position.holders > 0, 'a state is released as often as it was held')
    position.holders--
    if (position.holders === 0 && state !== this.current) this.#forget(position)
  }

  /** States that are kept: those that readers hold, and the newest. */
  get kept(): number {
    return this.#positions.length
  }

  status(): FeedStatus {
    const { clock, source } = this.#options
    const { current } = this
    const its = source()
    const nowMs = clock.nowMs()
    return {
      number: current?.number ?? 0,
      services: current?.services.size ?? 0,
      endpoints: current?.endpoints.size ?? 0,
      sinceMs: this.#changedMs === undefined ? undefined : nowMs - this.#changedMs,
      silentMs: its?.heardMs === undefined ? undefined : nowMs - its.heardMs,
      sourceConnected: its !== undefined && its.trouble === undefined && its.missing.length === 0,
      trouble: its?.trouble,
    }
  }

  /** The changes to a state that is no longer held go into those of the state before it. */
  #forget(position: Position): void {
    const at = this.#positions.indexOf(position)
    const [older, newer, newest] = [this.#positions[at - 1], this.#positions[at + 1], this.#positions.at(-1)]
    this.#positions = this.#positions.filter(its => its !== position)
    if (older === undefined || newer === undefined || newest === undefined) return
    skipState(older.state, position.state, newest.state)
  }
}

interface Position {
  readonly state: ApiState
  holders: number
}
