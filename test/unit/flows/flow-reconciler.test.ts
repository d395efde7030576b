import { beforeEach, describe, expect, it } from 'vitest'
import { type FlowEvent, FlowReconciler } from '../../../src/flows/flow-reconciler.ts'
import type { ConntrackClient } from '../../../src/kernel/conntrack/client.ts'
import type { Flow, FlowFilter } from '../../../src/kernel/conntrack/flow.ts'
import type { Resolved } from '../../../src/model/resolve.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { flow, flowText } from '../kernel/conntrack/flows.ts'
import { service, slice } from '../model/objects.ts'
import { dns, dnsSlice, type EndpointWords, READY, view } from './views.ts'

const CLIENT = '10.1.0.5:4000'
const [A, B, C] = ['10.2.0.1', '10.2.0.2', '10.2.0.3']
const TO_A = flow(CLIENT, '10.96.0.10:53', `${A}:1053`)
const FOREIGN = flow(CLIENT, '203.0.113.9:53')

/** A table of flows that lists and deletes as the kernel does, and fails when told to. */
class Kernel implements ConntrackClient {
  flows: Flow[] = []
  readonly dumps: FlowFilter[] = []
  failure: Error | undefined
  interruptions = 0
  deletes = 0
  /** Called before a dump lists anything. */
  meanwhile: () => void = () => undefined

  async dump(filter: FlowFilter, visitor: Parameters<ConntrackClient['dump']>[1]): Promise<boolean> {
    this.dumps.push(filter)
    await Promise.resolve()
    this.meanwhile()
    if (this.failure !== undefined) throw this.failure
    for (const each of [...this.flows]) {
      if (each.protocol !== filter.protocol || each.family !== filter.family) continue
      if (visitor.isWanted(each.destination, each.destinationPort)) visitor.visit(each)
    }
    return this.interruptions-- <= 0
  }

  async delete(flows: readonly Flow[]): Promise<{ deleted: number; gone: number }> {
    await Promise.resolve()
    this.deletes++
    const before = this.flows.length
    this.flows = this.flows.filter(each => !flows.includes(each))
    const deleted = before - this.flows.length
    return { deleted, gone: flows.length - deleted }
  }

  async statistics() {
    return { entries: 0, entriesMax: undefined, insertFailed: 0, dropped: 0, droppedEarly: 0 }
  }

  async close(): Promise<void> {
    this.flows = []
  }
}

let clock: FakeClock
let kernel: Kernel
let events: FlowEvent[]
let reconciler: FlowReconciler
let now: Resolved

beforeEach(() => {
  clock = new FakeClock()
  kernel = new Kernel()
  kernel.flows = [TO_A, FOREIGN]
  events = []
  now = view([])
  reconciler = start()
})

function start(): FlowReconciler {
  return new FlowReconciler({
    client: kernel,
    clock,
    random: () => 0.5,
    share: () => 0.025,
    report: event => events.push(event),
  })
}

async function offer(next: Resolved, ms = 1_000): Promise<void> {
  now = next
  reconciler.offer(next.snapshot, next.table)
  await clock.advance(ms)
}

const texts = () => kernel.flows.map(flowText)
const changed = (endpoints: EndpointWords) => view([dnsSlice(endpoints)], now)
const started = () => offer(view([dns(), dnsSlice({ [A]: READY })]))

