import { afterEach, describe, expect, it, vi } from 'vitest'
import { FaultScript } from '../../support/apiserver/faults.ts'
import { nodeOf, serviceOf } from '../../support/apiserver/generator.ts'
import { Semantics } from '../../support/apiserver/semantics.ts'
import { Store } from '../../support/apiserver/store.ts'
import { identityOf, RelayWorld, type RelayWorldOptions } from '../../support/relay.ts'

const FAULT = 'unreadable'
afterEach(() => void vi.restoreAllMocks())

/** A world whose relay has not started, and an endpoint that is not its API server. */
function worldOf(options: RelayWorldOptions = {}) {
  const world = new RelayWorld(options)
  const [relay] = world.relays
  if (relay === undefined) throw new Error('no relay')
  const { clock, random } = world
  const endpoint = (store: Store) => {
    const semantics = new Semantics({ store, clock, random: random.fork() })
    return { backend: { semantics, faults: new FaultScript() } }
  }
  return { world, relay, clock, endpoint }
}

/** A newer state of the same cluster that lacks nearly everything. */
function emptied(): Store {
  const store = new Store({ startVersion: '9000', now: () => new Date(0) })
  store.create('nodes', nodeOf('node-0', 0))
  store.create('services', identityOf('cluster-a'))
  return store
}

describe('a relay in front of another endpoint than the API server', () => {
  it('reports an answer in JSON, and is not complete', async () => {
    const { world, relay, clock, endpoint } = worldOf()
    const json = endpoint(world.store)
    const { semantics } = json.backend
    const handle = semantics.handle.bind(semantics)
    vi.spyOn(semantics, 'handle').mockImplementation((request, twist) =>
      handle({ ...request, headers: { ...request.headers, accept: 'application/json' } }, twist),
    )
    relay.start(json)
    await clock.advance(10_000)
    expect(relay.state.isComplete).toBe(false)
    expect(relay.state.collections.Service.revision).toBeUndefined()
    expect(relay.problems).toContainEqual(
      expect.stringMatching(
        /content type application\/json\S*; needed is application\/vnd.kubernetes.protobuf$/,
      ),
    )
  })

  it('waits for the Service default/kubernetes, and says so once', async () => {
    const { world, relay, clock } = worldOf()
    world.store.delete('services', 'default/kubernetes')
    relay.start()
    const node = await world.node('node-0').start()
    await clock.advance(60_000)
    expect([relay.state.isComplete, node.synced]).toEqual([false, 0])
    expect(relay.problems.filter(text => text.includes('every API server creates'))).toHaveLength(1)
    world.store.create('services', identityOf('cluster-a'))
    await clock.advance(60_000)
    expect([relay.state.isComplete, node.synced]).toEqual([true, 1])
  })

  it('counts and reports objects that it cannot read, and does not serve a list of mostly such', async () => {
    const { world, relay, clock } = worldOf()
    // A fault in the code that reads objects.
    const parse = Date.parse.bind(Date)
    const faulty = vi.spyOn(Date, 'parse').mockImplementation(text => {
      if (text === FAULT) throw new Error('a fault')
      return parse(text)
    })
    const annotations = { 'endpoints.kubernetes.io/last-change-trigger-time': FAULT }
    const { store } = world
    for (let index = 0; index < 30; index++)
      store.put('services', serviceOf(index, { namespaces: 1 }, { annotations }))
    relay.start()
    await clock.advance(60_000)
    const { Service } = relay.state.collections
    expect([Service.revision, Service.size]).toEqual([undefined, 0])
    const count = store.list('services').length
    expect(relay.problems.join()).toContain(`30 of ${count} objects are not relayed: Service namespace-0/`)
    for (let index = 1; index < 30; index++) store.put('services', serviceOf(index, { namespaces: 1 }))
    await clock.advance(60_000)
    expect([relay.state.isComplete, Service.size, Service.refused]).toEqual([true, count - 1, 1])
    expect(relay.problems.join()).toContain(`1 of ${count} objects are not relayed`)
    faulty.mockRestore()
    store.put('services', serviceOf(0, { namespaces: 1 }))
    await clock.advance(1_000)
    expect([Service.size, Service.refused]).toEqual([count, 0])
  })
})

describe('a node whose relay lacks most objects', () => {
  async function serving() {
    const more = worldOf({ historyBytesMax: 1_000 })
    const { world, relay, clock } = more
    for (let index = 0; index < 12; index++) world.store.put('services', serviceOf(index, { namespaces: 1 }))
    relay.start()
    const node = await world.node('node-0').start()
    await clock.advance(2_000)
    return { ...more, node }
  }

  it('reads the API server itself, keeps them, and lists no more than once a watch', async () => {
    const { world, relay, clock, node, endpoint } = await serving()
    const { size } = node.snapshot.services
    await relay.kill()
    const before = world.asked.length
    relay.start(endpoint(emptied()))
    await clock.advance(1_800_000)
    expect(node.snapshot.services.size).toBe(size)
    const lists = world.asked.slice(before).filter(path => /services\?.*limit=/.test(path))
    expect(lists.length).toBeGreaterThan(1)
    expect(lists.length).toBeLessThan(8)
    expect(world.said.filter(text => text.includes('/api/v1/services'))).toHaveLength(1)
    world.store.put('services', serviceOf(50, { namespaces: 1 }))
    await clock.advance(2_000)
    expect(node.snapshot.services.size).toBe(size + 1)
  })

  it('holds them while the API server does not answer, says so, and removes them on its word', async () => {
    const { world, relay, clock, node, endpoint } = await serving()
    const { size } = node.snapshot.services
    world.kube.refuse()
    await relay.kill()
    relay.start(endpoint(emptied()))
    await clock.advance(300_000)
    expect(node.snapshot.services.size).toBe(size)
    expect(world.said.filter(text => text.includes('/api/v1/services'))).toHaveLength(1)
    for (let index = 0; index < 12; index++) world.store.delete('services', `namespace-0/service-${index}`)
    world.kube.heal()
    await clock.advance(120_000)
    expect(node.snapshot.services.size).toBe(1)
  })

  it('reads the relay again once that is well, while the API server does not answer', async () => {
    const { world, relay, clock, node, endpoint } = await serving()
    const { size } = node.snapshot.services
    world.kube.refuse()
    await relay.kill()
    relay.start(endpoint(emptied()))
    await clock.advance(120_000)
    await relay.kill()
    world.store.put('services', serviceOf(50, { namespaces: 1 }))
    relay.start()
    await clock.advance(180_000)
    expect(node.snapshot.services.size).toBe(size + 1)
  })
})
