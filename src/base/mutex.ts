/** Pieces of asynchronous work that go one after the other, in the order in which they were asked for. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve()

  /** Runs `work` when everything before it has ended, however it ended. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work)
    this.#last = turn.catch(() => undefined)
    return turn
  }
}
