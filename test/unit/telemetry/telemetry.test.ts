import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../src/base/persistent-map.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import type { Refusal } from '../../../src/model/refusal.ts'
import { createMetrics } from '../../../src/telemetry/metrics.ts'
import { RefusalLog } from '../../../src/telemetry/refusal-log.ts'
import { tableOf } from '../../support/tables.ts'

function refusal(value: string): Refusal {
  return { object: 'Service ns/a', field: 'spec.externalIPs[0]', value, reason: 'a loopback address' }
}

function tableWith(refusals: readonly Refusal[], before = tableOf(1, {})): FrontendTable {
  const service = { service: 'ns/a', clusterIps: [], ports: [], refusals }
  return { ...before, services: before.services.with([['ns/a', service]]) }
}

describe('RefusalLog', () => {
  it('tells each refusal once, and how many there are', () => {
    const log = new RefusalLog()
    const first = tableWith([refusal('127.0.0.1')])
    expect(log.look(first)).toEqual({ fresh: [refusal('127.0.0.1')], unnamed: 0, total: 1 })
    expect(log.look(first)).toEqual({ fresh: [], unnamed: 0, total: 1 })
    const second = tableWith([refusal('127.0.0.1'), refusal('127.0.0.2')], first)
    expect(log.look(second)).toEqual({ fresh: [refusal('127.0.0.2')], unnamed: 0, total: 2 })
    expect(log.look({ ...second, services: PersistentMap.empty() })).toEqual({
      fresh: [],
      unnamed: 0,
      total: 0,
    })
  })

  it('names 100 of a flood and counts the others', () => {
    const many = Array.from({ length: 130 }, (_, i) => refusal(`127.0.0.${i}`))
    const news = new RefusalLog().look(tableWith(many))
    expect([news.fresh.length, news.unnamed, news.total]).toEqual([100, 30, 130])
  })
})

describe('createMetrics', () => {
  it('counts what it is told', async () => {
    const metrics = createMetrics()
    metrics.commit({ bytes: 100, durationMs: 2, changes: 3 })
    metrics.commit({ bytes: 50, durationMs: 1, changes: 1 })
    metrics.staleCommit()
    metrics.failedPass()
    metrics.foreignCommit()
    metrics.healed(7)
    metrics.quarantined(2)
    metrics.refusals(5)
    metrics.sourceProblem()
    const text = await metrics.text()
    for (const line of [
      'kprobe_commits_total 2',
      'kprobe_commit_bytes_total 150',
      'kprobe_commit_changes_total 4',
      'kprobe_commit_duration_seconds_bucket{le="0.001"} 1',
      'kprobe_commit_generation_retries_total 1',
      'kprobe_failed_passes_total 1',
      'kprobe_foreign_commits_total 1',
      'kprobe_heals_total 1',
      'kprobe_healed_objects_total 7',
      'kprobe_quarantined_services 2',
      'kprobe_refusals 5',
      'kprobe_source_problems_total 1',
    ])
      expect(text.split('\n')).toContain(line)
  })

  it('keeps two sets of metrics apart', async () => {
    createMetrics().staleCommit()
    expect(await createMetrics().text()).toContain('kprobe_commit_generation_retries_total 0')
  })
})
