import type { Cancel, Clock } from '../../base/clock.ts'
import type { ApiFeed } from '../feed.ts'
import { type ApiOperation, type ApiState, difference } from '../state.ts'
import { roomFor, SYNC_BYTES, writeOperation, writeSync } from './op-item.ts'

const BLOCK_BYTES = 64 * 1024
/** Whole states that are sent at a time; who comes while all are, gets the newest of them and then what has changed. */
const WHOLE_MAX = 4
/** Differences of more than a block that are sent at a time. */
const LARGE_MAX = 16
/** Small differences kept for others who come from the same state. */
const SMALL_KEPT_MAX = 16
/** For how long a whole state is kept for the next client when nobody reads it. */
const UNREAD_MS = 10_000
/** For how long its blocks are, for those who get what has changed since behind them. */
const BASE_MS = 600_000

/**
 * What leads from one state to another, with the Sync that ends it, as blocks of whole messages. A block is made when the
 * first reader gets there, and shared by all: memory follows the states in transfer, not the readers.
 */
export class Transfer {
  readonly to: ApiState
  /** Undefined for a whole state. */
  readonly fromNumber: number | undefined
  /** A whole state, and nothing that was sent before is in it. */
  readonly isAnew: boolean
  readonly #operations: Iterator<ApiOperation>
  readonly #blocks: Block[] = []
  #next: ApiOperation | undefined
  #isDone = false
  readers = 0

  constructor(from: ApiState | undefined, to: ApiState, blocks: readonly Block[] = []) {
    this.to = to
    this.isAnew = from === undefined
    this.fromNumber = blocks.length === 0 ? from?.number : undefined
    this.#blocks.push(...blocks)
    this.#operations = difference(from, to)[Symbol.iterator]()
    this.#advance()
    // At once: `from` may be let go afterwards.
    this.#make()
  }

  /** A whole state: the blocks of an earlier one, of which all are made, and what has changed since. */
  static since(earlier: Transfer, to: ApiState): Transfer {
    const { frames, operations } = earlier.#blocks.at(-1) ?? NO_BLOCK
    const last = { frames: frames.subarray(0, frames.length - SYNC_BYTES), operations }
    return new Transfer(earlier.to, to, [...earlier.#blocks.slice(0, -1), last])
  }

  get isEmpty(): boolean {
    return this.#blocks[0]?.operations === 0
  }

  get isSmall(): boolean {
    return this.#isDone && this.#blocks.length === 1
  }

  /** Every block is made: what is not new in it fits into one. */
  get isDone(): boolean {
    return this.#isDone
  }

  /** Those that are made. */
  get blocks(): readonly Block[] {
    return this.#blocks
  }

  get bytes(): number {
    return bytesOf(this.#blocks)
  }

  /** Undefined after the last. Readers ask for one block after the other. */
  block(index: number): Block | undefined {
    if (index === this.#blocks.length && !this.#isDone) this.#make()
    return this.#blocks[index]
  }

  #advance(): void {
    const next = this.#operations.next()
    this.#next = next.done === true ? undefined : next.value
  }

  #make(): void {
    let room = this.#next === undefined ? 0 : roomFor(this.#next)
    const block = Buffer.allocUnsafeSlow(Math.max(BLOCK_BYTES, room + SYNC_BYTES))
    let at = 0
    let operations = 0
    while (this.#next !== undefined && at + room + SYNC_BYTES <= block.length) {
      at = writeOperation(block, at, this.#next)
      operations++
      this.#advance()
      if (this.#next !== undefined) room = roomFor(this.#next)
    }
    this.#isDone = this.#next === undefined
    if (this.#isDone) at = writeSync(block, at)
    const frames = block.subarray(0, at)
    // Who waits for it to be read does not hold what it does not fill.
    this.#blocks.push({ frames: at * 2 < block.length ? Buffer.from(frames) : frames, operations })
  }
}

export interface Block {
  /** Messages, each behind its prefix. */
  readonly frames: Buffer
  readonly operations: number
}

const NO_BLOCK: Block = { frames: Buffer.alloc(SYNC_BYTES), operations: 0 }

function bytesOf(blocks: Iterable<Block>): number {
  let bytes = 0
  for (const { frames } of blocks) bytes += frames.length
  return bytes
}

export interface Opened {
  readonly transfer: Transfer
  /** It does not begin where the reader is: the reader has to forget everything first. */
  readonly isReset: boolean
}

/** The transfers of one feed. */
export class Transfers {
  readonly #feed: ApiFeed
  readonly #clock: Clock
  /** Oldest first. */
  readonly #whole: Transfer[] = []
  readonly #large = new Set<Transfer>()
  /** From the state of that number to the newest. */
  readonly #small = new Map<number, Transfer>()
  readonly #read = new Set<Transfer>()
  #forgetting: Cancel | undefined
  /** A whole state that nobody reads as it is: the next client gets it with what has changed since. */
  #base: Transfer | undefined
  #baseGoes: Cancel | undefined

  constructor(feed: ApiFeed, clock: Clock) {
    this.#feed = feed
    this.#clock = clock
  }

  /** `from` is held by the reader, `to` is the newest. What is opened has to be closed. */
  open(from: ApiState | undefined, to: ApiState): Opened {
    if (from === undefined) return { transfer: this.#begin(this.#wholeOf(to)), isReset: false }
    const known = this.#small.get(from.number)
    if (known?.to === to) return { transfer: this.#begin(known), isReset: false }
    const transfer = new Transfer(from, to)
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
    for (const [number, transfer] of this.#small) this.#drop(number, transfer)
    for (const transfer of [...this.#whole]) if (transfer.readers === 0) this.#forget(transfer)
  }

  /** Readers have closed theirs. */
  end(): void {
    this.moved()
    this.#forgetting?.()
    this.#letBaseGo()
  }

  /** Bytes of all blocks that exist, and the transfers that have readers. */
  held(): { readonly bytes: number; readonly transfers: number } {
    const all = [...this.#whole, ...this.#large, ...this.#small.values(), ...this.#read]
    if (this.#base !== undefined) all.push(this.#base)
    const blocks = new Set(all.flatMap(transfer => transfer.blocks))
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
    const transfer = this.#sinceBase(to) ?? new Transfer(undefined, to)
    this.#feed.hold(to)
    this.#whole.push(transfer)
    return transfer
  }

  /** Undefined when there is nothing to begin with, or more has changed than fits into a block: then all is made anew. */
  #sinceBase(to: ApiState): Transfer | undefined {
    const base = this.#base
    if (base === undefined) return undefined
    const transfer = Transfer.since(base, to)
    if (transfer.isDone) {
      this.#keepBase(base)
      return transfer
    }
    this.#letBaseGo()
    return undefined
  }

  #keepBase(base: Transfer): void {
    this.#base = base
    this.#baseGoes?.()
    this.#baseGoes = this.#clock.after(BASE_MS, () => this.#letBaseGo())
  }

  #letBaseGo(): void {
    this.#baseGoes?.()
    if (this.#base !== undefined) this.#feed.release(this.#base.to)
    this.#base = undefined
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

  #forget(transfer: Transfer): void {
    this.#whole.splice(this.#whole.indexOf(transfer), 1)
    const isOlder = this.#base !== undefined && this.#base.to.number > transfer.to.number
    if (!transfer.isAnew || !transfer.isDone || isOlder) {
      this.#feed.release(transfer.to)
      return
    }
    this.#letBaseGo()
    this.#keepBase(transfer)
  }
}
