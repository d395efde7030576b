import type { SourceEvent } from '../../model/snapshot.ts'

/**
 * Hands on changes, one batch at a time. Changes that arrive meanwhile form the next batch; a caller that brings
 * it waits, so that at most one piece of each bringer is gathered.
 */
export class EventBatcher {
  readonly #hand: (batch: readonly SourceEvent[]) => Promise<void>
  #gathering: Gathering | undefined
  #last: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(hand: (batch: readonly SourceEvent[]) => Promise<void>) {
    this.#hand = hand
  }

  /** Resolves once these were taken, in the order given and in one piece. Rejects when taking them failed. */
  put(events: readonly SourceEvent[]): Promise<void> {
    if (events.length === 0) return Promise.resolve()
    const gathering = this.#gathering ?? this.#open()
    for (const event of events) gathering.batch.push(event)
    return gathering.taken
  }

  /** Nothing is handed on from now on. */
  close(): void {
    this.#closed = true
  }

  #open(): Gathering {
    const batch: SourceEvent[] = []
    const taken = this.#last.then(() => {
      this.#gathering = undefined
      return this.#closed ? undefined : this.#hand(batch)
    })
    // The caller that brought the events gets the failure; the next batch only needs to know that this one is over.
    this.#last = taken.then(undefined, () => undefined)
    this.#gathering = { batch, taken }
    return this.#gathering
  }
}

interface Gathering {
  readonly batch: SourceEvent[]
  readonly taken: Promise<void>
}
