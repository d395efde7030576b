import type { Family } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { Snapshot } from '../model/snapshot.ts'

/** How long one changed slice took, from the change of its pods to the kernel (the SLI of SIG Scalability). */
export interface ProgrammingLatency {
  readonly family: Family
  readonly latencyMs: number
}

/**
 * Of the slices that differ between what was programmed before and what is programmed now. Those that are gone do not
 * count (their trigger is of the last change before), nor those whose trigger is older than this process: it would measure
 * when the process started. A clock of the control plane that is ahead of ours gives 0.
 */
export function programmingLatencies(
  before: Snapshot | undefined,
  now: Snapshot,
  times: { readonly startedWallMs: number; readonly nowWallMs: number },
): readonly ProgrammingLatency[] {
  const previous = before?.sliceByKey ?? PersistentMap.empty()
  const latencies: ProgrammingLatency[] = []
  for (const [, old, slice] of PersistentMap.differences(previous, now.sliceByKey)) {
    if (slice === undefined || slice.triggerTimeMs <= times.startedWallMs) continue
    // A change that came without a trigger of its own (hints, labels) still carries that of the last one.
    if (old?.triggerTimeMs === slice.triggerTimeMs) continue
    latencies.push({ family: slice.family, latencyMs: Math.max(0, times.nowWallMs - slice.triggerTimeMs) })
  }
  return latencies
}
