interface TokenBucketOptions {
  /** Tokens at the start, and at most. */
  readonly size: number
  /** Time in which one comes back. */
  readonly refillMs: number
  readonly nowMs: () => number
}

/** So many at once, and so many on average. */
export class TokenBucket {
  readonly #options: TokenBucketOptions
  #tokens: number
  #atMs: number

  constructor(options: TokenBucketOptions) {
    this.#options = options
    this.#tokens = options.size
    this.#atMs = options.nowMs()
  }

  /** False when there is none. */
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
