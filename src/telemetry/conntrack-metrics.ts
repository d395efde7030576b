import type { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'

/** Statistics of the connection-tracking table; counts start with the network namespace. */
interface ConntrackTable {
  readonly entries: number
  readonly entriesMax: number | undefined
  readonly insertFailed: number
  readonly dropped: number
  readonly droppedEarly: number
}

export interface ConntrackMetrics {
  conntrackTable(table: ConntrackTable): void
}

/** Creates metrics of the table's usage, and of packets lost because it is full or in races of translation (I-22, I-24). */
export function createConntrackMetrics(registry: Registry): ConntrackMetrics {
  const { counter, gauge } = metricSet(registry, 'kprobe_conntrack_')
  const entries = gauge('entries', 'Tracked connections.')
  const limit = gauge('entries_limit', 'Maximum number of tracked connections (nf_conntrack_max).')
  const lost = counter(
    'lost_total',
    'Packets dropped and entries evicted by connection tracking, by reason.',
    ['reason'],
  )
  const follow = (reason: string) => {
    lost.inc({ reason }, 0)
    let before: number | undefined
    return (now: number) => {
      // Losses before this process started do not count; a counter that fell was reset.
      if (before !== undefined) lost.inc({ reason }, now >= before ? now - before : now)
      before = now
    }
  }
  const insertFailed = follow('insert_failed')
  const dropped = follow('dropped')
  const droppedEarly = follow('dropped_early')
  return {
    conntrackTable(table) {
      entries.set(table.entries)
      if (table.entriesMax !== undefined) limit.set(table.entriesMax)
      insertFailed(table.insertFailed)
      dropped(table.dropped)
      droppedEarly(table.droppedEarly)
    },
  }
}