describe('FlowReconciler', () => {
  it('rests between passes as long as the last one cost, divided by the share', async () => {
    await started()
    kernel.meanwhile = () => {
      clock.spentMs += 5
    }
    await offer(changed({ [B]: READY }), 20)
    const before = kernel.dumps.length
    await offer(changed({ [A]: READY }), 180)
    expect(kernel.dumps.length).toBe(before)
    await clock.advance(20)
    expect(kernel.dumps.length).toBeGreaterThan(before)
  })

  it('I-18 deletes nothing that is right, however often it starts', async () => {
    await started()
    for (let restart = 0; restart < 10; restart++) {
      await reconciler.stop()
      reconciler = start()
      await offer(now)
    }
    expect(texts()).toEqual([TO_A, FOREIGN].map(flowText))
    expect(events).toHaveLength(11)
    const nothing = { deleted: 0, cut: 0, halfOpen: 0, durationMs: 0 }
    expect(events[0]).toMatchObject({ family: 'IPv4', reason: 'start', examined: 2, ...nothing })
  })

  it('deletes what a change made stale, and nothing else', async () => {
    await started()
    await offer(changed({ [B]: READY }))
    expect(texts()).toEqual([flowText(FOREIGN)])
    expect(events.at(-1)).toMatchObject({ reason: 'change', deleted: 1, examined: 2 })
  })

  it('asks the kernel nothing when a change leaves no flow behind', async () => {
    await started()
    const before = kernel.dumps.length
    await offer(changed({ [A]: READY, [B]: READY }))
    expect(kernel.dumps.length).toBe(before)
  })

  it('asks the kernel nothing for Services without UDP', async () => {
    await offer(view([dns({ ports: [{ port: 80 }] })]))
    expect([kernel.dumps, events]).toEqual([[], []])
  })

  it('I-14 finds stale flows by state, without events in between', async () => {
    await started()
    const unseen = [`${B}9`, '10.2.0.30', '10.2.0.31'].reduce(
      (last, address) => view([dnsSlice({ [address]: READY })], last),
      now,
    )
    await offer(unseen)
    expect(texts()).toEqual([flowText(FOREIGN)])
  })

  it('makes one pass of many changes', async () => {
    await started()
    const before = events.length
    for (let round = 0; round < 50; round++) {
      now = changed({ [`10.2.1.${round}`]: READY })
      reconciler.offer(now.snapshot, now.table)
    }
    await clock.advance(1_000)
    expect(events.length - before).toBe(1)
    expect(texts()).toEqual([flowText(FOREIGN)])
  })

  it('knows the endpoints of a Service that is deleted', async () => {
    await started()
    const other = flow('10.1.0.6:4000', '10.96.0.10:53', '10.9.9.9:53')
    kernel.flows.push(other)
    await offer(view([], now, { remove: ['ns/dns'] }))
    expect(texts()).toEqual([FOREIGN, other].map(flowText))
  })

  it('looks at everything again after its period', async () => {
    await started()
    kernel.flows = [flow(CLIENT, '10.96.0.10:53', `${B}:1053`)]
    await clock.advance(599_000)
    expect(texts()).toHaveLength(1)
    await clock.advance(2_000)
    expect(texts()).toEqual([])
    expect(events.at(-1)).toMatchObject({ reason: 'period', deleted: 1 })
  })

  it('F78 tries again with growing delays while it fails, and forgets nothing meanwhile', async () => {
    await started()
    kernel.failure = new Error('list flows: EPERM')
    await offer(view([], now, { remove: ['ns/dns'] }), 600_000)
    const retries = events.flatMap(event => (event.kind === 'failed' ? [event.retryMs] : []))
    expect(retries.slice(0, 4)).toEqual([375, 750, 1_500, 3_000])
    expect(Math.max(...retries)).toBe(45_000)
    expect(retries.length).toBeLessThan(30)
    expect(texts()).toHaveLength(2)
    kernel.failure = undefined
    await clock.advance(60_000)
    expect(texts()).toEqual([flowText(FOREIGN)])
  })

  it('I-19 lists again when the table changed meanwhile, and deletes what was proven already', async () => {
    await started()
    kernel.interruptions = 3
    await offer(changed({ [B]: READY }))
    expect(kernel.dumps).toHaveLength(1 + 4)
    expect(events.filter(({ kind }) => kind === 'failed')).toEqual([])
    kernel.interruptions = 1_000
    kernel.flows.push(flow(CLIENT, '10.96.0.10:53', `${B}:1053`))
    await offer(changed({ [A]: READY }), 5_000)
    expect(events.some(event => event.kind === 'failed' && event.error.message.includes('each of 5'))).toBe(
      true,
    )
    expect(texts()).toEqual([flowText(FOREIGN)])
  })

  it('looks again when the kernel had not yet what the Snapshot says', async () => {
    await started()
    const next = changed({ [B]: READY })
    reconciler.offer(next.snapshot, now.table)
    await clock.advance(1_000)
    expect(texts()).toEqual([flowText(FOREIGN)])
    kernel.flows.push(TO_A)
    await offer(next)
    expect(texts()).toEqual([flowText(FOREIGN)])
  })

  it.skipIf(IS_QUICK)(
    'I-16 deletes a great many in sends of a bounded size, and ends in the middle when it is stopped',
    async () => {
      await started()
      kernel.flows = Array.from({ length: 10_000 }, (_, n) =>
        flow(`10.1.${n >> 8}.${n & 255}:4000`, '10.96.0.10:53', `${A}:1053`),
      )
      await offer(changed({ [B]: READY }))
      expect([kernel.flows.length, kernel.deletes]).toEqual([0, Math.ceil(10_000 / 256)])
      kernel.flows = [flow(CLIENT, '10.96.0.10:53', `${B}:1053`)]
      kernel.meanwhile = () => void reconciler.stop()
      await offer(changed({ [A]: READY }), 3_600_000)
      expect(kernel.flows).toHaveLength(1)
      expect(clock.pending).toBe(0)
    },
  )

  it('looks at all Services when NodePorts move to other addresses', async () => {
    await started()
    const before = kernel.dumps.length
    await offer(view([], now, { localIps: ['192.0.2.7'] }))
    expect(kernel.dumps.length).toBe(before + 1)
  })

  it('lists everything when many addresses are concerned', async () => {
    await started()
    const many = Array.from({ length: 20 }, (_, n) => ({
      ...dns({ clusterIP: `10.96.1.${n}` }),
      metadata: { namespace: 'ns', name: `dns-${n}` },
    }))
    await offer(view(many, now))
    expect(kernel.dumps.at(-1)).toEqual({ family: 'IPv4', protocol: 'UDP' })
  })
})

