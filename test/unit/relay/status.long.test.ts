import { describe, expect, it } from 'vitest'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { judgeNode, type NodeVerdict } from '../../../src/relay/judgement.ts'
import { decodeReport, encodeReport, type NodeReport } from '../../../src/relay/node-report.ts'
import type { ProgrammingLatency } from '../../../src/relay/programming.ts'
import { METADATA } from '../../../src/relay/types.ts'
import { serviceOf, sliceOf } from '../../support/apiserver/generator.ts'
import { createRandom } from '../../support/apiserver/random.ts'
import { REPORT } from '../../support/node-report.ts'
import { type MemoryRelay, RelayWorld, type RelayWorldOptions } from '../../support/relay.ts'
import { KeptCall, requestOf } from '../../support/relay-call.ts'
import { ReportingNode } from '../../support/relay-node.ts'

/** Nodes that report, at the relays of a world. */
async function begin(options: RelayWorldOptions = {}, count = 3) {
  const world = new RelayWorld(options)
  for (const relay of world.relays) relay.start()
  await world.clock.advance(2_000)
  const nodes: ReportingNode[] = []
  for (let index = 0; index < count; index++)
    nodes.push(await new ReportingNode(world, `node-${index}`).start())
  await world.clock.advance(3_000)
  const [relay] = world.relays
  if (relay === undefined) throw new Error('no relay')
  const node = (index: number): ReportingNode => nodes[index] ?? expect.fail('no such node')
  return { world, clock: world.clock, relay, node }
}

/** What a relay says of its nodes, by their names. */
function judged({ state }: MemoryRelay, service?: string): ReadonlyMap<string, NodeVerdict> {
  const goal = { ...state.reports.goal, service }
  return new Map([...state.reports.nodes()].map(node => [node.name, judgeNode(node, goal)]))
}

function states(relay: MemoryRelay): Readonly<Record<string, string>> {
  return Object.fromEntries([...judged(relay)].map(([name, { state }]) => [name, state]))
}

interface Contents {
  readonly version: number
  readonly services: ReadonlyMap<string, number>
  readonly slices: ReadonlySet<string>
}

function contentsOf({ store }: RelayWorld): Contents {
  const services = new Map<string, number>()
  const slices = new Set<string>()
  for (let index = 0; index < 10; index++) {
    const [key, slice] = [`namespace-0/service-${index}`, `namespace-0/service-${index}-00000`]
    const service = store.get('services', key)
    if (service !== undefined) services.set(key, Object(service.spec).ports[0].port)
    if (store.get('endpointslices', slice) !== undefined) slices.add(slice)
  }
  return { version: Number(store.version), services, slices }
}

/** Objects of the kernel of a node that are older than what the relay says that it holds. */
function falseOf(
  { kernel }: ReportingNode,
  { state }: MemoryRelay,
  past: readonly Contents[],
): readonly string[] {
  const { revisions } = state.reports.goal
  const since = (revision: string): readonly Contents[] => {
    const at = past.findLastIndex(({ version }) => version <= Number(revision))
    return past.slice(Math.max(0, at))
  }
  const keys = [...Array(10).keys()].map(index => `namespace-0/service-${index}`)
  const services = keys.filter(key => {
    const port = kernel.services.get(key)?.ports[0]?.port
    return !since(revisions.Service).some(its => its.services.get(key) === port)
  })
  const slices = keys
    .map(key => `${key}-00000`)
    .filter(key => {
      const isThere = kernel.sliceByKey.has(key)
      return !since(revisions.EndpointSlice).some(its => its.slices.has(key) === isThere)
    })
  return [...services, ...slices]
}

const HELD = { ...REPORT, held: { Service: '106', EndpointSlice: '106' } }

const HOLD = { 'node-0': 'holds', 'node-1': 'holds', 'node-2': 'holds' }

