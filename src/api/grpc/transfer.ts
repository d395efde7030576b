import { SYNC_BYTES, writeSync } from '../op-item.ts'
import type { ApiState, Run } from '../state.ts'
import { runsBetween } from './runs.ts'

const BLOCK_BYTES = 64 * 1024
/** A run of so many bytes is a block as it is; shorter ones are put together. */
const LONG_RUN_BYTES = 16 * 1024

/**
 * What leads from one state to another, with the Sync that ends it, as blocks of whole messages. A block is made when the
 * first reader gets there, and shared by all: memory follows the states in transfer, not the readers.
 */
export class Transfer {
  readonly to: ApiState
  /** Undefined for a whole state. */
  readonly fromNumber: number | undefined
  readonly #runs: Iterator<Run>
  readonly #blocks: Block[] = []
  #next: Run | undefined
  #isDone = false
  readers = 0

  private constructor(
    to: ApiState,
    runs: Iterable<Run>,
    { fromNumber, blocks = [] }: { readonly fromNumber?: number; readonly blocks?: readonly Block[] } = {},
  ) {
    this.to = to
    this.fromNumber = fromNumber
    this.#blocks.push(...blocks)
    this.#runs = runs[Symbol.iterator]()
    this.#advance()
    // At once: what the runs begin from may be let go afterwards.
    this.#make()
  }

  static between(from: ApiState, to: ApiState): Transfer {
    return new Transfer(to, runsBetween(from, to), { fromNumber: from.number })
  }

  static whole(to: ApiState): Transfer {
    return new Transfer(to, runsBetween(undefined, to))
  }

  /** A whole state: the blocks of an earlier one, of which all are made, and what has changed since. */
  static since(earlier: Transfer, to: ApiState): Transfer {
    const { frames, operations } = earlier.#blocks.at(-1) ?? NO_BLOCK
    const last = { frames: frames.subarray(0, frames.length - SYNC_BYTES), operations }
    const before = earlier.#blocks.slice(0, -1)
    const blocks = last.frames.length === 0 ? before : [...before, last]
    return new Transfer(to, runsBetween(earlier.to, to), { blocks })
  }

  get isEmpty(): boolean {
    return this.#blocks[0]?.operations === 0
  }

  get isSmall(): boolean {
    return this.#isDone && this.#blocks.length === 1
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
    const next = this.#runs.next()
    this.#next = next.done === true ? undefined : next.value
  }

  #make(): void {
    const first = this.#next
    if (first !== undefined && first.end - first.start >= LONG_RUN_BYTES) {
      const { memory, start, end, operations } = first
      this.#blocks.push({ frames: memory.subarray(start, end), operations })
      this.#advance()
    } else this.#gather()
  }

  /** Short runs in one block; behind the last one of all, the Sync. */
  #gather(): void {
    const block = Buffer.allocUnsafeSlow(BLOCK_BYTES)
    let at = 0
    let operations = 0
    for (let run = this.#next; run !== undefined; run = this.#next) {
      const length = run.end - run.start
      if (length >= LONG_RUN_BYTES || at + length + SYNC_BYTES > block.length) break
      run.memory.copy(block, at, run.start, run.end)
      at += length
      operations += run.operations
      this.#advance()
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

/** Their length together. */
export function bytesOf(blocks: Iterable<Block>): number {
  let bytes = 0
  for (const { frames } of blocks) bytes += frames.length
  return bytes
}
