import { type Clock, Pacer } from './clock.ts'

/** The result of a read: a text, or the reason why there is none. */
export type ReadResult<E> = { readonly text: string } | { readonly error: E }

interface FollowedTextOptions<E> {
  readonly clock: Clock
  readonly pollMs: number
  readonly text: string
  readonly read: () => Promise<ReadResult<E>>
  /** Uses a new text. Gives an error where it cannot be used; the next read waits until this has resolved. */
  readonly use: (text: string) => Promise<E | undefined> | E | undefined
  /** The text in use stays. Called once for each error. */
  readonly failed: (error: E) => void
  /** Called after failed: the text in use is there again. */
  readonly recovered?: () => void
  /** Called after hurry: there is no text but the one in use. */
  readonly unchanged?: () => void
}

/** A text counts once two reads this far apart have found it: a writer may be between two writes. */
const QUIET_MS = 100

/**
 * Follows the text of files by their content, so that it does not matter how it changes: rewritten, replaced by a rename,
 * or behind the links that kubelet swaps for a ConfigMap or a Secret. What is missing or cannot be used is reported
 * once and changes nothing. Errors are compared by their JSON.
 */
export class FollowedText<E extends string | readonly object[]> {
  readonly #options: FollowedTextOptions<E>
  readonly #pacer: Pacer
  #current: string
  #last: ReadResult<E>
  #reported: ReadResult<E> | undefined
  /** The next result is reported even if nothing is new. */
  #isAsked = false

  constructor(options: FollowedTextOptions<E>) {
    this.#options = options
    this.#current = options.text
    this.#last = { text: options.text }
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#read() })
    this.#pacer.wake(options.pollMs)
  }

  /** Reads now, and reports the result even if nothing is new. */
  hurry(): void {
    this.#isAsked = true
    // The current read soon leads to a result.
    if (!this.#pacer.isRunning) this.#pacer.wake()
  }

  /** Nothing is reported from now on. Resolves when the current read is over. */
  stop(): Promise<void> {
    return this.#pacer.stop()
  }

  async #read(): Promise<number> {
    const { pollMs, read, failed, recovered, unchanged } = this.#options
    const found = await read()
    if (this.#pacer.isStopped) return pollMs
    const isStable = isSame(found, this.#last)
    this.#last = found
    if (!isStable) {
      this.#pacer.rest(QUIET_MS)
      return QUIET_MS
    }
    const isAsked = this.#isAsked
    this.#isAsked = false
    if (!isAsked && this.#reported !== undefined && isSame(found, this.#reported)) return pollMs
    if ('error' in found) {
      this.#reported = found
      failed(found.error)
    } else if (found.text !== this.#current) await this.#use(found)
    else if (this.#reported !== undefined) {
      this.#reported = undefined
      recovered?.()
    } else if (isAsked) unchanged?.()
    return pollMs
  }

  async #use(found: { readonly text: string }): Promise<void> {
    const error = await this.#options.use(found.text)
    this.#reported = error === undefined ? undefined : found
    if (error === undefined) this.#current = found.text
    else this.#options.failed(error)
  }
}

function isSame<E>(a: ReadResult<E>, b: ReadResult<E>): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}
