import { atOnce } from '../base/clock.ts'
import { applyEvents, type Snapshot, type SnapshotEvent } from '../model/snapshot.ts'

/** Does the work of applyEvents(), to be run with `finish` or `finishInSlices`. */
export function applyEventsInSteps(snapshot: Snapshot, events: Iterable<SnapshotEvent>) {
  return atOnce(() => applyEvents(snapshot, events))
}
