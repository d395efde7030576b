import type { Cancel, Clock } from './clock.ts'

/** The result of a read: a text, or the reason why there is none. */
export type Sight<E> = { readonly text: string } | { readonly error: E }

export interface FollowedTextOptions<E> {
  readonly clock: Clock
  /** Interval of the reads, milliseconds. */
  readonly pollMs: number
  /** The text in use. */
  readonly text: string
  readonly read: () => Promise<Sight<E>>
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
  #current: string
  /** What the last read found. */
  #last: Sight<E>
  /** The failure that was reported. */
  #reported: Sight<E> | undefined
  /** The next result is reported even if nothing is new. */
  #isAsked = false
  #timer: Cancel | undefined
  #looking: Promise<void> = Promise.resolve()
  #stopped = false

  constructor(options: FollowedTextOptions<E>) {
    this.#options = options
    this.#current = options.text
    this.#last = { text: options.text }
    this.#lookAfter(options.pollMs)
  }

  /** Reads now, and reports the result even if nothing is new. */
  hurry(): void {
    this.#isAsked = true
    // The current read, or the wait for a writer, soon leads to a result.
    if (this.#timer === undefined) return
    this.#timer()
    this.#lookAfter(0)
  }

  /** Nothing is reported from now on. Resolves when the current read is over. */
  async stop(): Promise<void> {
    this.#stopped = true
    this.#timer?.()
    await this.#looking
  }

  #lookAfter(delayMs: number): void {
    if (this.#stopped) return
    this.#timer = this.#options.clock.after(delayMs, () => {
      this.#timer = undefined
      this.#looking = this.#look().then(waitMs => this.#lookAfter(waitMs))
    })
  }

  /** Gives the milliseconds until the next read. */
  async #look(): Promise<number> {
    const { pollMs, read, failed, recovered, unchanged } = this.#options
    const sight = await read()
    if (this.#stopped) return pollMs
    const rests = isSame(sight, this.#last)
    this.#last = sight
    if (!rests) return QUIET_MS
    const isAsked = this.#isAsked
    this.#isAsked = false
    if (!isAsked && this.#reported !== undefined && isSame(sight, this.#reported)) return pollMs
    if ('error' in sight) {
      this.#reported = sight
      failed(sight.error)
    } else if (sight.text !== this.#current) await this.#use(sight)
    else if (this.#reported !== undefined) {
      this.#reported = undefined
      recovered?.()
    } else if (isAsked) unchanged?.()
    return pollMs
  }

  async #use(sight: { readonly text: string }): Promise<void> {
    const error = await this.#options.use(sight.text)
    this.#reported = error === undefined ? undefined : sight
    if (error === undefined) this.#current = sight.text
    else this.#options.failed(error)
  }
}

function isSame<E>(a: Sight<E>, b: Sight<E>): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}
