import { beforeEach, describe, expect, it } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { Observer } from '../../../src/daemon/observer.ts'
import { findMode } from '../../../src/modes/registry.ts'
import { generationOf, type Plan } from '../../../src/reconcile/dataplane.ts'
import type { FailedFamily } from '../../../src/reconcile/quarantine.ts'
import type { SourceStatus } from '../../../src/source/source.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { NO_SOURCES } from '../../support/metrics.ts'
import { node as nodeObject, service, snapshotOf, tableOf } from '../model/objects.ts'

let clock: FakeClock
let logged: string[]
let status: SourceStatus | undefined
let observer: Observer
let mode: string
let failed: FailedFamily | undefined
let isEligible: boolean

beforeEach(() => {
  clock = new FakeClock()
  logged = []
  status = undefined
  mode = 'nftables'
  isEligible = false
  failed = undefined
  observer = new Observer({
    ...NO_SOURCES,
    log: createLog({ format: 'text', verbosity: 0, destination: { write: line => void logged.push(line) } }),
    clock,
    wallMs: () => 0,
    nodeName: 'node',
    syncPeriodMs: 30_000,
    source: () => status,
    quarantined: () => 0,
    failedFamily: () => failed,
    eligibleWithoutNode: () => isEligible,
    mode: () => findMode(mode),
    tell: () => undefined,
  })
})

async function numberOf(metric: string): Promise<number> {
  const line = (await observer.metrics.text()).split('\n').find(each => each.startsWith(`${metric} `))
  return Number(line?.split(' ')[1])
}

const heard = (heardMs: number | undefined): SourceStatus => ({ missing: [], heardMs, trouble: undefined })
const STALE = 'kprobe_source_stale_seconds'
const SYNCED = { kind: 'synced', number: 1, reason: 'start', durationMs: 1, readWhole: true } as const

describe('Observer', () => {
  it('counts the silence of a source from the start while it was never heard', async () => {
    await clock.advance(400_000)
    expect(await numberOf(STALE)).toBe(400)
    status = heard(undefined)
    expect(await numberOf(STALE)).toBe(400)
    status = heard(clock.nowMs())
    await clock.advance(1_000)
    expect(await numberOf(STALE)).toBe(1)
  })

  it.each<[string, number]>([
    ['nftables', 1],
    ['iptables', Number.NaN],
  ])('counts failed passes as those of nftables in the mode %s: %d', async (which, count) => {
    mode = which
    observer.report({ kind: 'failed', error: new Error('no'), retryMs: 1 })
    const failures = 'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"}'
    expect(await numberOf(failures)).toBe(count)
    expect(await numberOf('kprobe_failed_passes_total')).toBe(1)
  })

  it('asks at each answer whether this node is eligible without a Node object', () => {
    observer.node(undefined)
    expect(observer.health.readiness().body.nodeEligible).toBe(false)
    isEligible = true
    expect(observer.health.readiness().body.nodeEligible).toBe(true)
    const taints = [{ key: 'ToBeDeletedByClusterAutoscaler', effect: 'NoSchedule' }]
    observer.node(snapshotOf([{ ...nodeObject(), spec: { taints } }]).node)
    expect(observer.health.readiness().body.nodeEligible).toBe(false)
  })

  it('logs a family that the kernel rejects once, and shows it by a metric', async () => {
    failed = { family: 'IPv6', error: new Error('ip6 kube-proxy: EOPNOTSUPP') }
    for (const failures of [1, 2, 3])
      observer.report({ kind: 'family-failed', ...failed, retryMs: 1_000, failures })
    observer.synced(SYNCED, snapshotOf([]), tableOf([]))
    const errors = logged.filter(line => line.includes('IP family'))
    expect(errors).toEqual([expect.stringMatching(/^E .*family=IPv6.*EOPNOTSUPP/)])
    expect(await numberOf('kprobe_family_programmed{ip_family="IPv6"}')).toBe(0)
    expect(await numberOf('kprobe_family_programmed{ip_family="IPv4"}')).toBe(1)
    failed = undefined
    observer.report({ kind: 'family-restored', family: 'IPv6' })
    observer.synced(SYNCED, snapshotOf([]), tableOf([]))
    expect(await numberOf('kprobe_family_programmed{ip_family="IPv6"}')).toBe(1)
  })

  it('counts refused fields and refused objects together, and logs each once', async () => {
    const refusal = { object: 'Service ns/bad', field: 'spec', value: '', reason: 'no use' }
    observer.refused([{ location: 'services', refusal }])
    observer.refused([{ location: 'services', refusal }])
    const objects = [service('web', { externalIPs: ['127.0.0.1'] })]
    observer.synced(SYNCED, snapshotOf(objects), tableOf(objects))
    expect(await numberOf('kprobe_refusals')).toBe(2)
    expect(logged.filter(line => line.includes(' refused '))).toHaveLength(2)
    expect(logged[0]).toContain('location=services')
  })
})

