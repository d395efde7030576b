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

/** The frames of the result of difference(), in its order. Those that stand behind each other in one memory are one run. */
function* runsBetween(before: ApiState | undefined, after: ApiState): Iterable<Frame> {
  const { services, endpoints } = changesBetween(before, after)
  yield* setRuns(services.set)
  yield* setRuns(endpoints.set)
  const frames = new FrameEncoder()
  for (const { set, paths } of [
    { set: SET_ENDPOINTS, paths: endpoints.deleted },
    { set: SET_SERVICES, paths: services.deleted },
  ])
    for (const path of paths) {
      // It is good until the next one is encoded.
      const memory = frames.encode(localv1.OpItem, { Delete: { Set: set, Path: path } })
      yield { memory, start: 0, end: memory.length }
    }
}

function* setRuns(objects: readonly ApiObject[]): Iterable<Frame> {
  let run: Frame | undefined
  for (const { memory, start, end } of objects) {
    if (run !== undefined && run.memory === memory && run.end === start) {
      run = { memory, start: run.start, end }
      continue
    }
    if (run !== undefined) yield run
    run = { memory, start, end }
  }
  if (run !== undefined) yield run
}

const SYNC: Readonly<Buffer> = framed(localv1.OpItem, { Sync: {} })

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
  /** Only the Sync is left to send. */
  readonly isEmpty: boolean
  readonly readers = new Set<Reader>()
  readonly #runs: Iterator<Frame>
  readonly #blocks: Buffer[] = []
  #next: Frame | undefined
  #isDone = false

  /** The caller may release `from` afterwards. */
  constructor(from: ApiState | undefined, to: ApiState) {
    this.to = to
    this.fromNumber = from?.number
    this.#runs = runsBetween(from, to)[Symbol.iterator]()
    this.#advance()
    this.isEmpty = this.#next === undefined
    this.#make()
  }

  get isWhole(): boolean {
    return this.fromNumber === undefined
  }

  get isSmall(): boolean {
    return this.#isDone && this.#blocks.length <= 1
  }

  /** Messages, each behind its prefix; undefined after the last. Readers request one block after the other. */
  block(index: number): Buffer | undefined {
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
      this.#blocks.push(first.memory.subarray(first.start, first.end))
      this.#advance()
      this.#isDone = this.isWhole && this.#next === undefined
    } else this.#gather()
  }

  /** Short runs in one block; behind the last one of all, the Sync. */
  #gather(): void {
    // 64 KiB, as the memory of objects has (docs/decisions/0019).
    const block = Buffer.allocUnsafeSlow(64 * 1024)
    const most = block.length - SYNC.length
    let at = 0
    for (let run = this.#next; run !== undefined; run = this.#next) {
      const length = run.end - run.start
      if (length >= LONG_RUN_BYTES || at + length > most) break
      run.memory.copy(block, at, run.start, run.end)
      at += length
      this.#advance()
    }
    this.#isDone = this.#next === undefined
    if (this.#isDone && !this.isWhole) at += SYNC.copy(block, at)
    if (at === 0) return
    const frames = block.subarray(0, at)
    this.#blocks.push(at * 2 < block.length ? alone(frames) : frames)
  }
}

/** Copies to an exactly sized buffer, so a queued write retains neither the 64 KiB block nor the pool. */
function alone(frames: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(frames.length)
  frames.copy(copy)
  return copy
}

/** A whole state that clients read is given to others until more than this part of its objects, and 1,000, have changed. */
const CHANGED_PART = 1 / 8
/** So many transfers of more than a block are read at a time, and so many differences are kept for other readers. */
const TRANSFERS_MAX = 16

/** Holds the transfers of one feed. A reader that stalls is evicted and gets a full resync when it reads again. */
export class Transfers {
  readonly #feed: ApiFeed
  /** The newest whole state that clients read. */
  #whole: Transfer | undefined
  /** Transfers from the state of that number to the newest. */
  readonly #kept = new Map<number, Transfer>()
  /** Large ones that are read; the one that was read on last is the last. */
  readonly #large = new Set<Transfer>()

  constructor(feed: ApiFeed) {
    this.#feed = feed
  }

  /**
   * Gives the transfer from `from`, which the reader holds, to the newest state `to`; undefined `from` gets a whole
   * state from which the reader continues. Each opened transfer has to be closed.
   */
  open(from: ApiState | undefined, to: ApiState, reader: Reader): Transfer {
    const transfer = from === undefined ? this.#wholeFor(to) : this.#between(from, to)
    transfer.readers.add(reader)
    this.progressed(transfer)
    return transfer
  }

  progressed(transfer: Transfer): void {
    if (transfer.isSmall) return
    this.#large.delete(transfer)
    this.#large.add(transfer)
    const [longest] = this.#large
    if (longest !== undefined && this.#large.size > TRANSFERS_MAX)
      for (const reader of [...longest.readers]) reader.evicted()
  }

  close(transfer: Transfer, reader: Reader): void {
    transfer.readers.delete(reader)
    if (transfer.readers.size > 0) return
    this.#large.delete(transfer)
    if (transfer === this.#whole) this.#whole = undefined
    if (!this.#isKept(transfer)) this.#feed.release(transfer.to)
    else if (!transfer.isSmall) this.#drop(transfer)
  }

  /** Keeps the transfers to an older state only for their present readers. */
  moved(): void {
    for (const transfer of this.#kept.values()) this.#drop(transfer)
  }

  #wholeFor(to: ApiState): Transfer {
    const most = Math.max(1_000, (to.services.size + to.endpoints.size) * CHANGED_PART)
    if (this.#whole !== undefined && distance(this.#whole.to, to) <= most) return this.#whole
    this.#whole = new Transfer(undefined, to)
    this.#feed.hold(to)
    return this.#whole
  }

  #between(from: ApiState, to: ApiState): Transfer {
    const known = this.#kept.get(from.number)
    if (known?.to === to) return known
    // This transfer leads to an older state: the request came between a newer state and moved().
    if (known !== undefined) this.#drop(known)
    const transfer = new Transfer(from, to)
    this.#feed.hold(to)
    this.#kept.set(from.number, transfer)
    const [oldest] = this.#kept.values()
    if (oldest !== undefined && this.#kept.size > TRANSFERS_MAX) this.#drop(oldest)
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
