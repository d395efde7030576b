import { afterEach, describe, expect, it } from 'vitest'
import { type ApiObject, type ApiState, SET_SERVICES } from '../../../../src/api/state.ts'
import { type ApiRig, apiRig, quiet } from '../../../support/api/rig.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  nextState,
  objectOf,
  serviceObject,
} from '../../../support/api/states.ts'
import { type BackendStore, contentOf, statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { eventually } from '../../../support/patience.ts'

let rig: ApiRig | undefined
afterEach(async () => {
  await rig?.end()
  expect(rig?.errors ?? []).toEqual([])
})

/** Waits until the server has begun to answer what `begin` asks for. */
async function begun(begin: () => void): Promise<void> {
  const bytes = (): number => rig?.server.counts().bytes ?? 0
  const before = bytes()
  begin()
  await eventually(() => bytes() > before, 'it has begun')
}

const service = (name: string, port = 80): [string, ApiObject] => [
  `default/${name}`,
  serviceObject(`default/${name}`, port),
]

describe('Watch', () => {
  it('says nothing before the first complete list, and then everything', async () => {
    const feed = feedOf()
    rig = await apiRig(feed)
    const client = new WatchClient(rig.client())
    const synced = client.ask()
    await eventually(() => rig?.server.counts().waiting === 1, 'the request is there')
    expect(client.store.syncs).toBe(0)
    feed.offer(nextState(EMPTY, { services: [service('a')] }))
    expect(await synced).toBe(1)
    expect(client.store.services.size).toBe(1)
  })

  it('answers the first request of an empty cluster, and holds the next one back until there is a change', async () => {
    const feed = feedOf(EMPTY)
    rig = await apiRig(feed)
    const client = new WatchClient(rig.client())
    await client.ask()
    const second = client.ask()
    await eventually(() => rig?.server.counts().waiting === 1, 'it waits')
    // A version that differs in nothing is no difference.
    feed.offer({ ...EMPTY, number: 2 })
    await new Promise(resolve => setTimeout(resolve, 20))
    expect(client.store.syncs).toBe(1)
    feed.offer({ ...nextState(EMPTY, { services: [service('a')] }), number: 3 })
    expect(await second).toBe(2)
  })

  it('gives one difference to a client that asks late, and keeps one position for it', async () => {
    let state = nextState(EMPTY, { services: [service('a')] })
    const feed = feedOf(state)
    rig = await apiRig(feed)
    const client = new WatchClient(rig.client())
    await client.ask()
    for (let port = 1; port <= 1_000; port++) {
      state = nextState(state, { services: [service('a', port), service(`b-${port % 10}`, port)] })
      feed.offer(state)
    }
    expect(feed.kept).toBe(2)
    await client.ask()
    expect(client.store.content()).toEqual(contentOf(state))
  })

  it('refuses another node by name', async () => {
    rig = await apiRig(feedOf(EMPTY))
    const client = new WatchClient(rig.client())
    void client.ask('node-b')
    expect(await statusOf(client.stream)).toMatchObject({
      code: 9,
      details: 'this server computes only the state of node "node-a": NodeName "node-b"',
    })
  })

  it('ends when the client has ended and was answered', async () => {
    rig = await apiRig(feedOf(EMPTY))
    const client = new WatchClient(rig.client())
    void client.ask()
    client.stream.end()
    expect(await statusOf(client.stream)).toMatchObject({ code: 0 })
    expect(client.store.syncs).toBe(1)
    await eventually(() => rig?.server.counts().streams === 0, 'nothing is left')
  })

  it('finishes what it began when the state moves on, and the next request gets the difference', async () => {
    const feed = feedOf(EMPTY)
    rig = await apiRig(feed)
    const client = new WatchClient(rig.client())
    await client.ask()
    client.stream.pause()
    const synced = client.ask()
    await eventually(() => rig?.server.counts().waiting === 1, 'it waits')
    const large = stateOfTexts(EMPTY, 1)
    await begun(() => feed.offer(large))
    feed.offer(nextState(large, { services: large.services.keys().map(path => [path, undefined]) }))
    client.stream.resume()
    await synced
    expect(client.store.content()).toEqual(contentOf(large))
    await client.ask()
    expect(client.store.content()).toEqual({ services: [], endpoints: [] })
    expect(client.store.complaints).toEqual([])
  })

  it('sends a stalled new client the newest state before its first Sync, whatever other clients stall', async () => {
    let state = stateOfTexts(EMPTY, 0)
    const feed = feedOf(state)
    rig = await apiRig(feed)
    const stalled: WatchClient[] = []
    for (let round = 1; round <= 6; round++) {
      const client = new WatchClient(rig.client())
      client.stream.pause()
      await begun(() => void client.ask())
      stalled.push(client)
      state = stateOfTexts(state, round)
      feed.offer(state)
    }
    state = nextState(state, { services: state.services.keys().map(path => [path, undefined]) })
    feed.offer(state)
    const fresh = new WatchClient(rig.client())
    await fresh.ask()
    expect(fresh.store.content()).toEqual({ services: [], endpoints: [] })
    for (const { stream, store } of stalled) {
      stream.resume()
      await eventually(() => store.syncs === 1, 'it is told')
      expect(store.content()).toEqual({ services: [], endpoints: [] })
      expect(store.complaints).toEqual([])
    }
  })

  it('resets a client that stalls a difference for too long, even where nothing is left to send', async () => {
    let state = stateOfTexts(EMPTY, 0)
    const feed = feedOf(state)
    rig = await apiRig(feed)
    const clients = Array.from({ length: 17 }, () => new WatchClient(rig?.client() ?? never()))
    for (const client of clients) await client.ask()
    for (const [round, client] of clients.entries()) {
      state = stateOfTexts(state, 1 + round)
      feed.offer(state)
      client.stream.pause()
      await begun(() => void client.ask())
      await quiet(() => rig?.server.counts().bytes ?? 0)
    }
    state = nextState(state, { services: state.services.keys().map(path => [path, undefined]) })
    feed.offer(state)
    for (const { stream, store } of clients) {
      stream.resume()
      await eventually(() => store.syncs === 2, 'it is told')
    }
    const [first, ...others] = clients
    expect(first?.store.content()).toEqual({ services: [], endpoints: [] })
    expect(clients.map(({ store }) => store.resets)).toEqual([1, ...others.map(() => 0)])
    for (const client of others) {
      await client.ask()
      expect(client.store.content()).toEqual({ services: [], endpoints: [] })
      expect(client.store.complaints).toEqual([])
    }
    for (const client of clients) client.stream.cancel()
    await eventually(() => rig?.server.counts().streams === 0, 'they are gone')
    // The newest state, and what is made of it, or of the one before, for the next client.
    expect(feed.kept).toBeLessThanOrEqual(2)
  })
})

/** 1 MB of Services: no connection takes so much without reading. */
function stateOfTexts(before: ApiState, round: number): ApiState {
  return nextState(before, {
    services: Array.from({ length: 50 }, (_, index) => {
      const path = `default/text-${index}`
      return [path, objectOf(SET_SERVICES, path, { Annotations: { text: `${round}`.padEnd(20_000, '-') } })]
    }),
  })
}

describe('a client whose pace is its own', () => {
  it('holds one of the states that were, after every Sync, and the last one in the end', async () => {
    let hangUps = 0
    for (const seed of [1, 2, 3, 4, 5, 6]) {
      const random = randomOf(seed)
      let state = randomState(EMPTY, random, 40)
      const feed = feedOf(state)
      rig = await apiRig(feed)
      const seen = new Map([[JSON.stringify(contentOf(state)), state.number]])
      let isOver = false
      const clients = Array.from({ length: 4 }, (_, index) => walk(rig ?? never(), index, seen, () => isOver))
      for (let step = 0; step < 60; step++) {
        state = randomState(state, random, 12)
        seen.set(JSON.stringify(contentOf(state)), state.number)
        feed.offer(state)
        await new Promise(resolve => setTimeout(resolve, random(3)))
      }
      isOver = true
      // Whoever waits gets a last change.
      state = nextState(state, { services: [service(`last-${seed}`)] })
      seen.set(JSON.stringify(contentOf(state)), state.number)
      feed.offer(state)
      for (const { store, reconnects } of await Promise.all(clients)) {
        expect(store.content()).toEqual(contentOf(state))
        expect(store.complaints).toEqual([])
        hangUps += reconnects
      }
      await rig.end()
      // The newest, and nothing for those who are gone.
      expect(feed.kept).toBe(1)
    }
    expect(hangUps).toBeGreaterThan(0)
  })
})

/** Reads at a pace of its own, hangs up anywhere now and then, and begins again with an empty store. */
async function walk(
  its: ApiRig,
  index: number,
  seen: ReadonlyMap<string, number>,
  isOver: () => boolean,
): Promise<{ readonly store: BackendStore; readonly reconnects: number }> {
  const random = randomOf(100 + index)
  const connection = its.client()
  let client = new WatchClient(connection)
  let newest = 0
  let reconnects = 0
  for (;;) {
    const asked = client.ask()
    if (!isOver() && random(10) === 0) {
      await new Promise(resolve => setTimeout(resolve, random(4)))
      client.stream.cancel()
      client = new WatchClient(connection)
      newest = 0
      reconnects++
      continue
    }
    if (random(2) === 0) {
      client.stream.pause()
      setTimeout(() => client.stream.resume(), random(8))
    }
    await asked
    const number = seen.get(JSON.stringify(client.store.content()))
    expect(number, 'what it holds after a Sync is a state that was').toBeDefined()
    expect(number).toBeGreaterThan(newest)
    newest = number ?? 0
    if (newest === Math.max(...seen.values()) && isOver()) return { store: client.store, reconnects }
    await new Promise(resolve => setTimeout(resolve, random(6)))
  }
}

function randomState(state: ApiState, random: (below: number) => number, changes: number): ApiState {
  const services = new Map<string, ApiObject | undefined>()
  const endpoints = new Map<string, ApiObject | undefined>()
  const has = (path: string): boolean =>
    services.has(path) ? services.get(path) !== undefined : state.services.has(path)
  for (let change = 0; change < changes; change++) {
    const path = `default/s-${random(30)}`
    const endpoint = `${path}/${random(6)}`
    switch (random(4)) {
      case 0:
        services.set(path, undefined)
        for (let number = 0; number < 6; number++) endpoints.set(`${path}/${number}`, undefined)
        break
      case 1:
        endpoints.set(endpoint, undefined)
        break
      case 2:
        services.set(path, serviceObject(path, 1 + random(1_000)))
        break
      default:
        if (has(path)) endpoints.set(endpoint, endpointObject(endpoint, random(1_000)))
    }
  }
  // What is no change at all would be no version.
  const marker = `default/marker`
  services.set(marker, serviceObject(marker, 1 + (state.number % 60_000)))
  return nextState(state, { services, endpoints })
}

/** Whole numbers from 0, the same for the same seed (a linear congruential generator). */
function randomOf(seed: number): (below: number) => number {
  let value = seed
  return below => {
    value = (Math.imul(value, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((value / 2 ** 32) * below)
  }
}

function never(): never {
  throw new Error('there is no rig')
}
