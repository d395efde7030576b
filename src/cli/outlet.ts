import type { Writable } from 'node:stream'
import type { Clock } from '../base/clock.ts'
import { within } from '../base/within.ts'

/** Time for a reader to read the rest once the process is to end. A reader that works needs less. */
const PATIENCE_MS = 300

/**
 * A standard stream whose reader may go away (`kprobe dump | head`) or whose file may fail (a full disk). After a
 * failure it drops all output: the command runs to its end, and a daemon serves on.
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

  /** The reason why writing failed; undefined if the reader merely closed the pipe (EPIPE). */
  get failure(): Error | undefined {
    return this.#failure?.code === 'EPIPE' ? undefined : this.#failure
  }

  /** Written bytes that the reader has not read yet; a reader may be slow, or stall. */
  get backlogBytes(): number {
    return this.#stream.writableLength
  }

  write(text: string): void {
    if (this.#failure !== undefined) return
    this.#used = true
    try {
      this.#stream.write(text)
    } catch (error) {
      // Node 20 throws errors of writes to a file.
      if (!isErrno(error)) throw error
      this.#lose(error)
    }
  }

  /** Resolves when all output is written or lost, or `stop` is aborted. */
  async written(stop: AbortSignal): Promise<void> {
    if (this.#used && this.#failure === undefined) await Promise.race([this.#taken(), aborted(stop)])
  }

  /** Waits in the same way. Gives a stalled reader a moment more after `stop`, and then records a failure. */
  async drained({ stop, clock }: { readonly stop: AbortSignal; readonly clock: Clock }): Promise<void> {
    if (!this.#used || this.#failure !== undefined) return
    const taken = this.#taken()
    await Promise.race([taken, aborted(stop)])
    if (!(await within(clock, PATIENCE_MS, taken)))
      this.#failure ??= new Error(`reader stopped with ${this.backlogBytes} bytes unwritten`)
    // Node reports an error one turn after the write has ended.
    await new Promise(done => setImmediate(done))
  }

  /** An empty write ends after those before it. */
  #taken(): Promise<void> {
    return new Promise(done => this.#stream.write('', () => done()))
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
