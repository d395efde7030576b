import type { Family } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { Snapshot } from '../model/snapshot.ts'

/** The time of one changed slice from the change of its pods to the kernel (the SLI of SIG Scalability). */
export interface ProgrammingLatency {
  readonly family: Family
  readonly latencyMs: number
}

/**
 * Gives the latencies of slices that differ between two programmed Snapshots. Skips deleted slices, whose trigger belongs
 * to the change before, and triggers older than this process. A control plane whose clock is ahead gives 0.
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
    // A change of hints or labels has no trigger of its own, and carries the one before.
    if (old?.triggerTimeMs === slice.triggerTimeMs) continue
    latencies.push({ family: slice.family, latencyMs: Math.max(0, times.nowWallMs - slice.triggerTimeMs) })
  }
  return latencies
}
