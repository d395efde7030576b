import { type Clock, within } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Extent } from '../modes/mode.ts'
import { isMostGone } from '../source/source.ts'

interface RemovalGuardOptions {
  readonly clock: Clock
  readonly log: Log
  /** Reads the source again, from the API server; absent, or without a result, where the source cannot. */
  readonly confirm?: () => Promise<void> | undefined
}

const DOUBTED =
  'the source has less than half of what the kernel serves; kprobe reads it once more, from the API server, before it removes the rest'
const UNCONFIRMED =
  'the source has less than half of what the kernel serves, and the API server has not confirmed that; kprobe removes nothing until then'

/**
 * Keeps a first pass from removing most of the kernel state on the word of one list. After a restart, only the kernel
 * remembers earlier objects.
 */
export class RemovalGuard {
  readonly #options: RemovalGuardOptions
  readonly #over = new AbortController()
  #isSettled = false
  #isLogged = false

  constructor(options: RemovalGuardOptions) {
    this.#options = options
  }

  /** Ends the wait for a second read; its pass then commits nothing. */
  stop(): void {
    this.#over.abort()
  }

  /** True once the source was read again, or the guard was stopped: the pass commits nothing. Throws if no source confirms the removal in time. */
  async doubts(kernel: Extent, source: Extent): Promise<boolean> {
    if (this.#over.signal.aborted) return true
    if (this.#isSettled) return false
    const { clock, log, confirm } = this.#options
    const isDoubtful =
      isMostGone(kernel.frontends, kernel.frontends - source.frontends) ||
      isMostGone(kernel.endpoints, kernel.endpoints - source.endpoints)
    const read = isDoubtful ? confirm?.() : undefined
    this.#isSettled = read === undefined
    if (read === undefined) return false
    if (!this.#isLogged) log.warn({ kernel, source }, DOUBTED)
    this.#isLogged = true
    const over = new Promise<void>(done => this.#over.signal.addEventListener('abort', () => done()))
    // A second read of a large cluster takes seconds; after a minute without its end, the next pass asks again.
    const hasEnded = await within(clock, 60_000, Promise.race([read, over]))
    if (this.#over.signal.aborted) return true
    this.#isSettled = hasEnded
    if (!this.#isSettled) throw new Error(UNCONFIRMED)
    return true
  }
}
