import type { Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import type { ApiFeed } from '../feed.ts'
import { localv1 } from '../schema.ts'
import {
  type ApiObject,
  type ApiState,
  changesBetween,
  distance,
  type Frame,
  SET_ENDPOINTS,
  SET_SERVICES,
} from '../state.ts'
import { FrameEncoder, framed } from './rpc.ts'

/** Frames that stand behind each other in one memory. */
interface Run extends Frame {
  readonly operations: number
}

/** The frames of the result of difference(), in its order. Objects that were made together are few runs. */
function* runsBetween(before: ApiState | undefined, after: ApiState): Iterable<Run> {
  const { services, endpoints } = changesBetween(before, after)
  for (const objects of [services.set, endpoints.set]) for (const run of setRuns(objects)) yield run
  const frames = new FrameEncoder()
  for (const { set, paths } of [
    { set: SET_ENDPOINTS, paths: endpoints.deleted },
    { set: SET_SERVICES, paths: services.deleted },
  ])
    for (const path of paths) {
      // It is good until the next one is encoded.
      const memory = frames.encode(localv1.OpItem, { Delete: { Set: set, Path: path } })
      yield { memory, start: 0, end: memory.length, operations: 1 }
    }
}

function* setRuns(objects: readonly ApiObject[]): Iterable<Run> {
  let run: { memory: Buffer; start: number; end: number; operations: number } | undefined
  for (const { memory, start, end } of objects) {
    if (run !== undefined && run.memory === memory && run.end === start) {
      run.end = end
      run.operations++
      continue
    }
    if (run !== undefined) yield run
    run = { memory, start, end, operations: 1 }
  }
  if (run !== undefined) yield run
}

const SYNC: Readonly<Buffer> = framed(localv1.OpItem, { Sync: {} })

const BLOCK_BYTES = 64 * 1024
/** A run of so many bytes is a block as it is; shorter ones are put together. */
const LONG_RUN_BYTES = 16 * 1024

export interface Reader {
  /** Its transfer is dropped: the reader closes it and gets a full resync when it reads again. */
  evicted(): void
}

/**
 * The way from one state to another, as blocks of whole messages. A block is made when the first reader gets there, and
 * shared by all: memory follows the states in transfer, not the readers.
 */
export class Transfer {
  readonly to: ApiState
  /** Undefined for a whole state: one without the Sync, since what has changed meanwhile comes behind it. */
  readonly fromNumber: number | undefined
  readonly readers = new Set<Reader>()
  readonly #runs: Iterator<Run>
  readonly #blocks: Block[] = []
  #next: Run | undefined
  #isDone = false

  private constructor(to: ApiState, from: ApiState | undefined) {
    this.to = to
    this.fromNumber = from?.number
    this.#runs = runsBetween(from, to)[Symbol.iterator]()
    this.#advance()
    // The caller may release `from` afterwards.
    this.#make()
  }

  static between(from: ApiState, to: ApiState): Transfer {
    return new Transfer(to, from)
  }

  static whole(to: ApiState): Transfer {
    return new Transfer(to, undefined)
  }

  get isWhole(): boolean {
    return this.fromNumber === undefined
  }

  /** Only the Sync is left to send. */
  get isEmpty(): boolean {
    return this.#isDone && this.#blocks.every(({ operations }) => operations === 0)
  }

  get isSmall(): boolean {
    return this.#isDone && this.#blocks.length <= 1
  }

  get blocks(): readonly Block[] {
    return this.#blocks
  }

  get bytes(): number {
    return bytesOf(this.#blocks)
  }

  /** Undefined after the last. Readers request one block after the other. */
  block(index: number): Block | undefined {
    if (index === this.#blocks.length && !this.#isDone) this.#make()
    return this.#blocks[index]
  }

  #advance(): void {
    const next = this.#runs.next()
    this.#next = next.done === true ? undefined : next.value
  }

  #make(): void {
    const first = this.#next
    if (first !== undefined && first.end - first.start >= LONG_RUN_BYTES) {
      const { memory, start, end, operations } = first
      this.#blocks.push({ frames: memory.subarray(start, end), operations })
      this.#advance()
      this.#isDone = this.isWhole && this.#next === undefined
    } else this.#gather()
  }

  /** Short runs in one block; behind the last one of all, the Sync. */
  #gather(): void {
    const block = Buffer.allocUnsafeSlow(BLOCK_BYTES)
    const most = block.length - SYNC.length
    let at = 0
    let operations = 0
    for (let run = this.#next; run !== undefined; run = this.#next) {
      const length = run.end - run.start
      if (length >= LONG_RUN_BYTES || at + length > most) break
      run.memory.copy(block, at, run.start, run.end)
      at += length
      operations += run.operations
      this.#advance()
    }
    this.#isDone = this.#next === undefined
    if (this.#isDone && !this.isWhole) at += SYNC.copy(block, at)
    if (at === 0) return
    const frames = block.subarray(0, at)
    this.#blocks.push({ frames: at * 2 < block.length ? alone(frames) : frames, operations })
  }
}

/** Copies to an exactly sized buffer, so a queued write retains neither the 64 KiB block nor the pool. */
function alone(frames: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(frames.length)
  frames.copy(copy)
  return copy
}

export interface Block {
  /** Messages, each behind its prefix. */
  readonly frames: Buffer
  readonly operations: number
}

function bytesOf(blocks: Iterable<Block>): number {
  let bytes = 0
  for (const { frames } of blocks) bytes += frames.length
  return bytes
}

/** The base is made anew when more than this part of its objects, and more than CHANGED_MIN, have changed. */
const CHANGED_PART = 1 / 8
const CHANGED_MIN = 1_000
/** Earlier bases that clients still read. */
const EARLIER_MAX = 3

interface BaseOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  /** An error of ours in making it: the one that there is stays. */
  readonly failed: (error: Error) => void
  /** False: a whole state is made when a client wants it, and kept as long as one reads it. */
  readonly keepsWhole?: boolean
}

