import { describe, expect, it } from 'vitest'
import { Receipts } from '../../../src/telemetry/admin-server.ts'
import {
  type EventFact,
  type EventWrite,
  healthCheckFailed,
  identityOf,
  noteText,
  packetsAsWanted,
  packetsDiffer,
  serverFailed,
  serviceQuarantined,
  serviceRefused,
  serviceReleased,
  starting,
} from '../../../src/telemetry/event.ts'
import { EventRecorder, type PostResult, TokenBucket } from '../../../src/telemetry/events.ts'
import { programmingLatencies } from '../../../src/telemetry/proxy-metrics.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { endpoint, service, slice, snapshotOf } from '../model/objects.ts'

const START_MS = Date.parse('2026-11-21T10:00:00.000Z')

/** A recorder, and an API server that answers as told; `taken` when not told. */
function recorder() {
  const clock = new FakeClock()
  const writes: EventWrite[] = []
  const answers: PostResult[] = []
  const lost: string[] = []
  const uids = new Map<string, string>()
  const events = new EventRecorder({
    clock,
    wallMs: () => START_MS + clock.nowMs(),
    random: () => 0,
    nodeName: 'node-1',
    uidOf: service => uids.get(service) ?? '',
    post: write => {
      writes.push(write)
      return Promise.resolve(answers.shift() ?? 'taken')
    },
    lost: (why, regarding, reason) => lost.push(`${why}: ${regarding} ${reason}`),
  })
  return { clock, writes, answers, lost, uids, events }
}

function fact(name: string, note = 'x'): EventFact {
  return {
    type: 'Warning',
    reason: 'ServiceRefused',
    action: 'Parse',
    note,
    regarding: { kind: 'Service', key: `ns/${name}` },
  }
}

describe('facts', () => {
  it("are kube-proxy's by reason, action and what they regard", () => {
    const error = new Error('listen EADDRINUSE')
    const ofNode = { action: 'StartKubeProxy', regarding: { kind: 'Node', name: 'node-1' } }
    expect(starting('node-1')).toEqual({ ...ofNode, type: 'Normal', reason: 'Starting', note: '' })
    const failed = { type: 'Warning', reason: 'FailedToStartProxierHealthcheck', note: 'listen EADDRINUSE' }
    expect(serverFailed('node-1', 'healthz', error)).toEqual({ ...ofNode, ...failed })
    expect(serverFailed('node-1', 'metrics', error).reason).toBe('FailedToStartMetricServer')
    expect(healthCheckFailed('node-1', { service: 'ns/web', port: 30_100, error })).toEqual({
      type: 'Warning',
      reason: 'FailedToStartServiceHealthcheck',
      action: 'Listen',
      note: 'node node-1 failed to start healthcheck "ns/web" on port 30100: listen EADDRINUSE',
      regarding: { kind: 'Service', key: 'ns/web' },
    })
  })

  it('name the refused object, and the reporter', () => {
    const refusal = {
      object: 'Service ns/web',
      field: 'spec.externalIPs[0]',
      value: '127.0.0.1',
      reason: 'why',
    }
    const ofSlice = { ...refusal, object: 'EndpointSlice ns/web-1', field: 'endpoints[0]' }
    expect(serviceRefused('ns/web', [refusal, ofSlice]).note).toBe(
      'spec.externalIPs[0] = 127.0.0.1 ignored: why; EndpointSlice ns/web-1: endpoints[0] = 127.0.0.1 ignored: why',
    )
    expect(serviceQuarantined('ns/web', 'node-1', new Error('EINVAL')).note).toBe('node node-1: EINVAL')
    expect(serviceReleased('ns/web', 'node-1').type).toBe('Normal')
  })

  it('I-09: have notes of one line of ASCII, at most 1 KiB', () => {
    expect(noteText('a\nb\u202ec\u001b[31mé')).toBe('a\\u{a}b\\u{202e}c\\u{1b}[31m\\u{e9}')
    for (const text of ['x'.repeat(5_000), '\n'.repeat(1_024), '\u{1f600}'.repeat(600)]) {
      const note = noteText(text)
      expect(note).toHaveLength(1_024)
      expect(note).toMatch(/^[\x20-\x7e]+\.\.\.$/)
    }
    expect(noteText('y'.repeat(1_024))).toBe('y'.repeat(1_024))
  })
})

