import type { ApiFeed } from '../feed.ts'
import type { ApiState } from '../state.ts'
import { Base, type BaseOptions } from './base.ts'
import { bytesOf, type Reader, Transfer } from './transfer.ts'

/** Differences of more than a block that clients are reading. */
const LARGE_MAX = 16
/** Differences that are kept for other readers of the same state. */
const KEPT_MAX = 16

/** Holds the transfers of one feed. A reader that stalls is evicted and gets a full resync when it reads again. */
export class Transfers {
  readonly #feed: ApiFeed
  readonly #base: Base
  /** Transfers from the state of that number to the newest. */
  readonly #kept = new Map<number, Transfer>()
  /** Differences that have readers. */
  readonly #read = new Set<Transfer>()
  /** The large ones of these; the one that was read on last is the last. */
  readonly #large = new Set<Transfer>()

  constructor(options: BaseOptions) {
    this.#feed = options.feed
    this.#base = new Base(options)
  }

  /**
   * What leads a reader to the newest state `to`, or undefined `from` (else it is held by the reader) to a whole state from
   * which it goes on. What is opened has to be closed.
   */
  open(from: ApiState | undefined, to: ApiState, reader: Reader): Transfer {
    const transfer = from === undefined ? this.#base.transfer(to) : this.#between(from, to)
    transfer.readers.add(reader)
    if (!transfer.isWhole) this.#read.add(transfer)
    this.progressed(transfer)
    return transfer
  }

  /** A reader continues. */
  progressed(transfer: Transfer): void {
    if (transfer.isWhole || transfer.isSmall) return
    this.#large.delete(transfer)
    this.#large.add(transfer)
    const [longest] = this.#large
    if (longest !== undefined && this.#large.size > LARGE_MAX)
      for (const reader of [...longest.readers]) reader.evicted()
  }

  close(transfer: Transfer, reader: Reader): void {
    transfer.readers.delete(reader)
    if (transfer.readers.size > 0) return
    if (transfer.isWhole) {
      this.#base.left(transfer)
      return
    }
    this.#read.delete(transfer)
    this.#large.delete(transfer)
    if (!this.#isKept(transfer)) this.#feed.release(transfer.to)
    else if (!transfer.isSmall) this.#drop(transfer)
  }

  /** There is a newer state: what led to the one before is kept for its readers only. */
  moved(): void {
    for (const transfer of this.#kept.values()) this.#drop(transfer)
    this.#base.moved()
  }

  /** Readers have closed theirs. */
  end(): void {
    for (const transfer of this.#kept.values()) this.#drop(transfer)
    this.#base.end()
  }

  /** Bytes of all blocks that exist. */
  get heldBytes(): number {
    const all = [...this.#kept.values(), ...this.#read, ...this.#base.transfers]
    return bytesOf(new Set(all.flatMap(transfer => transfer.blocks)))
  }

  #between(from: ApiState, to: ApiState): Transfer {
    const known = this.#kept.get(from.number)
    if (known?.to === to) return known
    // It leads to the state before: a request came between a newer one and moved().
    if (known !== undefined) this.#drop(known)
    const transfer = Transfer.between(from, to)
    this.#feed.hold(to)
    this.#kept.set(from.number, transfer)
    const [oldest] = this.#kept.values()
    if (oldest !== undefined && this.#kept.size > KEPT_MAX) this.#drop(oldest)
    return transfer
  }

  #isKept(transfer: Transfer): boolean {
    return transfer.fromNumber !== undefined && this.#kept.get(transfer.fromNumber) === transfer
  }

  /** Its last reader closes it. */
  #drop(transfer: Transfer): void {
    if (transfer.fromNumber !== undefined) this.#kept.delete(transfer.fromNumber)
    if (transfer.readers.size === 0) this.#feed.release(transfer.to)
  }
}