/**
 * Keeps a whole state with all blocks made in advance: a new client gets it, followed by what has changed since. The base is
 * made anew in the background when much has changed, so memory and work follow the changes. Its blocks are mostly the memory
 * of the state itself.
 */
class Base {
  readonly #feed: ApiFeed
  readonly #clock: Clock
  readonly #failed: (error: Error) => void
  readonly #keepsWhole: boolean
  /** The states of all of these are held. */
  #made: Transfer | undefined
  #making: Transfer | undefined
  /** Transfers that clients still read, oldest first. */
  readonly #earlier: Transfer[] = []
  #hasEnded = false

  constructor({ feed, clock, failed, keepsWhole = true }: BaseOptions) {
    this.#keepsWhole = keepsWhole
    this.#feed = feed
    this.#clock = clock
    this.#failed = failed
  }

  /** The whole transfer of a recent state; of `newest` when there is none yet. */
  transfer(newest: ApiState): Transfer {
    return this.#made ?? this.#making ?? this.#begin(newest)
  }

  moved(): void {
    const { current } = this.#feed
    if (!this.#keepsWhole || current === undefined || this.#making !== undefined || this.#hasEnded) return
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
    if (transfer === this.#made && !this.#keepsWhole) {
      this.#made = undefined
      this.#earlier.push(transfer)
    }
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
    if (making.readers.size === 0) this.left(making)
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
  readonly #read = new Set<Transfer>()
  /** The large ones of these; the one that was read on last is the last. */
  readonly #large = new Set<Transfer>()

  constructor(options: BaseOptions) {
    this.#feed = options.feed
    this.#base = new Base(options)
  }

  /**
   * Gives the transfer from `from`, which the reader holds, to the newest state `to`; undefined `from` gets a whole
   * state from which the reader continues. Each opened transfer has to be closed.
   */
  open(from: ApiState | undefined, to: ApiState, reader: Reader): Transfer {
    const transfer = from === undefined ? this.#base.transfer(to) : this.#between(from, to)
    transfer.readers.add(reader)
    if (!transfer.isWhole) this.#read.add(transfer)
    this.progressed(transfer)
    return transfer
  }

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

  /** Keeps the transfers to an older state only for their present readers. */
  moved(): void {
    for (const transfer of this.#kept.values()) this.#drop(transfer)
    this.#base.moved()
  }

  /** Readers have closed theirs. */
  end(): void {
    for (const transfer of this.#kept.values()) this.#drop(transfer)
    this.#base.end()
  }

  get heldBytes(): number {
    const all = [...this.#kept.values(), ...this.#read, ...this.#base.transfers]
    return bytesOf(new Set(all.flatMap(transfer => transfer.blocks)))
  }

  #between(from: ApiState, to: ApiState): Transfer {
    const known = this.#kept.get(from.number)
    if (known?.to === to) return known
    // This transfer leads to an older state: the request came between a newer state and moved().
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
