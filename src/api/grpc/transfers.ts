import type { Cancel, Clock } from '../../base/clock.ts'
import type { ApiFeed } from '../feed.ts'
import type { ApiState } from '../state.ts'
import { Base } from './base.ts'
import { bytesOf, Transfer } from './transfer.ts'

/** Whole states that are sent at a time; who comes while all are, gets the newest of them and then what has changed. */
const WHOLE_MAX = 4
/** Differences of more than a block that are sent at a time. */
const LARGE_MAX = 16
/** Small differences kept for others who come from the same state. */
const SMALL_KEPT_MAX = 16
/** For how long a whole state is kept for the next client when nobody reads it. */
const UNREAD_MS = 10_000

export interface Opened {
  readonly transfer: Transfer
  /** It does not begin where the reader is: the reader has to forget everything first. */
  readonly isReset: boolean
}

/** The transfers of one feed. */
export class Transfers {
  readonly #feed: ApiFeed
  readonly #clock: Clock
  readonly #base: Base
  /** Oldest first. */
  readonly #whole: Transfer[] = []
  readonly #large = new Set<Transfer>()
  /** From the state of that number to the newest. */
  readonly #small = new Map<number, Transfer>()
  readonly #read = new Set<Transfer>()
  #forgetting: Cancel | undefined

  constructor(feed: ApiFeed, clock: Clock) {
    this.#feed = feed
    this.#clock = clock
    this.#base = new Base(feed, clock)
  }

  /** `from` is held by the reader, `to` is the newest. What is opened has to be closed. */
  open(from: ApiState | undefined, to: ApiState): Opened {
    if (from === undefined) return { transfer: this.#begin(this.#wholeOf(to)), isReset: false }
    const known = this.#small.get(from.number)
    if (known?.to === to) return { transfer: this.#begin(known), isReset: false }
    const transfer = Transfer.between(from, to)
    if (!transfer.isSmall && this.#large.size >= LARGE_MAX)
      return { transfer: this.#begin(this.#wholeOf(to)), isReset: true }
    this.#feed.hold(to)
    if (transfer.isSmall) this.#keep(from.number, transfer)
    else this.#large.add(transfer)
    return { transfer: this.#begin(transfer), isReset: false }
  }

  close(transfer: Transfer): void {
    transfer.readers--
    if (transfer.readers > 0) return
    this.#read.delete(transfer)
    if (this.#whole.includes(transfer)) this.#forgetLater(transfer)
    else if (transfer.fromNumber === undefined || this.#small.get(transfer.fromNumber) !== transfer) {
      this.#large.delete(transfer)
      this.#feed.release(transfer.to)
    }
  }

  /** There is a newer state: what led to the one before is kept for its readers only. */
  moved(): void {
    this.#letGo()
    this.#base.moved()
  }

  /** Readers have closed theirs. */
  end(): void {
    this.#letGo()
    this.#forgetting?.()
    this.#base.end()
  }

  /** Bytes of all blocks that exist, and the transfers that have readers. */
  held(): { readonly bytes: number; readonly transfers: number } {
    const all = [...this.#whole, ...this.#large, ...this.#small.values(), ...this.#read]
    const blocks = new Set([...all, ...this.#base.transfers].flatMap(transfer => transfer.blocks))
    return { bytes: bytesOf(blocks), transfers: this.#read.size }
  }

  #begin(transfer: Transfer): Transfer {
    transfer.readers++
    this.#read.add(transfer)
    return transfer
  }

  #wholeOf(to: ApiState): Transfer {
    const newest = this.#whole.at(-1)
    if (newest !== undefined && (newest.to === to || this.#whole.length >= WHOLE_MAX)) return newest
    const transfer = this.#base.transferTo(to)
    this.#feed.hold(to)
    this.#whole.push(transfer)
    return transfer
  }

  #keep(fromNumber: number, transfer: Transfer): void {
    const before = this.#small.get(fromNumber)
    if (before !== undefined) this.#drop(fromNumber, before)
    const [oldest] = this.#small
    if (oldest !== undefined && this.#small.size >= SMALL_KEPT_MAX) this.#drop(...oldest)
    this.#small.set(fromNumber, transfer)
  }

  /** Whoever still reads it closes it. */
  #drop(number: number, transfer: Transfer): void {
    this.#small.delete(number)
    if (transfer.readers === 0) this.#feed.release(transfer.to)
  }

  #forgetLater(transfer: Transfer): void {
    if (transfer.to !== this.#feed.current || transfer !== this.#whole.at(-1)) {
      this.#forget(transfer)
      return
    }
    this.#forgetting?.()
    this.#forgetting = this.#clock.after(UNREAD_MS, () => {
      if (transfer.readers === 0 && this.#whole.includes(transfer)) this.#forget(transfer)
    })
  }

  #letGo(): void {
    for (const [number, transfer] of this.#small) this.#drop(number, transfer)
    for (const transfer of [...this.#whole]) if (transfer.readers === 0) this.#forget(transfer)
  }

  #forget(transfer: Transfer): void {
    this.#whole.splice(this.#whole.indexOf(transfer), 1)
    this.#feed.release(transfer.to)
  }
}
