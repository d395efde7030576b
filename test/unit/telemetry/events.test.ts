import { describe, expect, it } from 'vitest'
import {
  type EventFact,
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
import { settle } from '../../support/fake-clock.ts'
import { recorder } from './event-recorder.ts'

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
