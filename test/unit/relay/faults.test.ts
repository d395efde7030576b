import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { discovery } from '../../../src/relay/schema.ts'
import { DELTA_METHOD, METADATA } from '../../../src/relay/types.ts'
import { decodeMessage } from '../../../src/wire/protobuf/decoder.ts'
import { serviceOf } from '../../support/apiserver/generator.ts'
import { RelayWorld, type RelayWorldOptions } from '../../support/relay.ts'
import { KeptCall, requestOf } from '../../support/relay-call.ts'

/** A direct watcher, and nodes at the relays of a world, in the same state. */
async function begin(options: RelayWorldOptions = {}, count = 2, name = 'node-0') {
  const world = new RelayWorld(options)
  for (const relay of world.relays) relay.start()
  await world.clock.advance(2_000)
  const direct = await world.direct(name).start()
  const nodes: ReturnType<RelayWorld['node']>[] = []
  for (let index = 0; index < count; index++) {
    const node = world.node(name)
    await node.start()
    nodes.push(node)
  }
  await world.clock.advance(2_000)
  const agree = (): void => {
    for (const node of nodes) {
      expect(node.known).toEqual(direct.known)
      expect(node.spurious).toEqual([])
    }
  }
  const change = (times: number): void => {
    for (let time = 0; time < times; time++) world.change()
  }
  return { world, clock: world.clock, relays: world.relays, direct, nodes, agree, change }
}

const STARTS = ['endpointslices start', 'nodes start', 'servicecidrs start', 'services start']

/** A reader by hand. */
function reader(world: RelayWorld, metadata: Readonly<Record<string, string>> = {}) {
  const [relay] = world.relays
  const call = new (class extends KeptCall {
    override end(code: number, text?: string): void {
      super.end(code, text)
      handler?.closed?.()
    }
  })()
  const handler = relay?.handlerOf(DELTA_METHOD, call)
  call.attempt(() => handler?.message(requestOf({ metadata })))
  return call
}

