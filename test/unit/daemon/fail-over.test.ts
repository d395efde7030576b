import { expect, it, onTestFinished } from 'vitest'
import { formatIp } from '../../../src/base/ip.ts'
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

const [DEAD, ALIVE, THIRD] = ['10.1.0.1', '10.1.0.2', '10.1.0.3']

interface ObjectWords {
  readonly isAsking?: boolean
  readonly pods?: readonly string[]
  readonly spec?: Readonly<Record<string, unknown>>
  readonly nodeNames?: Readonly<Record<string, string>>
}

function objects({ isAsking = true, pods = [DEAD, ALIVE], spec = {}, nodeNames = {} }: ObjectWords = {}) {
  const annotations = isAsking ? { 'kprobe.io/fail-over': 'passive' } : {}
  const endpoints = pods.map(each =>
    endpoint(each, { targetRef: { kind: 'Pod', name: `pod-${each}` }, nodeName: nodeNames[each] ?? 'there' }),
  )
  const ports = ['', 'admin'].map(name => ({ name, port: 8080 }))
  return [
    node(),
    service('web', spec, { metadata: { annotations } }),
    slice('a', 'web', endpoints, { ports }),
  ]
}

let port = 1_024

const attempts = (to = DEAD): readonly Entry[] =>
  [1, 2, 3].map(() =>
    entry(`10.2.0.1:${port++}`, '10.96.0.1:80', `${to}:8080`, {
      protocol: 'TCP',
      isHalfOpen: true,
      isDnat: false,
      tcpState: 1,
      timeoutS: 119,
    }),
  )

const answer = (by: string) =>
  entry(`10.2.0.1:${port++}`, '10.96.0.1:80', `${by}:8080`, {
    protocol: 'TCP',
    tcpState: 7,
    timeoutS: 120,
  })

const OPTIONS = { options: { balancing: { policy: 'random' } } } as const

/** A daemon whose rules follow at once if it syncs. The endpoints in `alive` answer the client between all readings. */
function watching({ entries = attempts(), given = objects(), alive = [ALIVE], syncs = true } = {}) {
  const conntrack = new FakeConntrack(entries)
  const answering = new Set(alive)
  conntrack.during = ({ isAnswered }) => {
    if (isAnswered) conntrack.entries = [...conntrack.entries, ...[...answering].map(answer)]
  }
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const facts: EventFact[] = []
  const metrics = createMetrics({})
  const world: { held: Resolved } = { held: view(given, undefined, OPTIONS) }
  const failOver = new FailOver({
    conntrack,
    clock,
    log,
    nodeName: 'here',
    setting: () => undefined,
    metrics,
    tell: fact => facts.push(fact),
    take: events => {
      if (syncs) sync(events)
    },
  })
  const sync = (events: readonly SnapshotEvent[]) => {
    world.held = view([], world.held, { ...OPTIONS, events })
    failOver.offer(world.held)
  }
  onTestFinished(() => failOver.stop())
  failOver.offer(world.held)
  const portsOf = () => world.held.table.services.get('ns/web')?.ports ?? []
  const served = () => portsOf()[0]?.cluster.length
  const silent = () => world.held.snapshot.silent.get('ns/web')?.endpoints.map(({ ip }) => formatIp(ip)) ?? []
  const change = (its: readonly unknown[]) => {
    world.held = view(its, world.held, OPTIONS)
    failOver.offer(world.held)
  }
  const readings = () => conntrack.dumps.filter(each => each === 'unanswered').length
  return {
    conntrack,
    answering,
    clock,
    lines,
    facts,
    metrics,
    failOver,
    portsOf,
    served,
    silent,
    change,
    readings,
  }
}

it('reads nothing before a Service requests it, and once a second afterwards', async () => {
  const { clock, change, readings } = watching({ entries: [], given: objects({ isAsking: false }) })
  await clock.advance(600_000)
  expect(readings()).toBe(0)
  change(objects())
  await clock.advance(5_000)
  expect(readings()).toBe(5)
  change(objects({ isAsking: false }))
  await clock.advance(60_000)
  expect(readings()).toBe(5)
})

it('takes an endpoint out at the second reading, deletes its attempts, and reports it', async () => {
  const { conntrack, clock, lines, facts, metrics, served } = watching()
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
  expect(conntrack.deleted).toHaveLength(3)
})

it('lets it back after 10 s, and after twice the time where it is silent again', async () => {
  const { conntrack, clock, lines, facts, metrics, served } = watching()
  await clock.advance(2_000)
  await clock.advance(9_000)
  expect(served()).toBe(1)
  conntrack.entries = attempts()
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
  conntrack.entries = attempts()
  await clock.advance(2_000)
  expect(lines.at(-1)).toMatchObject({ seconds: 10 })
})

it('lets all back when the annotation goes, and in a mode without fail-over', async () => {
  for (const end of ['annotation', 'mode'] as const) {
    const { clock, change, failOver, served, metrics } = watching()
    await clock.advance(2_000)
    expect(served()).toBe(1)
    if (end === 'annotation') change(objects({ isAsking: false }))
    else failOver.offer(undefined)
    expect(await metrics.text()).toContain('kprobe_failed_over_endpoints 0')
    expect(served()).toBe(2)
  }
})

it('logs once that conntrack cannot be read, and changes nothing then', async () => {
  const { conntrack, clock, lines, served } = watching()
  conntrack.failure = new Error('no conntrack')
  await clock.advance(60_000)
  expect(lines.map(({ msg }) => msg)).toEqual(['cannot read conntrack: no endpoint fails over; retrying'])
  expect(served()).toBe(2)
  conntrack.failure = undefined
  await clock.advance(5_000)
  expect(served()).toBe(1)
})