describe('identityOf', () => {
  it('is unique within a millisecond, and short enough', () => {
    const object = { kind: 'Node', name: 'n'.repeat(253) } as const
    const one = identityOf(object, 1_800_000_000_000, 1)
    expect(one.namespace).toBe('default')
    expect(one.name.length).toBeLessThanOrEqual(253)
    expect(identityOf(object, 1_800_000_000_000, 2)).not.toEqual(one)
    expect(one.name).toMatch(/^n+\.[0-9a-f]+$/)
  })
})

describe('EventRecorder', () => {
  it('posts an event of events.k8s.io/v1', async () => {
    const { events, writes } = recorder()
    events.record(fact('web', 'why'))
    await settle()
    const name = writes.map(({ body }) => ('metadata' in body ? body.metadata : undefined))[0]
    expect(name).toEqual({ name: expect.stringMatching(/^web\.[0-9a-f]+$/), namespace: 'ns' })
    expect(writes).toEqual([
      {
        path: '/apis/events.k8s.io/v1/namespaces/ns/events',
        body: {
          apiVersion: 'events.k8s.io/v1',
          kind: 'Event',
          metadata: name,
          eventTime: '2026-11-21T10:00:00.000000Z',
          reportingController: 'kube-proxy',
          reportingInstance: 'kube-proxy-node-1',
          action: 'Parse',
          reason: 'ServiceRefused',
          regarding: { apiVersion: 'v1', kind: 'Service', namespace: 'ns', name: 'web' },
          note: 'why',
          type: 'Warning',
        },
      },
    ])
    expect(events.counts).toEqual({ taken: 1, refused: 0, dropped: 0, waiting: 0 })
  })

  it('names the uid of the Service, and that of a Node in the namespace default, as kubectl describe needs', async () => {
    const { events, writes, uids } = recorder()
    for (const uid of ['uid-1', 'uid-2']) {
      uids.set('ns/web', uid)
      events.record(fact('web', 'why'))
    }
    events.record(starting('node-1'))
    await settle()
    const web = { apiVersion: 'v1', kind: 'Service', namespace: 'ns', name: 'web' }
    expect(
      writes.map(({ path, body }) => [path.split('/')[5], 'regarding' in body && body.regarding]),
    ).toEqual([
      ['ns', { ...web, uid: 'uid-1' }],
      ['ns', { ...web, uid: 'uid-2' }],
      ['default', { apiVersion: 'v1', kind: 'Node', name: 'node-1', uid: 'node-1' }],
    ])
  })

  it('posts equal facts of six minutes once, and those that the server did not take again', async () => {
    const { events, writes, answers, clock } = recorder()
    const occurs = async () => {
      for (let at = 0; at < 50; at++) events.record(fact('web'))
      await settle()
      return writes.length
    }
    expect(await occurs()).toBe(1)
    await clock.advance(359_000)
    expect(await occurs()).toBe(1)
    await clock.advance(1_000)
    answers.push('refused')
    expect(await occurs()).toBe(2)
    expect(await occurs()).toBe(3)
  })

  const difference = { name: 'x', packet: 'p', expected: 'a', kernel: 'b', rule: undefined }
  it.each([
    ['ServiceQuarantined', serviceQuarantined('ns/web', 'node-1', new Error('EINVAL'))],
    ['PacketsDiffer', packetsDiffer('node-1', difference)],
  ])('posts %s and its end by turns, however soon, and an equal state once', async (reason, begin) => {
    const { events, writes } = recorder()
    const others = [fact('web'), serviceQuarantined('ns/other', 'node-1', new Error('EINVAL'))]
    const end =
      reason === 'PacketsDiffer' ? packetsAsWanted('node-1', difference) : serviceReleased('ns/web', 'node-1')
    const states = [begin, begin, end, end, begin, end, begin, begin]
    for (const state of states) for (const each of [...others, state]) events.record(each)
    await settle()
    const reasons = writes.map(({ body }) => ('reason' in body ? body.reason : undefined))
    const [first, second, ...turns] = reasons
    expect([first, second]).toEqual([others[0]?.reason, others[1]?.reason])
    expect(turns).toEqual([begin, end, begin, end, begin].map(its => its.reason))
  })

  it('tries again with growing delays, keeps the order, and gives up in the end', async () => {
    const { events, writes, answers, clock, lost } = recorder()
    answers.push(...Array.from({ length: 12 }, () => 'retry' as const))
    events.record(fact('a'))
    events.record(fact('b'))
    await settle()
    expect(writes).toHaveLength(1)
    await clock.advance(499)
    expect(writes).toHaveLength(1)
    await clock.advance(1)
    expect(writes).toHaveLength(2)
    await clock.advance(999)
    expect(writes).toHaveLength(2)
    await clock.advance(3_600_000)
    expect(writes).toHaveLength(13)
    expect(writes.slice(0, 12).every(({ body }) => JSON.stringify(body).includes('"name":"a'))).toBe(true)
    expect(writes[12]?.body).toMatchObject({ regarding: { name: 'b' } })
    expect(lost).toEqual(['retries: Service ns/a ServiceRefused'])
    expect(events.counts).toEqual({ taken: 1, refused: 0, dropped: 1, waiting: 0 })
  })

  it('does not try again what the server refuses', async () => {
    const { events, writes, answers, lost, clock } = recorder()
    answers.push('refused')
    events.record(fact('web'))
    await clock.advance(600_000)
    expect(writes).toHaveLength(1)
    expect(lost).toEqual(['refused: Service ns/web ServiceRefused'])
    expect(events.counts).toEqual({ taken: 0, refused: 1, dropped: 0, waiting: 0 })
  })

  it('writes 25 at once and then one every ten seconds, whatever floods it, and complains once a minute', async () => {
    const { events, writes, lost, clock } = recorder()
    for (let at = 0; at < 10_000; at++) events.record(fact(`s${at}`))
    await settle()
    expect(writes).toHaveLength(25)
    expect(lost).toEqual(['limit: Service ns/s25 ServiceRefused'])
    expect(events.counts.dropped).toBe(9_975)
    await clock.advance(10_000)
    for (let at = 0; at < 10; at++) events.record(fact(`t${at}`))
    await settle()
    expect(writes).toHaveLength(26)
  })

  it('stops with what waits', async () => {
    const { events, writes, answers, clock } = recorder()
    answers.push('retry')
    events.record(fact('web'))
    await settle()
    await events.stop()
    events.record(fact('other'))
    await clock.advance(3_600_000)
    expect(writes).toHaveLength(1)
    expect(clock.pending).toBe(0)
  })
})

