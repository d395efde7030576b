import type { Cancel, Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'

/** client-go's ReadIdleTimeout and PingTimeout. */
const PING_AFTER_MS = 30_000
const PING_ANSWER_MS = 15_000

interface PulseOptions {
  readonly clock: Clock
  /** Sends a PING and calls `answered` when its answer arrives. */
  readonly ping: (answered: () => void) => void
  /** Nothing came in time. Called once. */
  readonly dead: () => void
}

/** Notices a peer that has gone without a word: 30 s without a read, then 15 s without an answer. */
export class Pulse {
  readonly #options: PulseOptions
  #heardMs: number
  #cancelTimer: Cancel | undefined
  #pinging = false
  #stopped = false

  constructor(options: PulseOptions) {
    this.#options = options
    this.#heardMs = options.clock.nowMs()
    this.#watch(PING_AFTER_MS)
  }

  heard(): void {
    this.#heardMs = this.#options.clock.nowMs()
  }

  probe(): void {
    if (this.#stopped || this.#pinging) return
    this.#cancelTimer?.()
    this.#ask()
  }

  stop(): void {
    this.#stopped = true
    this.#cancelTimer?.()
  }

  #watch(delayMs: number): void {
    this.#cancelTimer = this.#options.clock.after(delayMs, () => {
      const leftMs = this.#heardMs + PING_AFTER_MS - this.#options.clock.nowMs()
      if (leftMs > 0) this.#watch(leftMs)
      else this.#ask()
    })
  }

  #ask(): void {
    const { clock, ping, dead } = this.#options
    this.#pinging = true
    const askedMs = clock.nowMs()
    this.#cancelTimer = clock.after(PING_ANSWER_MS, async () => {
      // A process that was stopped has the answer in its socket and has not read it.
      await clock.breathe()
      if (this.#stopped || !this.#pinging) return
      if (this.#heardMs > askedMs) return this.#calm()
      this.stop()
      dead()
    })
    ping(() => {
      if (this.#stopped || !this.#pinging) return
      this.heard()
      this.#calm()
    })
  }

  #calm(): void {
    this.#pinging = false
    this.#cancelTimer?.()
    this.#watch(PING_AFTER_MS)
  }
}

export function silence(): ApiError {
  return new ApiError('silent', `the server did not answer a PING within ${PING_ANSWER_MS / 1000} s`)
}
