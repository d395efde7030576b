import type { IpvsState } from './state.ts'

/** Number of entries by name of set. */
export type SetCounts = ReadonlyMap<string, number>

/** A rendered state knows; one that was read is counted. */
export function countEntries({ entries, rendering }: IpvsState): SetCounts {
  if (rendering !== undefined) return rendering.entries
  const counts = new Map<string, number>()
  for (const { set } of entries.values()) counts.set(set, (counts.get(set) ?? 0) + 1)
  return counts
}
