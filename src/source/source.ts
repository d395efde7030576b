import type { Refusal } from '../model/refusal.ts'
import type { SourceEvent } from '../model/snapshot.ts'

/** Where Services come from: files now, the API server with the same shape. */
export interface Source {
  /** Resolves once watching has begun; what it finds goes to the handlers from then on. */
  start(handlers: SourceHandlers): Promise<void>
  /** Resolves when no handler will be called any more. Idempotent. */
  stop(): Promise<void>
}

export interface SourceHandlers {
  /**
   * A set of changes that belong together: a reader never shows half of it. The source waits until it is taken, so
   * that a slow reader slows the source down instead of filling the memory.
   */
  events(batch: readonly SourceEvent[]): Promise<void>
  /** Everything that exists has been told once. Before this, absence means nothing. Called once. */
  synced(): void
  /** Objects that could not be used at all; all that are refused now, at each change. */
  refusals(list: readonly LocatedRefusal[]): void
  /** Something is wrong with the source itself, or is right again; each is said once. */
  problem(problem: SourceProblem): void
}

export interface LocatedRefusal {
  /** Where the object stands: a file's name. */
  readonly place: string
  readonly refusal: Refusal
}

export interface SourceProblem {
  readonly kind: /** What was known before stays valid. */
    | 'failed'
    | 'recovered'
    /** Two places describe the same object; the first by name counts. */
    | 'duplicate'
  readonly place: string
  /** One line, without the place. */
  readonly text: string
}
