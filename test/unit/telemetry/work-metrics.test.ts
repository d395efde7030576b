import { expect, it } from 'vitest'
import { createMetrics } from '../../support/metrics.ts'

const TABLE = { entries: 7, entriesMax: 100, insertFailed: 40, dropped: 2, droppedEarly: 0 }

it('reports the usage of the table, and the losses since the start', async () => {
  const metrics = createMetrics()
  metrics.conntrackTable(TABLE)
  metrics.conntrackTable({ ...TABLE, insertFailed: 43, dropped: 1 })
  const lines = (await metrics.text())
    .split('\n')
    .filter(line => /^kprobe_conntrack_(?:entries|lost)/.test(line))
  expect(lines.sort()).toEqual([
    'kprobe_conntrack_entries 7',
    'kprobe_conntrack_entries_limit 100',
    'kprobe_conntrack_lost_total{reason="dropped"} 1',
    'kprobe_conntrack_lost_total{reason="dropped_early"} 0',
    'kprobe_conntrack_lost_total{reason="insert_failed"} 3',
  ])
})
