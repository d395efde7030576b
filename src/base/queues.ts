import type { Clock } from './clock.ts'

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

/**
 * Hands on items, one batch at a time. Items that arrive meanwhile form the next batch; a caller that brings them waits, so
 * that of each bringer at most what it had at hand is gathered.
 */
export class Batcher<T> {
  readonly #clock: Pick<Clock, 'breathe'>
  #hand: (batch: readonly T[]) => Promise<void> = () => Promise.resolve()
  #gathering: { readonly batch: T[]; readonly taken: Promise<void> } | undefined
  #last: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(clock: Pick<Clock, 'breathe'>) {
    this.#clock = clock
  }

  start(hand: (batch: readonly T[]) => Promise<void>): void {
    this.#hand = hand
  }

  /** Resolves once these were taken, in the order given and in one piece. Rejects when taking them failed. */
  readonly put = (items: readonly T[]): Promise<void> => {
    if (items.length === 0) return Promise.resolve()
    const gathering = this.#gathering ?? this.#open()
    for (const item of items) gathering.batch.push(item)
    return gathering.taken
  }

  close(): void {
    this.#closed = true
  }

  #open() {
    const batch: T[] = []
    const taken = this.#last.then(() => {
      this.#gathering = undefined
      return this.#closed ? undefined : this.#hand(batch)
    })
    // The caller that brought the items gets the failure; the next batch only needs to know that this one is over.
    const isOver = () => this.#beforeNext()
    this.#last = taken.then(isOver, isOver)
    this.#gathering = { batch, taken }
    return this.#gathering
  }

  /** Callers whose items were just taken may have more at hand, which then belong to the batch that waits. */
  #beforeNext(): Promise<void> | undefined {
    return this.#gathering === undefined ? undefined : this.#clock.breathe()
  }
}
