import { describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../src/model/snapshot.ts'
import { PendingChanges } from '../../../src/telemetry/proxy-metrics.ts'
import { eventsOf, service, slice } from '../model/objects.ts'

function and(before: Snapshot, ...objects: readonly unknown[]): Snapshot {
  return applyEvents(before, eventsOf(objects))
}

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
})
