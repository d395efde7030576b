import { FrameEncoder, framed } from '../frame.ts'
import { localv1 } from '../schema.ts'
import {
  type ApiObject,
  type ApiState,
  changesBetween,
  type Run,
  SET_ENDPOINTS,
  SET_SERVICES,
} from '../state.ts'

/** The frames of the result of difference(), in its order; a whole state that was made at once is few runs. */
function* runsBetween(before: ApiState | undefined, after: ApiState): Iterable<Run> {
  if (before === undefined && after.runs !== undefined) {
    yield* after.runs
    return
  }
  const { services, endpoints } = changesBetween(before, after)
  yield* setRuns(services.set)
  yield* setRuns(endpoints.set)
  yield* deleteRuns(SET_ENDPOINTS, endpoints.deleted)
  yield* deleteRuns(SET_SERVICES, services.deleted)
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

/** Each is good until the next. */
function* deleteRuns(set: number, paths: readonly string[]): Iterable<Run> {
  const frames = new FrameEncoder()
  for (const path of paths) {
    const memory = frames.encode(localv1.OpItem, { Delete: { Set: set, Path: path } })
    yield { memory, start: 0, end: memory.length, operations: 1 }
  }
}

const SYNC: Readonly<Buffer> = framed(localv1.OpItem, { Sync: {} })

const BLOCK_BYTES = 64 * 1024
/** A run of so many bytes is a block as it is; shorter ones are put together. */
const LONG_RUN_BYTES = 16 * 1024

/** A client that is sent a transfer. */
export interface Reader {
  /** Its transfer is dropped: the reader closes it and gets a full resync when it reads again. */
  evicted(): void
}

/**
 * What leads from one state to another, as blocks of whole messages. A block is made when the first reader gets there, and
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
    // At once: `from` may be let go afterwards.
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

  /** There is nothing to send but the Sync. */
  get isEmpty(): boolean {
    return this.#isDone && this.#blocks.every(({ operations }) => operations === 0)
  }

  get isSmall(): boolean {
    return this.#isDone && this.#blocks.length <= 1
  }

  /** The blocks made so far. */
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

/** Their length together. */
export function bytesOf(blocks: Iterable<Block>): number {
  let bytes = 0
  for (const { frames } of blocks) bytes += frames.length
  return bytes
}
