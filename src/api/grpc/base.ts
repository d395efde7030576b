import type { Clock } from '../../base/clock.ts'
import type { ApiFeed } from '../feed.ts'
import { type ApiState, distance } from '../state.ts'
import { Transfer } from './transfer.ts'

/** So much may have changed since the base was made: a part of its operations, or so many. */
const CHANGED_PART = 1 / 8
const CHANGED_MIN = 1_000

/**
 * A whole state of which all blocks are made before somebody asks: who comes gets it with what has changed since behind
 * it. Made anew, aside, when too much has changed: memory and work follow the changes. Its blocks are mostly the memory of
 * the state itself.
 */
export class Base {
  readonly #feed: ApiFeed
  readonly #clock: Clock
  /** Its state is held. */
  #made: Transfer | undefined
  #making: Transfer | undefined
  #hasEnded = false

  constructor(feed: ApiFeed, clock: Clock) {
    this.#feed = feed
    this.#clock = clock
  }

  /** Whole, for a client that has nothing; `to` is the newest state. */
  transferTo(to: ApiState): Transfer {
    const same = this.transfers.find(its => its.to === to)
    if (same !== undefined) return same
    return this.#made === undefined ? Transfer.whole(to) : Transfer.since(this.#made, to)
  }

  /** There is a newer state. */
  moved(): void {
    const { current } = this.#feed
    if (current === undefined || this.#making !== undefined || this.#hasEnded) return
    const made = this.#made?.to
    const most = Math.max(CHANGED_MIN, (current.services.size + current.endpoints.size) * CHANGED_PART)
    if (made === undefined || distance(made) > most) void this.#make(current)
  }

  /** Nothing is held any more. */
  end(): void {
    this.#hasEnded = true
    if (this.#made !== undefined) this.#feed.release(this.#made.to)
    this.#made = undefined
  }

  get transfers(): readonly Transfer[] {
    return [this.#made, this.#making].filter(its => its !== undefined)
  }

  async #make(state: ApiState): Promise<void> {
    this.#feed.hold(state)
    try {
      const making = Transfer.whole(state)
      this.#making = making
      for (let index = 0; making.block(index) !== undefined && !this.#hasEnded; index++)
        await this.#clock.breathe()
      if (!this.#hasEnded) this.#take(making)
    } catch {
      // An error of ours: readers meet it where it can be told to them.
    } finally {
      this.#making = undefined
      this.#feed.release(state)
    }
  }

  #take(made: Transfer): void {
    this.#feed.hold(made.to)
    if (this.#made !== undefined) this.#feed.release(this.#made.to)
    this.#made = made
  }
}
