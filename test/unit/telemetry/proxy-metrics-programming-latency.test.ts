import { describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../src/model/snapshot.ts'
import { type ProgrammingLatency, programmingLatencies } from '../../../src/telemetry/proxy-metrics.ts'
import { endpoint, eventsOf, type Fields, slice } from '../model/objects.ts'

const START_MS = Date.parse('2026-11-21T10:00:00Z')
const NOW_MS = START_MS + 60_000

function triggered(name: string, atMs: number | undefined, rest: Fields = {}): Fields {
  const annotations =
    atMs === undefined
      ? {}
      : { 'endpoints.kubernetes.io/last-change-trigger-time': new Date(atMs).toISOString() }
  const v6 = rest.addressType === 'IPv6'
  return slice(name, 'web', [endpoint(v6 ? 'fd00::1' : '10.1.0.1')], { metadata: { annotations }, ...rest })
}

function grown(from: Snapshot, ...objects: readonly Fields[]): Snapshot {
  return applyEvents(from, eventsOf(objects))
}

function latencies(before: Snapshot | undefined, now: Snapshot): readonly ProgrammingLatency[] {
  return programmingLatencies(before, now, { startedWallMs: START_MS, nowWallMs: NOW_MS })
}

describe('programmingLatencies', () => {
  it('leaves out what was triggered before this process started, or says nothing of it', () => {
    const now = grown(EMPTY_SNAPSHOT, triggered('a', START_MS), triggered('b', undefined))
    expect(latencies(undefined, now)).toEqual([])
  })

  it('F94: is never negative', () => {
    const now = grown(EMPTY_SNAPSHOT, triggered('a', NOW_MS + 3_600_000))
    expect(latencies(undefined, now)).toEqual([{ family: 'IPv4', latencyMs: 0 }])
  })
})
