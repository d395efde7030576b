/** The time between warnings about one thing: 30 s, as kube-proxy waits for a missing Node, and then growing to 5 min. */
export class WarningPace {
  #nextMs = 30_000

  next(): number {
    const ms = this.#nextMs
    this.#nextMs = Math.min(2 * ms, 300_000)
    return ms
  }

  reset(): void {
    this.#nextMs = 30_000
  }
}
