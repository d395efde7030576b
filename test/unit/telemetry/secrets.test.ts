import { describe, expect, it } from 'vitest'
import { isRefusal } from '../../../src/model/fields.ts'
import { parseObject } from '../../../src/model/parse.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../../src/model/snapshot.ts'
import { Receipts } from '../../../src/telemetry/admin-server.ts'
import { serviceQuarantined, serviceRefused } from '../../../src/telemetry/event.ts'
import { programmingLatencies } from '../../../src/telemetry/proxy-metrics.ts'
import { settle } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { endpoint, service, slice } from '../model/objects.ts'
import { recorder } from './event-recorder.ts'

const CANARY = 'canary-7f3a91'

/** Objects that carry secrets wherever other tools put them, each with something to refuse as well. */
function events(): SourceEvent[] {
  const annotations = { 'example.com/bgp-password': CANARY, [`example.com/${CANARY}`]: 'x' }
  const metadata = { namespace: 'ns', name: 'web', annotations, managedFields: [{ manager: CANARY }] }
  const objects = [
    service('web', { externalIPs: ['127.0.0.1'] }, { metadata }),
    slice('web-1', 'web', [endpoint('127.0.0.1'), endpoint('10.1.0.1')], { metadata: { annotations } }),
    { apiVersion: 'v1', kind: 'Node', metadata: { name: 'here', annotations }, status: {} },
  ]
  return objects.map(object => {
    const event = parseObject(object)
    if (event === undefined || isRefusal(event)) throw new Error('no event')
    return event
  })
}

function failure(): Error {
  const cause = Object.assign(new Error(`Authorization: Bearer ${CANARY}`), { config: { token: CANARY } })
  return Object.assign(new Error('GET /api/v1/services: 401', { cause }), {
    headers: { Authorization: CANARY },
  })
}

describe('I-08: secrets', () => {
  it('are in no event, metric or receipt', async () => {
    const snapshot = applyEvents(EMPTY_SNAPSHOT, events())
    const refusals = [...snapshot.services.values(), ...snapshot.sliceByKey.values()].flatMap(
      its => its.refusals,
    )
    expect(refusals.length).toBeGreaterThan(0)
    const { events: sink, writes } = recorder()
    sink.record(serviceRefused('ns/web', refusals))
    sink.record(serviceQuarantined('ns/web', 'here', failure()))
    await settle()
    expect(writes).toHaveLength(2)

    const metrics = createMetrics()
    metrics.kprobe_refusals.set(refusals.length)
    for (const { latencyMs } of programmingLatencies(undefined, snapshot, { startedWallMs: 0, nowWallMs: 1 }))
      metrics.kubeproxy_network_programming_duration_seconds.observe({ ip_family: 'IPv4' }, latencyMs)
    metrics.apiRequest({ method: 'GET', host: 'api:6443', status: undefined, durationMs: 1 })
    const receipts = new Receipts(() => 0)
    receipts.add('change', 1, {
      outcome: 'refused',
      generation: 1,
      foreign: false,
      refusals: [{ services: ['ns/web'], error: failure() }],
      bytes: 1,
      messages: 1,
      durationMs: 1,
    })
    const all = [JSON.stringify(writes), await metrics.text(), JSON.stringify(receipts.lines)].join('\n')
    expect(all).toContain('401')
    expect(all).not.toContain(CANARY)
  })
})
