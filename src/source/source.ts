import type { PersistentMap } from '../base/collections.ts'
import type { Refusal } from '../model/fields.ts'
import type { Snapshot, SourceEvent } from '../model/snapshot.ts'

/** Reads Services from files, the API server or relays. */
export interface Source {
  /** Resolves once watching has begun; what it finds goes to the handlers from then on. */
  start(handlers: SourceHandlers): Promise<void>
  /** Resolves when no handler will be called any more. Idempotent. */
  stop(): Promise<void>
  readonly status: SourceStatus
  /** Reads Services and endpoints once more. Resolves when what has changed by that was taken; absent where it cannot. */
  confirm?(): Promise<void>
}

export interface SourceStatus {
  /** Parts that have not been read entirely even once, in words: `endpointslices`. Empty once synced. */
  readonly missing: readonly string[]
  /**
   * Monotonic milliseconds of the last word (a list, an event, a bookmark, a look at the file) from the part that has
   * been silent longest; undefined before the first. How stale the state may be is measured from here.
   */
  readonly heardMs: number | undefined
  /** The present problem, one line for people; undefined when all is well. */
  readonly trouble: string | undefined
  /** A source of relays reads from the API server now, because no relay answers. */
  readonly isDirect?: boolean
  /** A few names of Nodes in the source besides this node's; absent where the source does not read them. */
  readonly otherNodes?: readonly string[]
}

export interface SourceHandlers {
  /**
   * A set of changes that belong together: a reader never shows half of it. The source waits until it is taken, so
   * that a slow reader slows the source down instead of filling the memory.
   */
  readonly events: (batch: readonly SourceEvent[]) => Promise<void>
  /** Every existing object has been delivered once. Before this, absence means nothing. Called once. */
  synced(): void
  /** Objects that could not be used at all; all that are refused now, at each change. */
  refusals(list: readonly LocatedRefusal[]): void
  /** The source itself has a problem, or recovered; each is reported once. */
  problem(problem: SourceProblem): void
  /** Gets events for metrics and debug logs. */
  observed?(observation: SourceObservation): void
}

/** `resource` is the plural in lower case: `services`. */
export type SourceObservation =
  | {
      readonly kind: 'listed'
      readonly resource: string
      /** `start`, or the cause that made the watch unusable. */
      readonly reason: string
      readonly objects: number
      readonly bytes: number
      readonly durationMs: number
    }
  /** A watch ended, well or badly, after so many events. */
  | {
      readonly kind: 'watch-ended'
      readonly resource: string
      readonly reason: string
      readonly events: number
      readonly bytes: number
    }
  /** An event or object was not used. */
  | {
      readonly kind: 'skipped'
      readonly resource: string
      readonly reason: 'older' | 'unknown-type' | 'wrong-kind' | 'no-identity'
    }
  /** A consistency check found a change that no event had delivered. */
  | { readonly kind: 'repaired'; readonly resource: string; readonly objects: number }

/** Revisions by kind: what nodes program. Nodes report them to their relays. */
export interface Revisions {
  readonly Service: string
  readonly EndpointSlice: string
}

/** The state of this node's kernel, and the causes of what it lacks. */
export interface KernelState {
  /** All changes up to these are in the kernel; undefined before the first sync. */
  readonly held: Revisions | undefined
  /** The error of the last pass; empty if it did not fail. */
  readonly failure: string
  /** Services that are left out; the first few of them. */
  readonly lacking: readonly LackingService[]
  readonly lackingCount: number
  readonly proof: { readonly text: string; readonly differences: number } | undefined
  readonly version: string
}

interface LackingService {
  /** `namespace/name`, or the object that is refused. */
  readonly service: string
  readonly reason: string
}

export interface LocatedRefusal {
  /** A file's name, or a resource of the API. */
  readonly location: string
  readonly refusal: Refusal
}

/** Refusals of one report, or of one file; further ones are not named. */
export const REFUSALS_MAX = 1_000

export interface SourceProblem {
  readonly kind: /** What was known before stays valid. */
    | 'failed'
    | 'recovered'
    /** Something is not there that need not be, and nothing waits for it. */
    | 'absent'
    /** Two places describe the same object; the first by name counts. */
    | 'duplicate'
    /** Something is probably a mistake: an unknown field, a misspelled kind. The rest is used. */
    | 'doubtful'
    /** The source is complete and has no object at all. */
    | 'empty'
  readonly location: string
  /** One line, without the location. */
  readonly text: string
  /** The state that a reader continues with after a failure. */
  readonly meanwhile?: string
}

/** Describes the problem in one line, for a reader that continues. */
export function problemText({ text, meanwhile }: SourceProblem): string {
  return meanwhile === undefined ? text : `${text}; ${meanwhile}`
}

/** Tests whether an answer lacks so many objects that it is requested a second time. */
export function isMostGone(held: number, gone: number): boolean {
  // Few things may well go all at once.
  return held >= 10 && gone * 2 > held
}

/** Tests whether `now` lacks most Services or EndpointSlices of `before`. */
export function isMostlyGone(before: Snapshot, now: Snapshot): boolean {
  const isGone = <V>(held: PersistentMap<V>, left: PersistentMap<V>) =>
    isMostGone(held.size, held.keys().filter(key => !left.has(key)).length)
  return isGone(before.services, now.services) || isGone(before.sliceByKey, now.sliceByKey)
}
