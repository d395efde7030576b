import { expect, it, onTestFinished } from 'vitest'
import { UnansweredWatch } from '../../../../src/inspect/live/unanswered-watch.ts'
import type { EventFact } from '../../../../src/telemetry/event.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeConntrack } from '../../../support/fake-conntrack.ts'
import { createMetrics } from '../../../support/metrics.ts'
import { recordedLog } from '../../../support/recorded-log.ts'
import { type Entry, entry } from '../../kernel/conntrack/flows.ts'
import { endpoint, node, service, slice, snapshotOf, tableOf } from '../../model/objects.ts'

const [DEAD, ALIVE] = ['10.1.0.1', '10.1.0.2']

/** What the daemon holds of one Service with these endpoints, each a Pod. */
function heldWith(addresses: readonly string[], pod = 'web-a') {
  const pods = addresses.map(each => endpoint(each, { targetRef: { kind: 'Pod', name: pod } }))
  const objects = [node(), service('web'), slice('a', 'web', pods)]
  return { table: tableOf(objects), snapshot: snapshotOf(objects) }
}

const syns = (address: string, number: number): Entry[] =>
  Array.from({ length: number }, (_, n) =>
    entry(`10.2.0.${n}:4000`, '10.96.0.1:80', `${address}:8080`, {
      protocol: 'TCP',
      isHalfOpen: true,
      isDnat: false,
      timeoutS: 100,
    }),
  )

function watching(entries: readonly Entry[]) {
  const conntrack = new FakeConntrack(entries)
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const facts: EventFact[] = []
  const world = { held: heldWith([DEAD, ALIVE]) }
  const watch = new UnansweredWatch({
    conntrack,
    clock,
    log,
    nodeName: 'here',
    held: () => world.held,
    tell: fact => facts.push(fact),
    setting: () => undefined,
  })
  onTestFinished(() => watch.stop())
  const notes = () => facts.map(({ reason, note, regarding }) => ({ reason, note, regarding }))
  const readings = () => conntrack.dumps.filter(each => each === 'unanswered').length
  return { conntrack, clock, watch, notes, readings, lines, world }
}

it('reads once a minute, and four times while something meets no answer', async () => {
  const { conntrack, clock, readings } = watching([])
  await clock.advance(59_999)
  expect(readings()).toBe(0)
  await clock.advance(1)
  expect(readings()).toBe(1)
  conntrack.entries = syns(DEAD, 5)
  await clock.advance(60_000)
  expect(readings()).toBe(2)
  await clock.advance(15_000)
  expect(readings()).toBe(3)
})

it('reports an endpoint once that is silent in two readings, and logs its end', async () => {
  const { conntrack, clock, watch, notes, lines } = watching(syns(DEAD, 5))
  await clock.advance(60_000)
  expect([notes().length, watch.silent]).toEqual([0, 1])
  await clock.advance(60_000)
  const note =
    'node here: endpoint 10.1.0.1:8080 (pod ns/web-a) of ns/web leaves most connections without a reply'
  expect(notes()).toEqual([{ reason: 'EndpointSilent', note, regarding: { kind: 'Service', key: 'ns/web' } }])
  expect(lines).toMatchObject([{ msg: 'the endpoint does not answer', pod: 'ns/web-a' }])
  expect(watch.last?.rows).toMatchObject([{ pod: 'ns/web-a' }])
  conntrack.entries = []
  await clock.advance(60_000)
  expect(watch.silent).toBe(0)
  expect(lines.at(-1)).toMatchObject({ service: 'ns/web', endpoint: '10.1.0.1:8080', level: 'info' })
})

it('reports neither a few connections, nor an endpoint that is gone', async () => {
  const few = watching(syns(DEAD, 4))
  await few.clock.advance(120_000)
  expect([few.watch.silent, few.notes()]).toEqual([0, []])
  const gone = watching(syns(DEAD, 9))
  gone.world.held = heldWith([ALIVE])
  await gone.clock.advance(120_000)
  expect([gone.watch.silent, gone.watch.last?.rows]).toEqual([0, []])
})

it('is shown as metrics of the 50 worst endpoints', async () => {
  const { clock, watch } = watching([...syns(DEAD, 9), ...syns(ALIVE, 1)])
  const metrics = createMetrics({ unanswered: () => watch })
  expect(await metrics.text()).toContain('kprobe_silent_endpoints 0')
  await clock.advance(60_000)
  const text = await metrics.text()
  expect(text).toContain('kprobe_silent_endpoints 1')
  const labels = 'namespace="ns",service="web",port="",protocol="TCP",endpoint="10.1.0.1:8080"'
  expect(text).toContain(`kprobe_endpoint_unanswered_connections{${labels}} 9`)
  expect(text).toContain(`kprobe_endpoint_recent_connections{${labels}} 9`)
})

it('stays after a table that cannot be read', async () => {
  const { conntrack, clock, watch } = watching(syns(DEAD, 5))
  conntrack.failure = new Error('no conntrack')
  await clock.advance(60_000)
  expect(watch.last).toMatchObject({ rows: [], limits: 'conntrack cannot be read: no conntrack' })
  conntrack.failure = undefined
  await clock.advance(60_000)
  expect(watch.last?.rows).toHaveLength(1)
})

it('says neither of an endpoint that it answers again, nor reports it again, after a table that cannot be read', async () => {
  const { conntrack, clock, watch, notes, lines } = watching(syns(DEAD, 5))
  await clock.advance(120_000)
  expect(notes()).toHaveLength(1)
  conntrack.failure = new Error('no conntrack')
  await clock.advance(60_000)
  expect(watch.silent).toBe(1)
  conntrack.failure = undefined
  await clock.advance(120_000)
  expect([notes().length, lines.length]).toEqual([1, 1])
})

it('reports 50 endpoints at a time, and counts all', async () => {
  const addresses = Array.from({ length: 60 }, (_, n) => `10.1.1.${n}`)
  const { conntrack, clock, watch, notes, lines, world } = watching(addresses.flatMap(each => syns(each, 5)))
  world.held = heldWith(addresses)
  await clock.advance(180_000)
  expect([notes().length, watch.silent, lines.length]).toEqual([50, 60, 50])
  // The order of the worst changes: nothing is reported of those that stay silent.
  conntrack.entries = addresses.toReversed().flatMap((each, n) => syns(each, n < 30 ? 6 : 5))
  await clock.advance(60_000)
  expect([notes().length, watch.silent, lines.length]).toEqual([50, 60, 50])
})
