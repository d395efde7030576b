import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents, type Snapshot } from '../../../src/model/snapshot.ts'
import {
  LocalPolicyCounter,
  PendingChanges,
  programmingLatencies,
} from '../../../src/telemetry/proxy-metrics.ts'
import { endpoint, eventsOf, node, OPTIONS, service, slice, snapshotOf, tableOf } from '../model/objects.ts'

describe('PendingChanges', () => {
  it('adds what is offered, and keeps what a pass left behind', () => {
    const pending = new PendingChanges()
    const first = snapshotOf([service('a')])
    expect(pending.offered(first)).toEqual({ services: 1, slices: 0 })
    const more = eventsOf([service('b', { clusterIP: '10.96.0.2' }), slice('b-1', 'b', [])])
    const second = applyEvents(first, more)
    expect(pending.offered(second)).toEqual({ services: 1, slices: 1 })
    expect(pending.now).toEqual({ services: 2, slices: 1 })
    pending.synced(first)
    expect(pending.now).toEqual({ services: 1, slices: 1 })
    pending.synced(second)
    expect(pending.now).toEqual({ services: 0, slices: 0 })
  })
})

const TRIGGER_TIME = 'endpoints.kubernetes.io/last-change-trigger-time'
const INTERNAL = { internalTrafficPolicy: 'Local' }
const EXTERNAL = {
  type: 'NodePort',
  externalTrafficPolicy: 'Local',
  ports: [
    { name: 'a', port: 80, nodePort: 30_080 },
    { name: 'b', port: 81, nodePort: 30_081 },
  ],
}
const BOTH_PORTS = {
  ports: [
    { name: 'a', port: 8080 },
    { name: 'b', port: 8081 },
  ],
}
const NONE = { internal: { IPv4: 0, IPv6: 0 }, external: { IPv4: 0, IPv6: 0 } }

describe('LocalPolicyCounter', () => {
  it('counts ports whose endpoints are all on other nodes, by policy and family', () => {
    const objects = [
      node(),
      service('in', INTERNAL),
      slice('in-1', 'in', [endpoint('10.1.0.1', { nodeName: 'there' })]),
      service('out', { ...EXTERNAL, clusterIP: 'fd00:96::1' }),
      slice('out-1', 'out', [endpoint('fd00::1', { nodeName: 'there' })], {
        addressType: 'IPv6',
        ...BOTH_PORTS,
      }),
    ]
    expect(new LocalPolicyCounter().update(tableOf(objects))).toEqual({
      internal: { IPv4: 1, IPv6: 0 },
      external: { IPv4: 0, IPv6: 2 },
    })
  })

  it('follows changes', () => {
    const counter = new LocalPolicyCounter()
    const away = snapshotOf([
      node(),
      service('out', EXTERNAL),
      slice('out-1', 'out', [endpoint('10.1.0.1', { nodeName: 'there' })], BOTH_PORTS),
    ])
    const table = (snapshot: Snapshot) => finish(resolve(OPTIONS, undefined, snapshot)).table
    expect(counter.update(table(away)).external.IPv4).toBe(2)
    const back = applyEvents(
      away,
      eventsOf([slice('out-1', 'out', [endpoint('10.1.0.1', { nodeName: 'here' })], BOTH_PORTS)]),
    )
    expect(counter.update(table(back))).toEqual(NONE)
    expect(counter.update(table(away)).external.IPv4).toBe(2)
    const gone = applyEvents(away, [{ kind: 'Service', key: 'ns/out', value: undefined }])
    expect(counter.update(table(gone))).toEqual(NONE)
  })
})

describe('programmingLatencies', () => {
  const startedWallMs = Date.parse('2026-11-21T10:00:00Z')
  const nowWallMs = startedWallMs + 60_000

  /** The latencies of slices whose Pods changed at these times, where they say so. */
  function latencies(...timesMs: readonly (number | undefined)[]) {
    const objects = timesMs.map((atMs, at) => {
      const time = atMs === undefined ? {} : { [TRIGGER_TIME]: new Date(atMs).toISOString() }
      return slice(`web-${at}`, 'web', [endpoint('10.1.0.1')], { metadata: { annotations: time } })
    })
    return programmingLatencies(undefined, snapshotOf(objects), { startedWallMs, nowWallMs })
  }

  it('leaves out what was triggered before this process started, or says nothing of it', () => {
    expect(latencies(startedWallMs, undefined)).toEqual([])
  })

  it('F94: is never negative', () => {
    expect(latencies(nowWallMs + 3_600_000)).toEqual([{ family: 'IPv4', latencyMs: 0 }])
  })
})