describe('connections of TCP', () => {
  const tcp = flow(CLIENT, '10.96.0.10:53', `${A}:1053`, { protocol: 'TCP' })
  const ports = [{ name: 'dns', port: 53, protocol: 'TCP' }]
  const sliceOf = (endpoints: EndpointWords) =>
    dnsSlice(endpoints, { ports: [{ name: 'dns', port: 1053, protocol: 'TCP' }] })
  const withDrain = (drain: string) =>
    view([dns({ ports }, { 'kprobe.io/tcp-drain': drain }), sliceOf({ [A]: READY })])

  beforeEach(() => {
    kernel.flows = [tcp]
  })

  it('are cut when their time is over', async () => {
    await offer(withDrain('30s'))
    await offer(view([sliceOf({ [B]: READY })], now))
    expect(texts()).toEqual([flowText(tcp)])
    await clock.advance(28_000)
    expect(texts()).toHaveLength(1)
    await clock.advance(2_000)
    expect(texts()).toEqual([])
    expect(events.at(-1)).toMatchObject({ reason: 'drain', cut: 1, deleted: 0 })
  })

  it('are cut at once when there is no time', async () => {
    await offer(withDrain('cut'))
    await offer(view([sliceOf({ [B]: READY })], now))
    expect(texts()).toEqual([])
  })

  it('go on when their endpoint comes back in time', async () => {
    await offer(withDrain('30s'))
    await offer(view([sliceOf({ [B]: READY })], now))
    await offer(view([sliceOf({ [A]: READY, [B]: READY })], now))
    await clock.advance(60_000)
    expect(texts()).toEqual([flowText(tcp)])
  })
})