it('lets an endpoint back at once when all others of its list are silent', async () => {
  const { conntrack, answering, clock, lines, served, silent } = watching()
  await clock.advance(2_000)
  expect(silent()).toEqual([DEAD])
  answering.clear()
  conntrack.entries = attempts(ALIVE)
  await clock.advance(1_000)
  expect(served()).toBe(1)
  await clock.advance(1_000)
  expect(served()).toBe(2)
  expect(lines.at(-1)).toMatchObject({ msg: 'the endpoint gets new connections again' })
  // It answers, and the other one does not.
  answering.add(DEAD)
  await clock.advance(2_000)
  expect(silent()).toEqual([ALIVE])
})

it.each(['annotation', 'endpoint', 'mode'] as const)(
  'judges nothing by a view that changed: %s',
  async end => {
    const { conntrack, clock, change, failOver, silent, facts } = watching()
    const { during } = conntrack
    await clock.advance(1_000)
    conntrack.during = filter => {
      during(filter)
      if (!filter.isAnswered) return
      conntrack.during = during
      if (end === 'annotation') change(objects({ isAsking: false }))
      else if (end === 'endpoint') change(objects({ pods: [ALIVE] }))
      else failOver.offer(undefined)
    }
    await clock.advance(600_000)
    expect(silent()).toEqual([])
    expect(facts).toEqual([])
  },
)

it('lets a new pod begin at the address of one that was out', async () => {
  const { conntrack, clock, change, served, silent, metrics } = watching()
  await clock.advance(2_000)
  conntrack.entries = []
  change(objects({ pods: [DEAD, ALIVE, THIRD] }))
  expect(silent()).toEqual([DEAD])
  change(objects({ pods: [ALIVE, THIRD] }))
  expect(silent()).toEqual([])
  expect(await metrics.text()).toContain('kprobe_failed_over_endpoints 0')
  change(objects({ pods: [DEAD, ALIVE, THIRD] }))
  expect(served()).toBe(3)
})

it('does not count endpoints that are gone', async () => {
  const { conntrack, answering, clock, change, silent } = watching({
    given: objects({ pods: [DEAD, ALIVE, THIRD] }),
  })
  await clock.advance(2_000)
  expect(silent()).toEqual([DEAD])
  change(objects({ pods: [ALIVE, THIRD] }))
  answering.delete(ALIVE)
  answering.add(THIRD)
  conntrack.entries = attempts(ALIVE)
  await clock.advance(3_000)
  expect(silent()).toEqual([ALIVE])
})

it('takes out what all lists that have it can leave out', async () => {
  const spec = { type: 'NodePort', externalTrafficPolicy: 'Local', ports: [{ port: 80, nodePort: 30_080 }] }
  const given = objects({ spec, nodeNames: { [DEAD]: 'here' } })
  const here = watching({ given })
  await here.clock.advance(5_000)
  expect(here.portsOf()[0]).toMatchObject({ cluster: [{}, {}], local: [{}] })
  expect(here.lines).toEqual([])
  expect(here.silent()).toEqual([])
  const elsewhere = watching({ given: objects({ spec, nodeNames: { [ALIVE]: 'here' } }) })
  await elsewhere.clock.advance(2_000)
  expect(elsewhere.portsOf()[0]).toMatchObject({ cluster: [{}], local: [{}] })
  expect(elsewhere.lines).toHaveLength(1)
})

it('deletes no attempt while the rules lead to the endpoint', async () => {
  const { conntrack, clock, lines } = watching({ syncs: false })
  await clock.advance(5_000)
  expect(lines).toHaveLength(1)
  expect(conntrack.deleted).toEqual([])
})

it('compares answers with the reading before alone', async () => {
  const { conntrack, clock, lines } = watching({ alive: [] })
  await clock.advance(1_000)
  conntrack.entries = []
  await clock.advance(5_000)
  conntrack.entries = [...attempts(), answer(ALIVE)]
  await clock.advance(3_000)
  expect(lines).toEqual([])
})

it('reports an endpoint of two ports once', async () => {
  const ports = [{ port: 80 }, { name: 'admin', port: 81 }]
  const { clock, lines, facts, metrics, portsOf } = watching({ given: objects({ spec: { ports } }) })
  await clock.advance(4_000)
  expect(portsOf().map(({ cluster }) => cluster.length)).toEqual([1, 1])
  expect([lines.length, facts.length]).toEqual([1, 1])
  expect(await metrics.text()).toContain('kprobe_failed_over_endpoints 1')
})

it('judges on where nothing can be deleted, and logs that once', async () => {
  const { conntrack, clock, lines, served } = watching()
  conntrack.deleteFailure = new Error('no deletion')
  await clock.advance(9_000)
  expect(served()).toBe(1)
  await clock.advance(1_000)
  expect(lines.map(({ level }) => level)).toEqual(['warn', 'warn'])
  conntrack.entries = attempts()
  conntrack.deleteFailure = undefined
  await clock.advance(2_000)
  expect(conntrack.deleted).toHaveLength(3)
})

it('ends within a reading, and reports nothing then', async () => {
  const { conntrack, clock, lines, failOver, silent } = watching()
  await clock.advance(1_000)
  let stopped: Promise<void> | undefined
  conntrack.during = () => {
    stopped = failOver.stop()
  }
  await clock.advance(5_000)
  await stopped
  expect(conntrack.dumps).toEqual(['unanswered', 'answered', 'unanswered'])
  expect(lines).toEqual([])
  expect(silent()).toEqual([])
})
