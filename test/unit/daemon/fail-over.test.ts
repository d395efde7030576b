import { expect, it, onTestFinished } from 'vitest'
import { FailOver } from '../../../src/daemon/fail-over.ts'
import type { Resolved } from '../../../src/model/resolve.ts'
import type { SnapshotEvent } from '../../../src/model/snapshot.ts'
import type { EventFact } from '../../../src/telemetry/event.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeConntrack } from '../../support/fake-conntrack.ts'
import { createMetrics } from '../../support/metrics.ts'
import { recordedLog } from '../../support/recorded-log.ts'
import { view } from '../flows/views.ts'
import { type Entry, entry } from '../kernel/conntrack/flows.ts'
import { endpoint, node, service, slice } from '../model/objects.ts'

const [DEAD, ALIVE] = ['10.1.0.1', '10.1.0.2']

function objects(isAsking = true): readonly unknown[] {
  const annotations = isAsking ? { 'kprobe.io/fail-over': 'passive' } : {}
  const pods = [DEAD, ALIVE].map(each => endpoint(each, { targetRef: { kind: 'Pod', name: `pod-${each}` } }))
  return [node(), service('web', {}, { metadata: { annotations } }), slice('a', 'web', pods)]
}

let port = 1_024

const attempts = (): readonly Entry[] =>
  [1, 2, 3].map(() =>
    entry(`10.2.0.1:${port++}`, '10.96.0.1:80', `${DEAD}:8080`, {
      protocol: 'TCP',
      isHalfOpen: true,
      isDnat: false,
      timeoutS: 119,
    }),
  )

const ANSWER = entry('10.2.0.1:1000', '10.96.0.1:80', `${ALIVE}:8080`, {
  protocol: 'TCP',
  tcpState: 7,
  timeoutS: 119,
})

const OPTIONS = { options: { balancing: { policy: 'random' } } } as const

/** A daemon whose syncs are done at once. */
function watching(entries: readonly Entry[], isAsking = true) {
  const conntrack = new FakeConntrack(entries)
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const facts: EventFact[] = []
  const metrics = createMetrics({})
  const world: { held: Resolved } = { held: view(objects(isAsking), undefined, OPTIONS) }
  const failOver = new FailOver({
    conntrack,
    clock,
    log,
    nodeName: 'here',
    setting: () => undefined,
    metrics,
    tell: fact => facts.push(fact),
    take: events => sync(events),
  })
  const sync = (events: readonly SnapshotEvent[]) => {
    world.held = view([], world.held, { ...OPTIONS, events })
    failOver.offer(world.held)
  }
  onTestFinished(() => failOver.stop())
  failOver.offer(world.held)
  const served = () => world.held.table.services.get('ns/web')?.ports[0]?.cluster.length
  const change = (its: readonly unknown[]) => {
    world.held = view(its, world.held, OPTIONS)
    failOver.offer(world.held)
  }
  const readings = () => conntrack.dumps.length
  return { conntrack, clock, lines, facts, metrics, failOver, served, change, readings }
}

it('reads nothing before a Service requests it, and once a second afterwards', async () => {
  const { clock, change, readings } = watching([], false)
  await clock.advance(600_000)
  expect(readings()).toBe(0)
  change(objects())
  await clock.advance(5_000)
  expect(readings()).toBe(5)
  change(objects(false))
  await clock.advance(60_000)
  expect(readings()).toBe(5)
})

it('takes an endpoint out at the second reading, deletes its attempts, and reports it', async () => {
  const { conntrack, clock, lines, facts, metrics, served } = watching([...attempts(), ANSWER])
  await clock.advance(1_000)
  expect(served()).toBe(2)
  await clock.advance(1_000)
  expect(served()).toBe(1)
  expect(lines).toMatchObject([
    { service: 'ns/web', endpoint: `${DEAD}:8080`, pod: `ns/pod-${DEAD}`, attempts: 3, seconds: 10 },
  ])
  expect(facts.map(({ reason }) => reason)).toEqual(['EndpointOut'])
  const text = await metrics.text()
  expect(text).toContain('kprobe_failed_over_endpoints 1')
  expect(text).toContain('kprobe_fail_overs_total 1')
  expect(conntrack.deleted).toEqual([])
  await clock.advance(1_000)
  expect(conntrack.deleted).toHaveLength(3)
})

it('lets it back after 10 s, and after twice the time where it is silent again', async () => {
  const { conntrack, clock, lines, facts, metrics, served } = watching([...attempts(), ANSWER])
  await clock.advance(2_000)
  await clock.advance(9_000)
  expect(served()).toBe(1)
  conntrack.entries = [...attempts(), ANSWER]
  await clock.advance(1_000)
  expect(served()).toBe(2)
  expect(await metrics.text()).toContain('kprobe_failed_over_endpoints 0')
  await clock.advance(2_000)
  expect(served()).toBe(1)
  await clock.advance(18_000)
  expect(served()).toBe(1)
  await clock.advance(2_000)
  expect(served()).toBe(2)
  expect(lines.map(({ seconds }) => seconds)).toEqual([10, undefined, 20, undefined])
  expect(facts).toHaveLength(1)
  // Where it stays well for a minute, the next time is the first again.
  await clock.advance(61_000)
  conntrack.entries = [...attempts(), ANSWER]
  await clock.advance(2_000)
  expect(lines.at(-1)).toMatchObject({ seconds: 10 })
})

it('lets all back when the annotation goes, and in a mode without fail-over', async () => {
  for (const end of ['annotation', 'mode'] as const) {
    const { clock, change, failOver, served, metrics } = watching([...attempts(), ANSWER])
    await clock.advance(2_000)
    expect(served()).toBe(1)
    if (end === 'annotation') change(objects(false))
    else failOver.offer(undefined)
    expect(await metrics.text()).toContain('kprobe_failed_over_endpoints 0')
    expect(served()).toBe(2)
  }
})

it('logs once that conntrack cannot be read, and changes nothing then', async () => {
  const { conntrack, clock, lines, served } = watching([...attempts(), ANSWER])
  conntrack.failure = new Error('no conntrack')
  await clock.advance(60_000)
  expect(lines.map(({ msg }) => msg)).toEqual(['cannot read conntrack: no endpoint fails over; retrying'])
  expect(served()).toBe(2)
  conntrack.failure = undefined
  await clock.advance(5_000)
  expect(served()).toBe(1)
})
