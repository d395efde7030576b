import { describe, expect, it } from 'vitest'
import type { Call } from '../../../src/api/grpc/rpc.ts'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { judgeNode } from '../../../src/relay/judgement.ts'
import {
  decodeReport,
  encodeReport,
  type ReportCall,
  ReportForwarder,
} from '../../../src/relay/node-report.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { METADATA } from '../../../src/relay/types.ts'
import { serviceOf } from '../../support/apiserver/generator.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { REPORT } from '../../support/node-report.ts'
import { MemoryRelay, RelayWorld, type RelayWorldOptions } from '../../support/relay.ts'
import { KeptCall, requestOf } from '../../support/relay-call.ts'
import { ReportingNode } from '../../support/relay-node.ts'

/** A relay at the API server, one behind it, and a node at that one. */
async function begin(options: RelayWorldOptions = {}) {
  const world = new RelayWorld(options)
  const { clock, relays } = world
  const [near] = relays
  if (near === undefined) throw new Error('no relay')
  near.start()
  await clock.advance(2_000)
  const far = new MemoryRelay(world, [near])
  far.start()
  await clock.advance(3_000)
  const direct = await world.direct().start()
  const node = world.node('node-0', [far])
  await node.start()
  await clock.advance(5_000)
  expect(node.known).toEqual(direct.known)
  return { world, clock, near, far, direct, node }
}

it('F217: a relay looks at no other node for a report, also where every place is taken', () => {
  const state = new RelayState({ clock: new FakeClock(), proxyName: '' })
  const nodes = state.collections.Node
  for (let index = 0; index < 16_400; index++)
    nodes.put(`node-${index}`, { version: '1', resource: Buffer.alloc(0) })
  nodes.seal('1')
  const text = encodeReport(REPORT)
  for (let index = 0; index < 16_384; index++) state.reports.take(`node-${index}`, text)
  let looks = 0
  const get = nodes.get.bind(nodes)
  Object.assign(nodes, { get: (name: string) => looks++ >= 0 && get(name) })
  state.reports.take('node-16390', text)
  expect(state.reports.refused.get('too-many')).toBe(1)
  expect(looks).toBeLessThan(5)
})