describe('relay: status of nodes', () => {
  it('says that nodes hold the present state once their kernels do', async () => {
    const { world, clock, relay, node } = await begin()
    expect(states(relay)).toEqual(HOLD)
    world.change()
    await clock.advance(1_030)
    expect(states(relay)).toEqual(HOLD)
    const { kernel } = node(0)
    expect(kernel.services.size + kernel.sliceByKey.size).toBeGreaterThan(0)
    const { Service, EndpointSlice } = relay.state.reports.goal.revisions
    expect(Math.max(Number(Service), Number(EndpointSlice))).toBe(Number(world.store.version))
  })

  it('F190: a node whose kernel refuses holds less, with the reason and since when', async () => {
    const { world, clock, relay, node } = await begin()
    const refusing = node(1)
    refusing.accepts = false
    const before = judged(relay).get('node-1')?.report?.held
    for (let time = 0; time < 4; time++) world.change()
    await clock.advance(20_000)
    expect(states(relay)).toEqual({ ...HOLD, 'node-1': 'failing' })
    const verdict = judged(relay).get('node-1')
    expect(verdict?.why).toBe('nf_tables: EPERM')
    expect(verdict?.report?.held).toEqual(before)
    expect(verdict?.sinceMs).toBeGreaterThan(18_000)
    expect(verdict?.sinceMs).toBeLessThan(20_001)
    refusing.accepts = true
    await clock.advance(2_000)
    expect(states(relay)).toEqual(HOLD)
  })

  it('F190: a Service that the kernel rejected is missing there, and no other is', async () => {
    const { world, clock, relay, node } = await begin()
    node(0).quarantined = [{ service: 'shop/cart', error: new Error('EINVAL\u001b[2J') }]
    world.change()
    await clock.advance(2_000)
    expect(states(relay)).toEqual({ ...HOLD, 'node-0': 'incomplete' })
    expect(judged(relay).get('node-0')?.why).toBe('shop/cart: EINVAL\\u{1b}[2J')
    expect(judged(relay, 'shop/cart').get('node-0')?.state).toBe('incomplete')
    expect(judged(relay, 'shop/other').get('node-0')?.state).toBe('holds')
  })

  it('F191: a report that comes late, twice or out of order takes nothing back', async () => {
    const { relay, clock } = await begin({}, 0)
    const { reports } = relay.state
    const say = async (report: Partial<NodeReport>) => {
      reports.take('node-0', encodeReport({ ...HELD, ...report }))
      await clock.advance(300)
    }
    const held = (): string | undefined => judged(relay).get('node-0')?.report?.held?.Service
    const at = (revision: number) => ({ Service: String(revision), EndpointSlice: String(revision) })
    await say({ number: 5, startedMs: 100, held: at(105) })
    await say({ number: 5, startedMs: 100, held: at(104) })
    await say({ number: 4, startedMs: 100, held: at(103) })
    await say({ number: 9, startedMs: 99, held: at(102) })
    expect(held()).toBe('105')
    expect(reports.refused.get('late')).toBe(3)
    await say({ number: 6, startedMs: 100, held: at(101) })
    expect(held()).toBe('105')
    expect(reports.refused.get('backwards')).toBe(1)
    // Another daemon on the same node has read less so far.
    await say({ number: 1, startedMs: 200, held: undefined })
    expect(states(relay)['node-0']).toBe('behind')
    await say({ number: 2, startedMs: 200, held: at(104) })
    expect(held()).toBe('104')
  })

  it('F191: a reader that floods costs no other node anything', async () => {
    const { relay, clock } = await begin({}, 0)
    const { reports } = relay.state
    for (let number = 1; number <= 100; number++)
      reports.take('node-0', encodeReport({ ...HELD, number, version: String(number) }))
    expect(reports.refused.get('too-often')).toBe(91)
    expect(judged(relay).get('node-0')?.report?.version).toBe('9')
    await clock.advance(250)
    reports.take('node-0', encodeReport({ ...HELD, number: 101, version: '101' }))
    expect(judged(relay).get('node-0')?.report?.version).toBe('101')
    for (const text of ['', '{', '[]', '{"held":1}', `"${'x'.repeat(9_999)}"`]) reports.take('node-1', text)
    expect(reports.refused.get('malformed')).toBe(5)
    expect(states(relay)['node-1']).toBe('silent')
  })

  it('F191: a node reports 250 ms to 1 s apart while changes keep coming, and the last state in any case', async () => {
    const { world, clock, relay } = await begin()
    const numberOf = (): number => judged(relay).get('node-0')?.report?.number ?? 0
    await clock.advance(2_000)
    const before = numberOf()
    for (let time = 0; time < 200; time++) {
      world.change()
      await clock.advance(20)
    }
    expect(numberOf() - before).toBeGreaterThan(3)
    expect(numberOf() - before).toBeLessThan(9)
    await clock.advance(1_500)
    expect(states(relay)).toEqual(HOLD)
    expect([...relay.state.reports.refused]).toEqual([])
  })

  it('F191: remembers a bounded number of nodes, and forgets those that are gone', async () => {
    const { relay, clock } = await begin({}, 0)
    const { reports } = relay.state
    const text = encodeReport(HELD)
    for (let index = 0; index < 16_384; index++) reports.take(`made-up-${index}`, text)
    reports.take('made-up-too', text)
    expect(reports.refused.get('too-many')).toBe(1)
    // A node that exists has a place, however many names a client makes up.
    reports.take('node-0', text)
    await clock.advance(101_000)
    reports.take('made-up-too', text)
    expect(reports.refused.get('too-many')).toBe(1)
    expect(judged(relay).get('node-0')?.report?.number).toBe(1)
  })

  it('F204: counts nodes by state once a second, however often metrics are asked for', async () => {
    const { world, clock, relay } = await begin()
    const { reports } = relay.state
    await clock.advance(1_000)
    const counted = reports.states()
    expect(counted.get('holds')).toBe(3)
    world.change()
    await clock.advance(999)
    expect(reports.states()).toBe(counted)
    await clock.advance(1)
    expect(reports.states()).not.toBe(counted)
  })

  it('F192: a relay that was restarted says what it does not know, and knows it within one period', async () => {
    const { clock, relay } = await begin()
    await relay.kill()
    await clock.advance(1_000)
    relay.start()
    await clock.advance(10)
    expect(judged(relay).size).toBe(0)
    for (let time = 0; time < 40 && judged(relay).size === 0; time++) await clock.advance(5)
    const verdict = judged(relay).get('node-0')
    expect(verdict?.state).toBe('silent')
    expect(verdict?.why).toContain('no report since the relay started')
    expect(verdict?.sinceMs).toBeLessThan(1_000)
    await clock.advance(36_000)
    expect(states(relay)).toEqual(HOLD)
  })

  it('F192: a node that vanishes is silent by name, and drops out with its Node object', async () => {
    const { world, clock, relay, node } = await begin()
    await node(2).stop()
    await clock.advance(90_000)
    expect(states(relay)).toEqual(HOLD)
    await clock.advance(60_000)
    expect(states(relay)).toEqual({ ...HOLD, 'node-2': 'silent' })
    expect(judged(relay).get('node-2')?.sinceMs).toBeGreaterThan(100_000)
    expect(judged(relay).get('node-2')?.why).toContain('the state of its kernel is unknown')
    expect(relay.state.reports.states().get('silent')).toBe(1)
    world.store.delete('nodes', 'node-2')
    await clock.advance(1_000)
    expect(states(relay)).toEqual({ 'node-0': 'holds', 'node-1': 'holds' })
  })

  it.each(Array.from({ length: 5 }, (_, seed) => seed))(
    'never says that a kernel holds what it does not: seed %d',
    async seed => {
      const random = createRandom(seed)
      const { world, clock, node: nodeAt } = await begin({ seed, relays: 2, fallsBack: random.chance(0.5) })
      const nodes = [0, 1, 2].map(nodeAt)
      // What the API server has had, from the oldest on.
      const past = [contentsOf(world)]
      let holding = 0
      const judge = (): void => {
        for (const relay of world.relays.filter(({ isUp }) => isUp))
          for (const node of nodes) {
            if (states(relay)[node.name] !== 'holds') continue
            holding++
            expect(falseOf(node, relay, past)).toEqual([])
          }
      }
      for (let step = 0; step < 25; step++) {
        const relay = random.pick(world.relays)
        const node = random.pick(nodes)
        const what = random.int(0, 9)
        if (what === 0 && relay.isUp) await relay.kill()
        else if (what <= 1 && !relay.isUp) relay.start()
        else if (what === 2) relay.cut()
        else if (what === 3) relay.network.refuse()
        else if (what === 4) relay.network.heal()
        else if (what <= 6) node.accepts = !node.accepts
        else
          for (let times = random.int(1, 4); times > 0; times--) {
            world.change()
            past.push(contentsOf(world))
          }
        for (const ms of [1, 5, 20, random.pick([300, 3_000, 40_000, 100_000])]) {
          await clock.advance(ms)
          judge()
        }
      }
      expect(holding).toBeGreaterThan(50)
    },
  )

  it('F193: a report counts only for the node that the certificate names', async () => {
    const { relay, clock } = await begin({}, 0)
    const { state } = relay
    const said = (id: string, certified: string | undefined): void => {
      const discovery = new DiscoveryServer({ state, clock, nodeOf: () => certified })
      const handler = discovery.deltas(new KeptCall())
      handler.message(requestOf({ id, metadata: { [METADATA.report]: encodeReport(HELD) } }))
      handler.closed?.()
      discovery.close()
    }
    said('node-1', 'node-0')
    said('node-2', undefined)
    expect(states(relay)).toEqual({ 'node-0': 'silent', 'node-1': 'silent', 'node-2': 'silent' })
    expect(state.reports.refused.get('other-node')).toBe(2)
    said('node-0', 'node-0')
    expect(judged(relay).get('node-0')?.report?.version).toBe('1.2.3')
  })

  it('F193: a reader that claims the future changes nothing but its own row', async () => {
    const { world, clock, relay } = await begin()
    const claim = {
      ...HELD,
      startedMs: 9e15,
      number: 7,
      held: { Service: '999999', EndpointSlice: '999999' },
    }
    relay.state.reports.take('node-1', encodeReport(claim))
    world.change()
    await clock.advance(1_000)
    expect(states(relay)).toEqual(HOLD)
    expect(judged(relay).get('node-0')?.report?.held?.Service).not.toBe('999999')
  })

  it('shows that a node reads the API server itself, where a relay that does not serve it hears of it', async () => {
    const { world, clock, relay } = await begin({ fallsBack: true })
    const { proxyName } = relay.state
    Object.assign(relay.state, { proxyName: 'blue' })
    relay.cut()
    for (let time = 0; time < 200; time++) await clock.advance(1_000)
    expect(judged(relay).get('node-0')?.why).toContain('reads the API server itself')
    world.change()
    await clock.advance(100_000)
    expect(states(relay)).toEqual(HOLD)
    Object.assign(relay.state, { proxyName })
    await clock.advance(120_000)
    expect(judged(relay).get('node-0')?.why).toBe('')
  })

  it('waits for deletions, too', async () => {
    const { world, clock, relay, node: nodeAt } = await begin()
    const node = nodeAt(0)
    world.store.put('services', serviceOf(99, { namespaces: 1 }, { port: 4_242 }))
    await clock.advance(1_000)
    node.accepts = false
    world.store.delete('services', 'namespace-0/service-99')
    await clock.advance(1_000)
    expect(states(relay)['node-0']).toBe('failing')
    node.accepts = true
    await clock.advance(2_000)
    expect(node.kernel.services.has('namespace-0/service-99')).toBe(false)
    expect(states(relay)).toEqual(HOLD)
  })

  it('measures the time from a change to shares of the nodes, and from the time that a slice bears', async () => {
    const { world, clock, relay, node } = await begin()
    const seen: ProgrammingLatency[] = []
    relay.state.reports.observed = latency => void seen.push(latency)
    const slow = node(2)
    slow.accepts = false
    const slice = sliceOf(5, { namespaces: 1, number: 0, pods: [77] })
    const annotations = {
      'endpoints.kubernetes.io/last-change-trigger-time': new Date(world.wallMs() - 3_000).toISOString(),
    }
    world.store.put('endpointslices', { ...slice, metadata: { ...Object(slice.metadata), annotations } })
    await clock.advance(10_000)
    expect(seen.map(({ share, origin }) => `${share} ${origin}`)).toEqual(['0.5 trigger'])
    expect(seen[0]?.seconds).toBeGreaterThan(3)
    expect(seen[0]?.seconds).toBeLessThan(4)
    slow.accepts = true
    await clock.advance(3_000)
    expect(seen.map(({ share }) => share)).toEqual([0.5, 0.9, 0.99, 1])
    expect(seen[3]?.seconds).toBeGreaterThan(12)
    world.store.put('services', serviceOf(98, { namespaces: 1 }, { port: 4_243 }))
    await clock.advance(2_000)
    expect(seen.at(-1)).toMatchObject({ share: 1, origin: 'receipt' })
  })

  it('measures no time of a node that no longer reads from the relay', async () => {
    const { world, clock, relay, node } = await begin()
    await node(2).stop()
    await clock.advance(2_000)
    const seen: ProgrammingLatency[] = []
    relay.state.reports.observed = latency => void seen.push(latency)
    world.store.put('services', serviceOf(98, { namespaces: 1 }, { port: 4_243 }))
    await clock.advance(5_000)
    expect(seen.map(({ share }) => share)).toEqual([0.5, 0.9, 0.99, 1])
  })

  it('reads a report as it was written, and short', () => {
    const long = {
      ...HELD,
      failure: 'x'.repeat(9_999),
      lacking: Array(99).fill({ service: 'a/b', reason: 'y' }),
    }
    const read = decodeReport(encodeReport(long))
    expect(read?.failure).toHaveLength(200)
    expect(read?.lacking).toHaveLength(8)
    expect(decodeReport(encodeReport(HELD))).toEqual(HELD)
  })
})