describe('TokenBucket', () => {
  it('gives what it has, then one a period, and never holds more than its size', () => {
    let now = 0
    const bucket = new TokenBucket({ size: 2, refillMs: 100, nowMs: () => now })
    const takes = (tries: number) => Array.from({ length: tries }, () => bucket.take())
    expect(takes(3)).toEqual([true, true, false])
    now = 50
    expect(takes(1)).toEqual([false])
    now = 100
    expect(takes(2)).toEqual([true, false])
    now = 1_000_000
    expect(takes(3)).toEqual([true, true, false])
  })
})

const CANARY = 'canary-7f3a91'

/** Objects that carry secrets wherever other tools put them, each with something to refuse as well. */
function snapshotWithSecrets() {
  const annotations = { 'example.com/bgp-password': CANARY, [`example.com/${CANARY}`]: 'x' }
  const metadata = { namespace: 'ns', name: 'web', annotations, managedFields: [{ manager: CANARY }] }
  return snapshotOf([
    service('web', { externalIPs: ['127.0.0.1'] }, { metadata }),
    slice('web-1', 'web', [endpoint('127.0.0.1'), endpoint('10.1.0.1')], { metadata: { annotations } }),
    { apiVersion: 'v1', kind: 'Node', metadata: { name: 'here', annotations }, status: {} },
  ])
}

function failure(): Error {
  const cause = Object.assign(new Error(`Authorization: Bearer ${CANARY}`), { config: { token: CANARY } })
  return Object.assign(new Error('GET /api/v1/services: 401', { cause }), {
    headers: { Authorization: CANARY },
  })
}

describe('I-08: secrets', () => {
  it('are in no event, metric or receipt', async () => {
    const snapshot = snapshotWithSecrets()
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