describe('what the reconciler reports', () => {
  it('names the process that may have done it, until a later pass has read the kernel', async () => {
    const suspect = () =>
      observer.report({ kind: 'foreign-commit', generation: generationOf(9), process: 'nft', damage: true })
    const sync = (readWhole: boolean) =>
      observer.synced({ ...SYNCED, durationMs: 10, readWhole }, snapshotOf([]), tableOf([]))
    const repair = () => {
      observer.report({ kind: 'repaired', changes: 1, objects: [] })
      return observer.repairs.recent.at(-1)?.process
    }
    suspect()
    expect(repair()).toBe('nft')
    expect(logged.at(-1)).toContain('process=nft')
    // It came while the pass ran, which may have read the kernel before.
    await clock.advance(10)
    sync(true)
    expect(repair()).toBe('nft')
    await clock.advance(1)
    sync(false)
    expect(repair()).toBe('nft')
    sync(true)
    expect(repair()).toBeUndefined()
    expect(logged.at(-1)).not.toContain('process')
  })

  it('is counted', async () => {
    const plan = { changes: 3 } as Plan<unknown>
    const receipt = { outcome: 'committed', bytes: 100, messages: 2, durationMs: 2, refusals: [] } as const
    for (const generation of [7, 8])
      observer.report({
        kind: 'committed',
        reason: 'change',
        plan,
        receipt: { ...receipt, generation: generationOf(generation), foreign: false },
      })
    observer.report({ kind: 'stale', attempt: 1 })
    for (const damage of [true, false])
      observer.report({ kind: 'foreign-commit', generation: generationOf(9), process: 'nft', damage })
    observer.report({ kind: 'repaired', changes: 7, objects: [] })
    expect(observer.repairs.recent).toEqual([{ at: observer.repairs.lastAt, objects: 7, process: 'nft' }])
    observer.sourceProblem()
    observer.configChanged('applied')
    const counts = {
      kprobe_commits_total: 2,
      kprobe_commit_bytes_total: 200,
      kprobe_commit_changes_total: 6,
      'kprobe_commit_duration_seconds_bucket{le="0.001"}': 0,
      'kprobe_commit_duration_seconds_bucket{le="0.005"}': 2,
      kprobe_commit_generation_retries_total: 1,
      kprobe_foreign_commits_total: 2,
      kprobe_drift_found_total: 1,
      kprobe_heals_total: 1,
      kprobe_healed_objects_total: 7,
      kprobe_source_problems_total: 1,
      'kprobe_config_changes_total{result="applied"}': 1,
    }
    for (const [name, count] of Object.entries(counts)) expect(await numberOf(name), name).toBe(count)
    expect(await observer.metrics.text('openmetrics')).toContain('# {generation="8"} 0.002')
  })
})

describe('an offered Snapshot', () => {
  const pending = 'kubeproxy_sync_proxy_rules_service_changes_pending'
  const total = 'kubeproxy_sync_proxy_rules_service_changes_total'
  const first = snapshotOf([service('web')])

  it('is counted by the sync that programs it', async () => {
    observer.offered(first)
    observer.synced(SYNCED, first, tableOf([service('web')]))
    expect([await numberOf(total), await numberOf(pending)]).toEqual([1, 0])
    expect(observer.health.liveness().code).toBe(200)
  })

  it('waits since it was offered, whenever that is asked for', async () => {
    observer.synced({ ...SYNCED, number: 0 }, first, tableOf([service('web')]))
    observer.offered(first)
    await clock.advance(59_999)
    expect(observer.health.healthy).toBe(true)
    await clock.advance(1)
    expect(observer.health.healthy).toBe(false)
  })
})

describe('what a mode does between commits', () => {
  it('is counted and told', async () => {
    const gone = { server: 'TCP 10.96.0.1:80', endpoint: '10.0.0.1:80' }
    observer.modeEvent({ kind: 'drained', ...gone, connections: 0 })
    observer.modeEvent({ kind: 'expired', ...gone, connections: 3 })
    observer.modeEvent({ kind: 'failed', error: new Error('no room') })
    expect(await numberOf('kprobe_drained_endpoints_total{outcome="drained"}')).toBe(1)
    expect(await numberOf('kprobe_drained_endpoints_total{outcome="expired"}')).toBe(1)
    expect(await numberOf('kprobe_drain_cut_connections_total')).toBe(3)
    expect(logged.join('')).toMatch(/10\.0\.0\.1:80.*\n.*no room/)
  })
})