describe('relay: faults', () => {
  it('gives a node what a direct watcher has, and then every change', async () => {
    const { clock, nodes, agree, change } = await begin()
    agree()
    expect(nodes[0]?.snapshot.node).toBeDefined()
    for (let round = 0; round < 30; round++) {
      change(1)
      await clock.advance(round % 3 === 0 ? 300 : 3)
    }
    await clock.advance(1_000)
    agree()
    for (const { lists } of nodes) expect([...lists].sort()).toEqual(STARTS)
  })

  it('F178: nodes resume without a list at a relay that was killed and restarted empty', async () => {
    const { clock, relays, nodes, agree, change } = await begin()
    await relays[0]?.kill()
    await clock.advance(3_000)
    change(5)
    relays[0]?.start()
    await clock.advance(60_000)
    agree()
    for (const { lists } of nodes) expect([...lists].sort()).toEqual(STARTS)
  })

  it('F178: what is read of the past has the bytes of the history', async () => {
    const { clock, relays, nodes, agree, change } = await begin({ historyBytesMax: 1_000 })
    await relays[0]?.kill()
    change(40)
    relays[0]?.start()
    await clock.advance(60_000)
    agree()
    for (const { lists } of nodes) expect(lists.join()).toContain('services expired')
    expect(relays[0]?.state.historyBytes).toBeLessThan(4_000)
  })

  it('F179: nodes go on at another relay, or at the API server, when theirs is stopped, and come back', async () => {
    const { world, clock, relays, nodes, agree, change } = await begin({ fallsBack: true })
    relays[0]?.stop()
    change(3)
    await clock.advance(150_000)
    agree()
    expect(nodes.map(({ source }) => source.status.isDirect)).toEqual([true, true])
    relays[0]?.continue()
    await clock.advance(120_000)
    change(3)
    await clock.advance(2_000)
    agree()
    expect(nodes.map(({ source }) => source.status.isDirect)).toEqual([false, false])
    expect(world.said.join()).toContain('reading from the API server')
    for (const { lists } of nodes) expect([...lists].sort()).toEqual(STARTS)
  })

  it('F180: of two relays that disagree, an older one takes nothing back', async () => {
    // The first relay of this node's own order is the first one here.
    const { clock, relays, nodes, agree, change } = await begin({ relays: 2 }, 2, 'node-1')
    const [first, second] = relays
    expect([first?.calls.size, second?.calls.size]).toEqual([8, 0])
    second?.network.refuse()
    // Its source speaks, and says nothing new.
    Object.defineProperty(second?.state, 'isStale', { get: () => false })
    await clock.advance(1_000)
    change(6)
    await clock.advance(1_000)
    // Nodes that read from the first one have what the second one lacks.
    const before = nodes.map(({ known }) => known)
    first?.cut()
    await first?.kill()
    // An older state that consistent lists repeat for 300 s counts at an API server.
    for (let time = 0; time < 45; time++) {
      await clock.advance(10_000)
      expect(nodes.map(({ known }) => known)).toEqual(before)
    }
    second?.network.heal()
    await clock.advance(120_000)
    agree()
  })

  it('F180: without another source a node takes a relay whose source is silent', async () => {
    const { world, clock, relays, direct, agree } = await begin()
    const [relay] = relays
    relay?.network.refuse()
    await clock.advance(200_000)
    expect(relay?.state.isStale).toBe(true)
    const late = await world.node('node-0').start()
    await clock.advance(60_000)
    expect(late.synced).toBe(1)
    expect(late.known).toEqual(direct.known)
    agree()
  })

  it('F179: a node stays at the API server while a relay is well, and does not serve it', async () => {
    const { world, clock, relays, direct, change } = await begin({ fallsBack: true }, 0)
    const [relay] = relays
    const { proxyName } = relay?.state ?? {}
    Object.assign(relay?.state ?? {}, { proxyName: 'blue' })
    const node = world.node('node-0')
    await node.start()
    await clock.advance(10_000)
    expect(node.client.isDirect).toBe(true)
    for (let time = 0; time < 60; time++) {
      change(1)
      await clock.advance(5_000)
      expect(node.known).toEqual(direct.known)
      expect(node.client.isDirect).toBe(true)
    }
    Object.assign(relay?.state ?? {}, { proxyName })
    await clock.advance(120_000)
    expect(node.client.isDirect).toBe(false)
    expect(node.known).toEqual(direct.known)
  })

  it('keeps its readers where nothing happens', async () => {
    const { clock, nodes } = await begin({ bookmarkEveryMs: 60_000 })
    let silentMs = 0
    for (let time = 0; time < 180; time++) {
      await clock.advance(5_000)
      for (const { source } of nodes)
        silentMs = Math.max(silentMs, clock.nowMs() - (source.status.heardMs ?? 0))
    }
    expect(silentMs).toBeLessThan(150_000)
    for (const { problems, lists } of nodes) {
      expect(problems).toEqual([])
      expect([...lists].sort()).toEqual(STARTS)
    }
  })

  it('F183: a reader that rejects everything fills no log', async () => {
    const { clock, relays } = await begin({}, 0)
    const [relay] = relays
    if (relay === undefined) throw new Error('no relay')
    const said: string[] = []
    const discovery = new DiscoveryServer({ state: relay.state, clock, rejected: text => said.push(text) })
    const handler = discovery.deltas(new KeptCall())
    const request = requestOf({ error_detail: { message: `a\nb${'c'.repeat(9_999)}` } })
    for (let time = 0; time < 100; time++) handler.message(request)
    await clock.advance(20_000)
    handler.message(request)
    expect(discovery.counts.rejected).toBe(101)
    expect(said).toHaveLength(2)
    expect(said[0]).toMatch(/^a\\u\{a\}bc{100,200}$/)
    discovery.close()
  })

  it('F181: a whole state that is cut in the middle counts for nothing', async () => {
    const { world, clock, relays, agree } = await begin({}, 0)
    const node = world.node('node-0')
    await node.start()
    for (let time = 0; time < 40 && node.synced === 0; time++) {
      await clock.advance(3)
      relays[0]?.cut()
    }
    expect(node.synced).toBe(0)
    expect(node.changes).toBe(0)
    await clock.advance(120_000)
    expect(node.synced).toBe(1)
    agree()
  })

  it('F183: a reader that acknowledges nothing is evicted, and holds nobody up', async () => {
    const { world, clock, relays, agree, change } = await begin()
    const stalled = reader(world)
    change(20)
    await clock.advance(70_000)
    agree()
    expect(stalled.written).toHaveLength(1)
    expect(stalled.ended[0]).toMatch(/^10 evicted/)
    expect(relays[0]?.discovery.counts.evicted).toBe(1)
  })

  it('F183: a reader that falls out of the history begins anew', async () => {
    const { world, clock, relays, nodes, agree, change } = await begin({ historyBytesMax: 1 })
    relays[0]?.cut()
    change(9)
    world.store.compact()
    await clock.advance(20_000)
    agree()
    for (const { lists } of nodes) expect(lists.join()).toContain('services expired')
  })

  it('F183: a client that changes what it reads gets that as a whole, one response at a time', async () => {
    const { world, clock, relays } = await begin({}, 0)
    const call = new KeptCall()
    const handler = relays[0]?.handlerOf(DELTA_METHOD, call)
    const responses = () =>
      call.written.map(frame => decodeMessage(discovery.DeltaDiscoveryResponse, frame.subarray(5)))
    const newest = () =>
      responses()
        .at(-1)
        ?.resources?.map(({ name }) => name) ?? []
    // The node comes with the first request alone, as xDS has it.
    const say = (request: Parameters<typeof requestOf>[0]): void =>
      handler?.message(requestOf({ node: undefined, ...request }))
    const acknowledge = (): void => say({ response_nonce: responses().at(-1)?.nonce ?? '' })
    const all = [...(relays[0]?.state.collections.Service.entries() ?? [])].map(([name]) => name)
    const [one = '', two = ''] = all
    const revision = relays[0]?.state.collections.Service.revision ?? ''
    world.change()
    await clock.advance(1_000)
    // It holds these names at the revision, and no others.
    const fields = [{ key: METADATA.revision, value: { string_value: revision } }]
    say({ node: { metadata: { fields } }, resource_names_subscribe: ['no/such', one] })
    expect(newest()).toEqual([])
    for (let time = 0; time < 9; time++) {
      say({ resource_names_subscribe: ['*'] })
      say({ resource_names_unsubscribe: ['*'], resource_names_subscribe: [two] })
    }
    expect(call.written).toHaveLength(1)
    acknowledge()
    expect(newest()).toEqual([two])
    say({ resource_names_subscribe: ['*'] })
    acknowledge()
    expect(new Set(newest())).toEqual(new Set(all))
    say({ resource_names_unsubscribe: ['*'] })
    acknowledge()
    world.change()
    await clock.advance(1_000)
    expect(call.written).toHaveLength(3)
    expect(relays[0]?.discovery.counts.subscriptions).toBe(0)
    expect(call.ended).toEqual([])
  })

  it('F184: a reader that lies about its revision is refused, and those that do not are served', async () => {
    const { world, clock, relays, nodes, agree, change } = await begin()
    change(4)
    await clock.advance(1_000)
    world.store.compact(120n)
    await relays[0]?.kill()
    relays[0]?.start()
    const liars = ['1', '999999999', 'nonsense'].map(revision =>
      reader(world, { [METADATA.revision]: revision }),
    )
    await clock.advance(60_000)
    expect(liars.map(({ ended }) => ended[0]?.slice(0, 2))).toEqual(['11', '14', '11'])
    change(3)
    await clock.advance(1_000)
    agree()
    for (const { synced } of nodes) expect(synced).toBe(1)
  })

  it('F184: readers that lie about what they hold cost the API server a list together', async () => {
    const { world, clock, agree } = await begin()
    const { length } = world.asked
    const liars = Array.from({ length: 500 }, (_, index) =>
      reader(world, { [METADATA.atLeast]: String(1e9 + index) }),
    )
    await clock.advance(10_000)
    // The API server has nothing newer, so they get what there is.
    expect(liars.filter(({ written, ended }) => written.length !== 1 || ended.length > 0)).toEqual([])
    expect(world.asked.length - length).toBeLessThanOrEqual(2)
    agree()
  })

  it('relays, and nodes, serve from an API server that does not know the selector, without headless Services', async () => {
    const world = new RelayWorld()
    world.semantics.selectsClusterIps = false
    const { metadata, spec, ...rest } = serviceOf(99, { namespaces: 1 })
    const headless = { ...rest, metadata, spec: { ...Object(spec), clusterIP: 'None', clusterIPs: ['None'] } }
    world.store.put('services', headless)
    const [relay] = world.relays
    relay?.start()
    await world.clock.advance(2_000)
    const [direct, node] = [await world.direct().start(), world.node('node-0')]
    await node.start()
    await world.clock.advance(2_000)
    const { namespace, name } = Object(metadata)
    const key = `${namespace}/${name}`
    expect(node.snapshot.services.size).toBeGreaterThan(0)
    expect([direct, node].map(({ snapshot }) => snapshot.services.has(key))).toEqual([false, false])
    expect(relay?.state.collections.Service.get(key)).toBeUndefined()
    expect(node.known).toEqual(direct.known)
  })

  it('F199: nodes of an etcd that was restored do not ask the API server at once', async () => {
    const { world, clock, relays, nodes } = await begin({}, 16)
    const other = new RelayWorld({ seed: 7, startVersion: '20' })
    const [relay] = relays
    await relay?.kill()
    world.asked.length = 0
    relay?.start(other)
    let most = 0
    for (let second = 0; second < 40; second++) {
      const before = world.asked.length
      await other.clock.advance(1_000)
      await clock.advance(1_000)
      most = Math.max(most, world.asked.length - before)
    }
    // Whatever nodes claim, that is a list a second for each collection.
    expect(most).toBeLessThanOrEqual(STARTS.length)
    expect(nodes.map(({ synced }) => synced)).toEqual(nodes.map(() => 1))
  })

  it('F194: a relay whose clock leaps takes nothing back, and serves on', async () => {
    const { clock, relays, nodes, agree, change } = await begin({ fallsBack: true })
    const [relay] = relays
    for (const ms of [3_600_000, 90_000, 365 * 86_400_000]) {
      change(3)
      relay?.clock.leap(ms)
      await clock.advance(1_000)
      agree()
      await clock.advance(120_000)
      change(3)
      await clock.advance(60_000)
      agree()
    }
    expect(relay?.state.isStale).toBe(false)
    for (const { lists } of nodes) expect([...lists].sort()).toEqual(STARTS)
  })

  it('F194: the date of a relay is of no account', async () => {
    vi.useFakeTimers({ toFake: ['Date'], now: 0 })
    onTestFinished(() => void vi.useRealTimers())
    const { clock, relays, agree, change } = await begin()
    for (const year of [1970, 2099, 2001]) {
      vi.setSystemTime(Date.UTC(year, 0, 1))
      change(3)
      await clock.advance(90_000)
      agree()
      expect(relays[0]?.state.isStale).toBe(false)
    }
  })

  it('F197: a relay refuses nodes whose metadata it cannot read, and says what it speaks', async () => {
    const { world, clock } = await begin()
    const later = reader(world, { [METADATA.protocol]: '2,3' })
    const both = reader(world, { [METADATA.protocol]: '2,1' })
    await clock.advance(1_000)
    expect(later.ended).toEqual(['9 this relay speaks protocol 1, not "2,3"'])
    expect([both.ended, both.written.length]).toEqual([[], 1])
  })

  it('F185: the relay of another cluster gives a whole state, which replaces the former by one difference', async () => {
    const { nodes, move } = await beginElsewhere({ seed: 7, startVersion: '20', cluster: 'cluster-b' })
    const { direct, taken } = await move(60)
    for (const [index, node] of nodes.entries()) {
      expect(node.known).toEqual(direct.known)
      expect(node.lists.join()).toContain('services another-history')
      expect(node.changes).toBeGreaterThan(taken[index] ?? 0)
    }
  })

  it('F185: an older state of the same cluster counts only after it has been all there is for long', async () => {
    const { nodes, before, move } = await beginElsewhere({ seed: 7, startVersion: '20' })
    await move(9)
    expect(nodes.map(({ known }) => known)).toEqual(nodes.map(() => before))
    const { direct } = await move(900)
    for (const { known } of nodes) expect(known).toEqual(direct.known)
  })
})

/** Nodes whose relay is then restarted at the API server of another world. */
async function beginElsewhere(options: RelayWorldOptions) {
  const { clock, relays, nodes, direct: former } = await begin()
  const other = new RelayWorld(options)
  const [relay] = relays
  await relay?.kill()
  const taken = nodes.map(({ changes }) => changes)
  relay?.start(other)
  const direct = await other.direct().start()
  const move = async (seconds: number) => {
    for (let time = 0; time < seconds; time++) {
      await other.clock.advance(1_000)
      await clock.advance(1_000)
    }
    return { direct, taken }
  }
  return { nodes, before: former.known, move }
}
