interface TokenBucketOptions {
  /** The number of tokens at the start, and the maximum. */
  readonly size: number
  /** Time after which one token returns. */
  readonly refillMs: number
  readonly nowMs: () => number
}

/** Limits the burst and the average rate of an action. */
export class TokenBucket {
  readonly #options: TokenBucketOptions
  #tokens: number
  #atMs: number

  constructor(options: TokenBucketOptions) {
    this.#options = options
    this.#tokens = options.size
    this.#atMs = options.nowMs()
  }

  /** Takes a token. Gives false if there is none. */
  take(): boolean {
    const { size, refillMs, nowMs } = this.#options
    const now = nowMs()
    this.#tokens = Math.min(size, this.#tokens + (now - this.#atMs) / refillMs)
    this.#atMs = now
    if (this.#tokens < 1) return false
    this.#tokens--
    return true
  }
}
