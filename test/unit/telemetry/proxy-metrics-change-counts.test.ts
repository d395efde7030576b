import { describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../src/model/snapshot.ts'
import { changesBetween, PendingChanges } from '../../../src/telemetry/proxy-metrics.ts'
import { endpoint, eventsOf, service, slice, snapshotOf } from '../model/objects.ts'

function and(before: Snapshot, ...objects: readonly unknown[]): Snapshot {
  return applyEvents(before, eventsOf(objects))
}

describe('changesBetween', () => {
  it('counts Services and slices', () => {
    const first = snapshotOf([service('web'), slice('web-1', 'web', [])])
    expect(changesBetween(undefined, first)).toEqual({ services: 1, slices: 1 })
    const second = and(first, slice('web-1', 'web', [endpoint('10.1.0.1')]), slice('web-2', 'web', []))
    expect(changesBetween(first, second)).toEqual({ services: 0, slices: 2 })
    expect(changesBetween(second, second)).toEqual({ services: 0, slices: 0 })
  })
})

describe('PendingChanges', () => {
  it('adds what is offered, and keeps what a pass left behind', () => {
    const pending = new PendingChanges()
    const first = and(EMPTY_SNAPSHOT, service('a'))
    expect(pending.offered(first)).toEqual({ services: 1, slices: 0 })
    const second = and(first, service('b', { clusterIP: '10.96.0.2' }), slice('b-1', 'b', []))
    expect(pending.offered(second)).toEqual({ services: 1, slices: 1 })
    expect(pending.now).toEqual({ services: 2, slices: 1 })
    pending.synced(first)
    expect(pending.now).toEqual({ services: 1, slices: 1 })
    pending.synced(second)
    expect(pending.now).toEqual({ services: 0, slices: 0 })
  })

  it('has nothing before the first offer', () => {
    const pending = new PendingChanges()
    pending.synced(EMPTY_SNAPSHOT)
    expect(pending.now).toEqual({ services: 0, slices: 0 })
  })
})