describe('connection attempts', () => {
  const ports = [{ name: 'dns', port: 53, protocol: 'TCP' }]
  const web = (endpoints: EndpointWords) =>
    view(
      [dns({ ports }), dnsSlice(endpoints, { ports: [{ name: 'dns', port: 1053, protocol: 'TCP' }] })],
      now,
    )
  const tcp = (isHalfOpen: boolean) =>
    flow(CLIENT, '10.96.0.10:53', `${A}:1053`, { protocol: 'TCP', isHalfOpen })
  const [attempt, open] = [tcp(true), tcp(false)]
  const TO_B = flow(CLIENT, '10.96.0.10:53', `${B}:1053`, { protocol: 'TCP', isHalfOpen: true })

  beforeEach(async () => {
    kernel.flows = [attempt, open]
    await offer(web({ [A]: READY, [B]: READY }))
  })

  it('to an endpoint that is gone are deleted, after those to endpoints that live were answered', async () => {
    await offer(web({ [B]: READY }), 199)
    expect(kernel.dumps).toEqual([])
    await clock.advance(1_000)
    expect(kernel.flows).toEqual([attempt, open])
    await clock.advance(1)
    expect(kernel.flows).toEqual([open])
    const filter = {
      ...{ family: 'IPv4', protocol: 'TCP' },
      destination: attempt.destination,
      destinationPort: 53,
      isHalfOpen: true,
    }
    expect(kernel.dumps).toEqual([filter, filter])
    const result = { reason: 'removal', examined: 2, deleted: 0, cut: 0 }
    expect(events).toEqual([0, 1].map(halfOpen => expect.objectContaining({ ...result, halfOpen })))
  })

  it('are kept when the answer took most of a second, and when the endpoint came back with a new attempt', async () => {
    await offer(web({ [B]: READY }), 1_100)
    const [answered, later] = [open, { ...attempt, id: attempt.id + 1 }]
    kernel.flows = [answered, later]
    await clock.advance(200)
    expect([kernel.dumps.length, kernel.flows]).toEqual([2, [answered, later]])
  })

  it('are kept when their endpoint comes back between the two reads', async () => {
    await offer(web({ [B]: READY }), 600)
    expect(kernel.dumps).toHaveLength(1)
    await offer(web({ [A]: READY, [B]: READY }), 6_000)
    expect(kernel.flows).toEqual([attempt, open])
  })

  it('lead to a rest of five seconds, whatever a pass waited for', async () => {
    await offer(web({ [B]: READY, [C]: READY }), 1_200)
    kernel.flows = [flow(CLIENT, '10.96.0.10:53', `${C}:1053`, { protocol: 'TCP', isHalfOpen: true })]
    await offer(web({ [B]: READY }), 5_000 + 1_200)
    expect(kernel.flows).toEqual([])
  })

  it('are looked for every five seconds while endpoints go, and not at all while they come', async () => {
    for (let n = 0; n < 120; n++) await offer(web({ [A]: READY, [`10.2.1.${n}`]: READY }), 100)
    expect([kernel.dumps.length, kernel.flows.length]).toEqual([3, 2])
    await clock.advance(5_000)
    const before = kernel.dumps.length
    for (let n = 0; n < 30; n++)
      await offer(
        web({ [A]: READY, '10.2.1.119': READY, [`10.3.1.${n % 2}`]: READY, '10.3.1.0': READY }),
        100,
      )
    expect(kernel.dumps.length - before).toBeLessThanOrEqual(1)
    await offer(web({ '10.2.1.119': READY }), 6_000)
    expect(kernel.flows).toEqual([open])
  })

  it('are deleted, however often the Service changed since the pass before', async () => {
    await offer(web({ [A]: READY, [B]: READY, [C]: READY }), 300)
    await offer(web({ [A]: READY, [B]: READY }), 300)
    for (let n = 0; n < 90; n++) await offer(web({ [B]: READY, [`10.2.1.${n}`]: READY }), 50)
    await clock.advance(6_000)
    expect(kernel.flows).toEqual([open])
  })

  describe('to Services among many that change', () => {
    const address = (n: number) => `10.96.1.${n}`
    const many = (ready: readonly string[], protocol = 'TCP') =>
      view(
        Array.from({ length: 40 }, (_, n) => n).flatMap(n => [
          service(`web-${n}`, { clusterIP: address(n), ports: [{ name: 'dns', port: 53, protocol }] }),
          slice(
            `web-${n}-a`,
            `web-${n}`,
            ready.map(each => ({ addresses: [each], conditions: READY })),
            { ports: [{ name: 'dns', port: 1053, protocol }] },
          ),
        ]),
        now,
      )
    const listing = { family: 'IPv4', protocol: 'TCP', isHalfOpen: true }

    beforeEach(() => offer(many([A, B])))

    it('are found by one list of attempts, which is all when there are none', async () => {
      kernel.flows = [open]
      for (let n = 0; n < 40; n++) await offer(many([A, n % 2 === 0 ? B : C]), 100)
      expect(kernel.dumps).toEqual([listing])
    })

    it('are not looked for while endpoints only come', async () => {
      await offer(many([A, B, C]), 10_000)
      expect(kernel.dumps).toEqual([])
    })

    it('are deleted', async () => {
      const to = flow(CLIENT, `${address(7)}:53`, `${A}:1053`, { protocol: 'TCP', isHalfOpen: true })
      const elsewhere = flow(CLIENT, '203.0.113.9:53', undefined, { protocol: 'TCP', isHalfOpen: true })
      kernel.flows = [to, elsewhere]
      await offer(many([B]), 2_000)
      expect(kernel.flows).toEqual([elsewhere])
      const narrow = { ...listing, destination: to.destination, destinationPort: 53 }
      expect(kernel.dumps).toEqual([listing, narrow, narrow])
    })
  })

  it('are looked for again when the kernel has caught up between the two reads', async () => {
    const lagging = web({ [B]: READY })
    reconciler.offer(lagging.snapshot, now.table)
    await clock.advance(300)
    kernel.flows.push({ ...attempt, id: attempt.id + 1 })
    await offer(lagging, 2_000)
    expect(kernel.flows).toHaveLength(2)
    await clock.advance(6_000)
    expect(kernel.flows).toEqual([open])
  })

  it('are left to their timeout, with the versions of their Service, when passes fail for as long as a client tries', async () => {
    kernel.failure = new Error('list flows: EPERM')
    await offer(web({ [B]: READY }), 300_000)
    kernel.failure = undefined
    const dumps = kernel.dumps.length
    await clock.advance(100_000)
    expect([kernel.dumps.length - dumps, kernel.flows]).toEqual([0, [attempt, open]])
    kernel.flows.push(TO_B)
    await offer(web({ [C]: READY }), 6_000)
    expect(kernel.flows).toEqual([attempt, open])
  })

  it('F215 are looked for again after a failure, and after the kernel has caught up', async () => {
    kernel.failure = new Error('list flows: EPERM')
    await offer(web({ [B]: READY }), 2_000)
    expect(events.some(({ kind }) => kind === 'failed')).toBe(true)
    kernel.failure = undefined
    const lagging = web({ [B]: READY, '10.2.0.9': READY })
    reconciler.offer(lagging.snapshot, now.table)
    await clock.advance(3_000)
    expect(kernel.flows).toEqual([open])
    kernel.flows.push(attempt)
    await offer(lagging, 6_000)
    expect(kernel.flows).toEqual([open])
    await reconciler.stop()
    expect(clock.pending).toBe(0)
  })
})
