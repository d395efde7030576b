/** Pieces of asynchronous work that go one after the other, in the order of the requests. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve()

  /** Runs `work` when everything before it has ended, however it ended. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work)
    this.#last = turn.catch(() => undefined)
    return turn
  }
}

/** Works on items one at a time. Of those that arrive meanwhile, only the last one counts. */
export class Newest<T> {
  readonly #work: (item: T) => Promise<void>
  #next: T | undefined
  #working: Promise<void> | undefined

  /** `work` must not reject. */
  constructor(work: (item: T) => Promise<void>) {
    this.#work = work
  }

  offer(item: T): void {
    this.#next = item
    this.#working ??= this.#run()
  }

  drop(): void {
    this.#next = undefined
  }

  /** Resolves when nothing waits and no work is in progress. */
  async settled(): Promise<void> {
    await this.#working
  }

  async #run(): Promise<void> {
    for (let next = this.#next; next !== undefined; next = this.#next) {
      this.#next = undefined
      await this.#work(next)
    }
    this.#working = undefined
  }
}
