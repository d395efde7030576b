import type { Clock } from '../../base/clock.ts'
import type { Refusal, WatchedKind } from '../../model/fields.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import type { SourceObservation } from '../source.ts'
import type { Resource } from './api-client.ts'
import type { Exchange } from './exchange.ts'
import type { Failure } from './failure.ts'
import type { Change } from './listing.ts'
import type { Trouble } from './reflector-state.ts'
import type { ParseObject } from './resource-changes.ts'

export interface ReflectorOptions<E extends Change = SourceEvent> {
  readonly resource: Resource
  readonly exchange: Exchange
  readonly clock: Clock
  readonly random: () => number
  readonly parseObject: ParseObject<E>
  readonly deletion: (kind: WatchedKind, key: string) => E
  readonly checkPeriodMs: number
  /** Maximum parts of all objects of the source; undefined for no bound. */
  readonly partsMax?: number | undefined
  readonly sink: ReflectorSink<E>
}

export interface ReflectorSink<E extends Change = SourceEvent> {
  /** Takes changes, in one piece with those of other calls of the same turn. Resolves once they were taken. */
  events(batch: readonly E[]): Promise<void>
  /** All objects that are refused, out of so many, when that has changed. An error makes the list that they are of fail. */
  refusals(list: readonly Refusal[], objects: number): void
  /** Every existing object has been delivered once, or there are none. Called once. */
  listed(): void
  /** Gets the present problem; undefined when there is none. Called at every change and at repetitions. */
  trouble(trouble: Trouble | undefined): void
  /** Gets the failure of the last check for lost events; undefined when it was made. */
  checked(failure: Failure | undefined): void
  observed(observation: SourceObservation): void
  /** All changes up to this version have been passed to events(); called at each word of the server. */
  reached?(resourceVersion: string, by: 'list' | 'another-history' | 'watch'): void
}
