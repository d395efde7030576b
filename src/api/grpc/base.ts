import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/failure-text.ts'
import type { ApiFeed } from '../feed.ts'
import { type ApiState, distance } from '../state.ts'
import { Transfer } from './transfer.ts'

/** So much may have changed since the base was made: a part of its objects, or so many. */
const CHANGED_PART = 1 / 8
const CHANGED_MIN = 1_000
/** Earlier bases that clients still read. */
const EARLIER_MAX = 3

export interface BaseOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  /** An error of ours in making it: the one that there is stays. */
  readonly failed: (error: Error) => void
}

/**
 * Keeps a whole state with all blocks made in advance: a new client gets it, followed by what has changed since. The base is
 * made anew in the background when much has changed, so memory and work follow the changes. Its blocks are mostly the memory
 * of the state itself.
 */
export class Base {
  readonly #feed: ApiFeed
  readonly #clock: Clock
  readonly #failed: (error: Error) => void
  /** The states of all of these are held. */
  #made: Transfer | undefined
  #making: Transfer | undefined
  /** Transfers that clients still read, oldest first. */
  readonly #earlier: Transfer[] = []
  #hasEnded = false

  constructor({ feed, clock, failed }: BaseOptions) {
    this.#feed = feed
    this.#clock = clock
    this.#failed = failed
  }

  /** The whole transfer of a recent state; of `newest` when there is none yet. */
  transfer(newest: ApiState): Transfer {
    return this.#made ?? this.#making ?? this.#begin(newest)
  }

  /** There is a newer state. */
  moved(): void {
    const { current } = this.#feed
    if (current === undefined || this.#making !== undefined || this.#hasEnded) return
    const most = Math.max(CHANGED_MIN, (current.services.size + current.endpoints.size) * CHANGED_PART)
    if (this.#made !== undefined && distance(this.#made.to, current) <= most) return
    try {
      this.#begin(current)
    } catch (thrown) {
      this.#failed(errorOf(thrown))
    }
  }

  /** Its last reader has closed it. */
  left(transfer: Transfer): void {
    const index = this.#earlier.indexOf(transfer)
    if (index < 0) return
    this.#earlier.splice(index, 1)
    this.#feed.release(transfer.to)
  }

  /** Drops everything except what clients still read. */
  end(): void {
    this.#hasEnded = true
    if (this.#made !== undefined) this.#retire(this.#made)
    this.#made = undefined
  }

  get transfers(): readonly Transfer[] {
    return [this.#made, this.#making, ...this.#earlier].filter(its => its !== undefined)
  }

  #begin(state: ApiState): Transfer {
    const making = Transfer.whole(state)
    this.#feed.hold(state)
    this.#making = making
    void this.#finish(making)
    return making
  }

  async #finish(making: Transfer): Promise<void> {
    const isWell = await this.#makeAll(making)
    this.#making = undefined
    if (!isWell || this.#hasEnded) {
      this.#retire(making)
      return
    }
    const before = this.#made
    this.#made = making
    if (before !== undefined) this.#retire(before)
  }

  async #makeAll(making: Transfer): Promise<boolean> {
    try {
      for (let index = 0; making.block(index) !== undefined && !this.#hasEnded; index++)
        await this.#clock.breathe()
      return true
    } catch (thrown) {
      this.#failed(errorOf(thrown))
      return false
    }
  }

  #retire(transfer: Transfer): void {
    this.#earlier.push(transfer)
    if (transfer.readers.size === 0) this.left(transfer)
    const [oldest] = this.#earlier
    if (oldest !== undefined && this.#earlier.length > EARLIER_MAX)
      for (const reader of [...oldest.readers]) reader.evicted()
  }
}
