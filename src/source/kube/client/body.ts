import type { Readable } from 'node:stream'
import type { Cancel, Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import type { Call } from './call.ts'

/** Unread bytes at which the sender has to pause; below half of it, the sender resumes. */
const HELD_BYTES_MAX = 256 * 1024

interface BodyOptions {
  readonly stream: Readable
  readonly call: Call
  readonly clock: Clock
  /** Longest wait for a piece, milliseconds; undefined for no limit. Time the reader takes does not count. */
  readonly idleMs: number | undefined
  /** Why an end of the stream is not the end of the response; undefined when it is. */
  readonly cut: () => ApiError | undefined
  /** Ends the stream at the server. Idempotent. */
  readonly cancel: () => void
  /** A piece has arrived. */
  readonly heard: () => void
}

/** The bytes of one response. Small bodies are read from the connection even when the caller does not read them. */
export class Body implements AsyncIterable<Uint8Array> {
  readonly #options: BodyOptions
  readonly #held: Uint8Array[] = []
  #heldBytes = 0
  #paused = false
  #ended = false
  #error: ApiError | undefined
  #wake: (() => void) | undefined
  #waitingSinceMs: number | undefined
  #cancelTimer: Cancel | undefined

  constructor(options: BodyOptions) {
    this.#options = options
    const { stream, call } = options
    call.onFail(error => {
      this.#error = error
      // What came before the connection was lost is as good as ever: events that need not be sent again.
      if (error.kind === 'aborted') this.#held.length = 0
      this.#stop()
    })
    stream.on('data', (piece: Uint8Array) => this.#take(piece))
    stream.once('end', () => this.#end())
    stream.once('close', () => this.#close())
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = this.#held.shift()
        if (piece !== undefined) {
          this.#give(piece)
          yield piece
        } else if (this.#error !== undefined) throw this.#error
        else if (this.#ended) return
        else await this.#wait()
      }
    } finally {
      this.discard()
    }
  }

  /** Gives the rest up. */
  discard(): void {
    const whole = this.#ended
    this.#stop()
    this.#held.length = 0
    this.#options.call.finish()
    if (!whole) this.#options.cancel()
  }

  #take(piece: Uint8Array): void {
    if (this.#ended) return
    this.#options.heard()
    this.#held.push(piece)
    this.#heldBytes += piece.length
    if (this.#heldBytes > HELD_BYTES_MAX && !this.#paused) {
      this.#paused = true
      this.#options.stream.pause()
    }
    this.#rouse()
  }

  #give(piece: Uint8Array): void {
    this.#heldBytes -= piece.length
    if (!this.#paused || this.#heldBytes > HELD_BYTES_MAX / 2) return
    this.#paused = false
    this.#options.stream.resume()
  }

  #end(): void {
    if (this.#ended) return
    const cut = this.#options.cut()
    if (cut === undefined) {
      this.#stop()
      this.#options.call.finish()
    } else this.#options.call.fail(cut)
  }

  /** A stream that closes without an end was cut, and may not have said so by an error. */
  #close(): void {
    if (!this.#ended) this.#options.call.fail(this.#options.cut() ?? cutOff())
  }

  #wait(): Promise<void> {
    return new Promise(resolve => {
      this.#wake = resolve
      this.#waitingSinceMs = this.#options.clock.nowMs()
      const { idleMs } = this.#options
      if (idleMs !== undefined && this.#cancelTimer === undefined) this.#arm(idleMs)
    })
  }

  /** One timer serves many waits: it looks when it fires how long the present one has lasted. */
  #arm(delayMs: number): void {
    const { clock, call, idleMs = 0 } = this.#options
    this.#cancelTimer = clock.after(delayMs, () => {
      this.#cancelTimer = undefined
      if (this.#waitingSinceMs === undefined || this.#ended) return
      const leftMs = this.#waitingSinceMs + idleMs - clock.nowMs()
      if (leftMs > 0) this.#arm(leftMs)
      else call.fail(new ApiError('silent', `the body stopped for ${idleMs / 1000} s`))
    })
  }

  #rouse(): void {
    this.#waitingSinceMs = undefined
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }

  #stop(): void {
    this.#ended = true
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
    this.#rouse()
  }
}

export function cutOff(cause?: unknown): ApiError {
  return new ApiError('lost', 'the connection ended before the response did', { cause })
}
