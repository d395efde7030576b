import type { Registry } from 'prom-client'
import type { SourceObservation } from '../source/source.ts'
import { LabelValues, metricSet } from './metric-set.ts'

export interface SourceMetrics {
  observed(observation: SourceObservation): void
  /** Counts a failure of a part of the source. */
  sourceProblem(): void
}

/** `staleS` gives the seconds since the last message of the part that has been silent longest. */
export function createSourceMetrics(registry: Registry, staleS: () => number | undefined): SourceMetrics {
  const { counter, asked, histogram } = metricSet(registry, 'kprobe_source_')
  asked(
    'stale_seconds',
    'Time since the last message from the part of the source that has been silent longest.',
    staleS,
  )
  const problems = counter('problems_total', 'Failures of a part of the source.')
  const byReason = ['resource', 'reason'] as const
  const lists = counter('lists_total', 'Complete lists read, by reason.', byReason)
  const ends = counter('watch_ends_total', 'Watches that ended, by reason.', byReason)
  const events = counter('watch_events_total', 'Events received by watches that ended.', ['resource'])
  const bytes = counter('bytes_total', 'Bytes received by lists and by watches that ended.', [
    'resource',
    'from',
  ])
  const skipped = counter('skipped_total', 'Events and objects ignored, by reason.', byReason)
  const repaired = counter(
    'repaired_objects_total',
    'Objects corrected by a list because their events were lost.',
    ['resource'],
  )
  const duration = histogram('list_duration_seconds', 'Duration of complete lists.', {
    buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    labelNames: ['resource'],
  })
  const reasons = new LabelValues()
  const labels = (its: { readonly resource: string; readonly reason: string }) => ({
    resource: its.resource,
    reason: reasons.of(its.reason),
  })
  return {
    sourceProblem: () => problems.inc(),
    observed(its) {
      const { resource } = its
      switch (its.kind) {
        case 'listed':
          lists.inc(labels(its))
          bytes.inc({ resource, from: 'list' }, its.bytes)
          duration.observe({ resource }, its.durationMs / 1000)
          break
        case 'watch-ended':
          ends.inc(labels(its))
          events.inc({ resource }, its.events)
          bytes.inc({ resource, from: 'watch' }, its.bytes)
          break
        case 'skipped':
          skipped.inc(labels(its))
          break
        case 'repaired':
          repaired.inc({ resource }, its.objects)
          break
      }
    },
  }
}