describe('a relay behind a relay', () => {
  it('loses no deletion of the time while it was down', async () => {
    const { world, clock, far, direct, node } = await begin()
    for (let time = 0; time < 40; time++) {
      world.change()
      await clock.advance(50)
    }
    await clock.advance(15_000)
    await far.kill()
    await clock.advance(100)
    const [key = ''] = [...node.snapshot.services.keys()].filter(each => each.startsWith('namespace-0'))
    world.store.delete('services', key)
    await clock.advance(500)
    far.start()
    await clock.advance(120_000)
    expect(direct.snapshot.services.has(key)).toBe(false)
    expect(node.known).toEqual(direct.known)
  })

  it('never mixes two clusters', async () => {
    const { world, clock, near, far, node } = await begin()
    for (let index = 0; index < 10; index++)
      world.store.put('services', serviceOf(index, { namespaces: 1 }, { port: 100 + index }))
    await clock.advance(3_000)
    const other = new RelayWorld({ seed: 7, startVersion: '20', cluster: 'cluster-b' })
    for (let time = 0; time < 400; time++)
      other.store.put('services', serviceOf(time % 10, { namespaces: 1 }, { port: 3_000 + time }))
    await near.kill()
    near.start(other)
    const direct = await other.direct().start()
    for (let time = 0; time < 120; time++) {
      await other.clock.advance(1_000)
      await clock.advance(1_000)
    }
    expect(far.state.cluster).toBe('cluster-b')
    expect(node.known).toEqual(direct.known)
  })

  it('hands the reports of its nodes on, as they are, until the nodes are silent', async () => {
    const { world, clock, near, far } = await begin()
    await new ReportingNode(world, 'node-1', [near]).start()
    const there = await new ReportingNode(world, 'node-2', [far]).start()
    const verdicts = () => {
      const { goal } = near.state.reports
      return Object.fromEntries(
        [...near.state.reports.nodes()].map(node => [node.name, judgeNode(node, goal).state]),
      )
    }
    await clock.advance(5_000)
    expect(verdicts()).toEqual({ 'node-0': 'silent', 'node-1': 'holds', 'node-2': 'holds' })
    const latencies: number[] = []
    near.state.reports.observed = ({ share }) => void latencies.push(share)
    world.store.put('services', serviceOf(3, { namespaces: 1 }, { port: 4_321 }))
    await clock.advance(5_000)
    expect(verdicts()['node-2']).toBe('holds')
    // The slowest node is the one behind the other relay.
    expect(latencies).toContain(1)
    there.accepts = false
    world.store.put('services', serviceOf(3, { namespaces: 1 }, { port: 4_322 }))
    await clock.advance(3_000)
    expect(verdicts()).toMatchObject({ 'node-1': 'holds', 'node-2': 'failing' })
    const of = ({ state }: MemoryRelay) => [...state.reports.nodes()].find(({ name }) => name === 'node-2')
    expect(of(near)?.text).toBe(of(far)?.text)
    await there.stop()
    await clock.advance(120_000)
    expect(verdicts()).toMatchObject({ 'node-1': 'holds', 'node-2': 'silent' })
    expect([...near.state.reports.refused]).toEqual([])
  })

  it('F209: that reads the API server itself hands nothing on, and what its nodes hold is unknown above', async () => {
    const { world, clock, near, far } = await begin({ fallsBack: true })
    await new ReportingNode(world, 'node-2', [far]).start()
    const verdictAt = ({ state: { reports } }: MemoryRelay) =>
      [...reports.nodes()].flatMap(its => (its.name === 'node-2' ? judgeNode(its, reports.goal) : []))[0]
    await clock.advance(5_000)
    expect(verdictAt(near)?.state).toBe('holds')
    await near.kill()
    await clock.advance(120_000)
    world.store.put('services', serviceOf(3, { namespaces: 1 }, { port: 4_321 }))
    await clock.advance(1_000)
    near.start()
    await clock.advance(3_000)
    expect(world.said.join()).toContain('reading from the API server')
    expect(verdictAt(far)?.state).toBe('holds')
    expect(verdictAt(near)).toMatchObject({ state: 'silent', why: expect.stringContaining('is unknown') })
    expect(near.state.reports.states().get('holds')).toBe(0)
    await clock.advance(130_000)
    expect(verdictAt(near)?.state).toBe('holds')
  })

  it('F209: hands on the newest report of each node, so many at a time, when the relay above reads again', async () => {
    const clock = new FakeClock()
    const { reports } = new RelayState({ clock, proxyName: '' })
    const sent: string[] = []
    let call: (ReportCall & { isFull: boolean }) | undefined
    const forwarder = new ReportForwarder({ clock, reports, call: () => call })
    const tell = (number: number): void => {
      for (let node = 0; node < 600; node++) reports.take(`node-${node}`, encodeReport({ ...REPORT, number }))
    }
    tell(1)
    await clock.advance(1_000)
    call = { isFull: true, report: (text, node) => void sent.push(`${node} ${decodeReport(text)?.number}`) }
    for (let number = 2; number < 8; number++) {
      await clock.advance(1_000)
      tell(number)
    }
    expect(sent).toEqual([])
    call.isFull = false
    await clock.advance(260)
    expect(sent).toHaveLength(256)
    await clock.advance(1_000)
    expect(sent.sort()).toEqual(Array.from({ length: 600 }, (_, node) => `node-${node} 7`).sort())
    // What is refused is not handed on, and nothing is sent twice.
    tell(7)
    await clock.advance(1_000)
    expect(sent).toHaveLength(600)
    forwarder.stop()
    tell(8)
    await clock.advance(1_000)
    expect(sent).toHaveLength(600)
  })

  it('F209: hands on nothing of a node that has become silent meanwhile', async () => {
    const clock = new FakeClock()
    const { reports } = new RelayState({ clock, proxyName: '' })
    const sent: string[] = []
    let call: ReportCall | undefined
    const forwarder = new ReportForwarder({ clock, reports, call: () => call })
    reports.take('gone', encodeReport(REPORT))
    await clock.advance(90_000)
    reports.take('here', encodeReport(REPORT))
    await clock.advance(20_000)
    call = { isFull: false, report: (_, node) => void sent.push(node) }
    await clock.advance(1_000)
    expect(sent).toEqual(['here'])
    expect(clock.pending).toBe(0)
    forwarder.stop()
  })

  it('F208: a client that may report for all names nodes alone, and so many of them', () => {
    const clock = new FakeClock()
    const state = new RelayState({ clock, proxyName: '' })
    const trustedAs = ({ commonName }: Pick<Call, 'commonName'>) => commonName
    const { deltas } = new DiscoveryServer({ state, clock, trustedAs })
    const handler = deltas(new KeptCall('a'))
    const metadata = { [METADATA.report]: encodeReport(REPORT) }
    for (const id of ['node-1', 'x'.repeat(254), 'two words', '', 'node-2'])
      handler.message(requestOf({ id, metadata }))
    expect([...state.reports.nodes()].map(({ name }) => name)).toEqual(['node-1', 'node-2'])
    expect(state.reports.refused.get('other-node')).toBe(3)
    let most = 0
    while (most < 100_000 && state.reports.joined(`more-${most}`, 'a', false)) most++
    expect(most).toBe(65_534)
    expect(state.reports.joined('node-1', 'a', true)).toBe(true)
    state.reports.left('node-1', 'a')
    handler.closed?.()
    expect(state.reports.joined('node-2', 'a', false)).toBe(true)
    // Another one that may report for all has places of its own.
    expect(state.reports.joined('node-3', 'b', false)).toBe(true)
  })
})
