import type { Writable } from 'node:stream'
import type { Clock } from '../base/clock.ts'
import { within } from '../base/within.ts'

/** What a reader has once the process is told to end: one that reads has long read on by then. */
const PATIENCE_MS = 300

/**
 * A standard stream whose far end may go away (`kprobe dump | head`) or fail (a full disk). From then on what is
 * written is dropped: the command goes on to its own end, and a daemon serves on.
 */
export class Outlet {
  readonly #stream: Writable
  readonly #lost = new AbortController()
  #used = false
  #failure: NodeJS.ErrnoException | undefined

  constructor(stream: Writable) {
    this.#stream = stream
    stream.on('error', (error: NodeJS.ErrnoException) => this.#lose(error))
  }

  /** Aborted when writing fails, with the error as its reason. */
  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Why writing failed; undefined as well when its reader has merely seen enough. */
  get failure(): Error | undefined {
    return this.#failure?.code === 'EPIPE' ? undefined : this.#failure
  }

  /** What was written and not taken yet: a reader may be slow, or stand still. */
  get backlogBytes(): number {
    return this.#stream.writableLength
  }

  write(text: string): void {
    if (this.#failure !== undefined) return
    this.#used = true
    try {
      this.#stream.write(text)
    } catch (error) {
      // Node 20 throws what it could not write to a file.
      if (!isErrno(error)) throw error
      this.#lose(error)
    }
  }

  /**
   * Resolves when all that was written is on its way or lost: an empty write ends after those before it. A reader that
   * stands still is waited for until `stop` is aborted, and that is a failure then.
   */
  async drained({ stop, clock }: { readonly stop: AbortSignal; readonly clock: Clock }): Promise<void> {
    if (!this.#used || this.#failure !== undefined) return
    const taken = new Promise<void>(done => this.#stream.write('', () => done()))
    await Promise.race([taken, aborted(stop)])
    if (!(await within(clock, PATIENCE_MS, taken)))
      this.#failure ??= new Error(`reader stopped with ${this.backlogBytes} bytes unwritten`)
    // An error is told a turn after its write has ended.
    await new Promise(done => setImmediate(done))
  }

  #lose(error: NodeJS.ErrnoException): void {
    if (this.#failure !== undefined) return
    this.#failure = error
    this.#lost.abort(error)
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    signal.addEventListener('abort', () => resolve(), { once: true })
    if (signal.aborted) resolve()
  })
}

function isErrno(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'code' in error
}
