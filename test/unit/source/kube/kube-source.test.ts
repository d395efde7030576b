import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../../../src/model/snapshot.ts'
import { KubeSource } from '../../../../src/source/kube/kube-source.ts'
import type { LocatedRefusal, SourceObservation, SourceProblem } from '../../../../src/source/source.ts'
import { FakeClock, settle } from '../../../support/fake-clock.ts'
import { type Asked, node, ScriptedApi, service, slice, type Written } from '../../../support/scripted-api.ts'

const RESOURCES = ['services', 'endpointslices', 'nodes', 'servicecidrs'] as const

let api: ScriptedApi
let clock: FakeClock
let source: KubeSource
let batches: (readonly SourceEvent[])[]
let problems: SourceProblem[]
let refusals: (readonly LocatedRefusal[])[]
let observations: SourceObservation[]
let synced: number[]
let take: () => Promise<void>
let draw: () => number

beforeEach(() => {
  api = new ScriptedApi()
  clock = new FakeClock()
  batches = []
  problems = []
  refusals = []
  observations = []
  synced = []
  take = async () => undefined
  draw = () => 0.5
  source = new KubeSource({
    client: api,
    clock,
    random: () => draw(),
    nodeName: 'n1',
    serviceProxyName: undefined,
    accept: 'application/json',
  })
})

afterEach(async () => {
  await source.stop()
})

async function start(): Promise<void> {
  await source.start({
    events: async batch => {
      await take()
      batches.push(batch)
    },
    synced: () => synced.push(batches.length),
    refusals: list => refusals.push(list),
    problem: problem => problems.push(problem),
    observed: observation => observations.push(observation),
  })
  await settle()
}

/** Answers the streaming list of a resource; gives its watch. */
async function list(resource: string, objects: readonly Written[] = []) {
  const watch = api
    .take(resource)
    .watch()
    .added(...objects)
    .listed('100')
  await settle()
  return watch
}

function snapshot() {
  return applyEvents(EMPTY_SNAPSHOT, batches.flat())
}

/** Everything fails in this way from now on. */
function failAll(fail: (asked: Asked) => void): void {
  for (const resource of RESOURCES) api.answer(resource, fail)
}

describe('source kube', () => {
  it('A29, F21: is synced once all resources were listed, and not before', async () => {
    await start()
    expect(source.status.missing).toEqual([...RESOURCES])
    await list('services', [service('web', 5)])
    await list('nodes', [node('n1', 6)])
    await list('servicecidrs')
    expect(synced).toEqual([])
    expect(source.status.missing).toEqual(['endpointslices'])
    const slices = api.take('endpointslices').watch()
    for (let each = 1; each <= 5; each++) {
      slices.added(slice(`web-${each}`, each, [`10.1.0.${each}`]))
      await clock.advance(1_000)
    }
    expect(synced).toEqual([])
    await settle(slices.listed('100'))
    expect(synced).toEqual([batches.length])
    expect(source.status.missing).toEqual([])
    expect(snapshot().sliceByKey.size).toBe(5)
    expect(snapshot().node?.zone).toBe('z1')
  })

  it('A29: is synced only after what was listed has been taken', async () => {
    let release: () => void = () => undefined
    take = () => new Promise(resolve => (release = resolve))
    await start()
    for (const resource of RESOURCES.slice(1)) await list(resource)
    await list('services', [service('web', 5)])
    expect(synced).toEqual([])
    release()
    await settle()
    expect(synced).toEqual([1])
  })

  it('A29: a node that has not been registered yet counts as listed, and comes later', async () => {
    await start()
    for (const resource of ['services', 'endpointslices', 'servicecidrs']) await list(resource)
    const nodes = await list('nodes')
    expect(synced.length).toBe(1)
    await settle(nodes.added(node('n1', 101, 'z7')))
    expect(snapshot().node?.zone).toBe('z7')
  })

  it('A31, F14: slices that may not be read leave it unsynced with a reason, and Services untouched', async () => {
    await start()
    api.answer('endpointslices', asked => asked.status(403, { message: 'endpointslices is forbidden' }))
    api.take('endpointslices').status(403, { message: 'endpointslices is forbidden' })
    for (const resource of ['services', 'nodes', 'servicecidrs'])
      await list(resource, resource === 'services' ? [service('web', 5)] : [])
    await clock.advance(200_000)
    expect(synced).toEqual([])
    expect(source.status.missing).toEqual(['endpointslices'])
    expect(source.status.trouble).toBe('endpointslices: status 403: endpointslices is forbidden')
    expect(problems.length).toBe(1)
    expect(snapshot().services.size).toBe(1)
  })

  it('A36, F02: an hour of outage is said once, emits nothing, and is said to be over once', async () => {
    await start()
    const watches = []
    for (const resource of RESOURCES)
      watches.push(await list(resource, resource === 'services' ? [service('web', 5)] : []))
    await clock.advance(2_000)
    failAll(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    for (const watch of watches) watch.cut()
    const told = batches.length
    await clock.advance(3_600_000)
    expect(batches.length).toBe(told)
    expect(source.status.trouble).toBe('https://api.test:6443: connect ECONNREFUSED')
    expect(clock.nowMs() - (source.status.heardMs ?? 0)).toBeGreaterThan(3_500_000)
    expect(problems.map(({ kind, location }) => `${kind} ${location}`)).toEqual([
      'failed https://api.test:6443',
    ])
    failAll(asked => (asked.form === 'watch' ? asked.watch() : asked.list([], '100')))
    await clock.advance(120_000)
    expect(problems.map(({ kind }) => kind)).toEqual(['failed', 'recovered'])
    expect(source.status.trouble).toBeUndefined()
    expect(batches.length).toBe(told)
  })

  it('F01: five minutes of outage at the start leave it unsynced, and a minute later it is', async () => {
    failAll(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    await start()
    await clock.advance(300_000)
    expect([batches.length, synced.length]).toEqual([0, 0])
    expect(source.status.heardMs).toBeUndefined()
    failAll(asked => {
      asked.watch().listed('100')
    })
    await clock.advance(60_000)
    expect(synced.length).toBe(1)
  })

  it('F02: the first resource that reaches the server after an outage ends the delays of the others', async () => {
    let draws = 0
    draw = () => (draws++ % 7) / 7
    failAll(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    await start()
    await clock.advance(300_000)
    failAll(asked => {
      asked.watch().listed('100')
    })
    const tried = api.asked.length
    for (let waitedS = 0; api.asked.length === tried && waitedS < 60; waitedS++) await clock.advance(1_000)
    expect(synced.length).toBe(1)
  })

  it('F02, F14: so it is with a server that denies everything while it starts', async () => {
    let draws = 0
    draw = () => (draws++ % 7) / 7
    await start()
    const watches = []
    for (const resource of RESOURCES) watches.push(await list(resource))
    failAll(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    for (const watch of watches) watch.cut()
    await clock.advance(120_000)
    failAll(asked => asked.status(403))
    await clock.advance(70_000)
    failAll(asked => {
      if (asked.form === 'list') asked.list([], '200')
      else asked.watch().listed('201')
    })
    const tried = api.asked.length
    for (let waitedS = 0; api.asked.length === tried && waitedS < 60; waitedS++) await clock.advance(1_000)
    expect(new Set(api.asked.slice(tried).map(({ resource }) => resource)).size).toBe(RESOURCES.length)
    await clock.advance(1_000)
    expect(source.status.trouble).toBeUndefined()
  })

  it('A13: a delay that the server asked for is no such delay', async () => {
    await start()
    api.take('services').status(429, { retryAfterMs: 60_000 })
    api.take('nodes').fail('unreachable', 'refused')
    await clock.advance(5_000)
    await list('nodes')
    expect(source.status.missing).not.toContain('nodes')
    await clock.advance(50_000)
    expect(api.count('streaming list', 'services')).toBe(1)
    await clock.advance(10_000)
    expect(api.count('streaming list', 'services')).toBe(2)
  })

  it('status has the time of the last message of the part that is silent longest', async () => {
    await start()
    const watches = []
    for (const resource of RESOURCES) watches.push(await list(resource))
    await clock.advance(60_000)
    for (const watch of watches.slice(1)) await settle(watch.bookmark('200'))
    expect(source.status.heardMs).toBe(0)
    watches[0]?.bookmark('200')
    await settle()
    expect(source.status.heardMs).toBe(60_000)
  })

  it('reports all refusals at each change', async () => {
    await start()
    const bad = { ...service('bad', 5), apiVersion: 'v9' }
    const services = await list('services', [bad, service('good', 6)])
    expect(refusals.at(-1)?.map(({ location, refusal }) => [location, refusal.object])).toEqual([
      ['services', 'Service ns/bad'],
    ])
    await settle(services.modified(service('bad', 105)))
    expect(refusals.at(-1)).toEqual([])
    expect(refusals.length).toBe(2)
  })

  it('takes of nodes its own alone, even from a server that selects nothing', async () => {
    await start()
    await list('nodes', [node('other', 5), node('n1', 6)])
    expect(batches.flat().map(event => 'key' in event && event.key)).toEqual(['n1'])
  })

  it('says that it cannot check for lost events, once, and when it can', async () => {
    await start()
    for (const resource of RESOURCES) await list(resource)
    let code = 406
    failAll(asked => {
      if (asked.form !== 'metadata') asked.watch()
      else if (code === 200) asked.list([], '100')
      else asked.status(code)
    })
    await clock.advance(800_000)
    expect(problems).toEqual([])
    await clock.advance(1_200_000)
    expect(problems.map(({ kind, location }) => `${kind} ${location}`)).toEqual(
      RESOURCES.map(resource => `failed ${resource} check`),
    )
    code = 200
    await clock.advance(1_000_000)
    expect(problems.slice(4).map(({ kind }) => kind)).toEqual(RESOURCES.map(() => 'recovered'))
  })

  it('stop waits for the batch in progress, and delivers nothing after it', async () => {
    await start()
    const [services, nodes] = [await list('services'), await list('nodes')]
    let release: () => void = () => undefined
    take = () => new Promise(resolve => (release = resolve))
    await settle(services.added(service('a', 101)))
    await settle(nodes.added(node('n1', 102)))
    let stopped = false
    const stop = source.stop().then(() => {
      stopped = true
    })
    await settle()
    expect(stopped).toBe(false)
    take = async () => undefined
    release()
    await stop
    expect(batches.flat().map(event => 'key' in event && event.key)).toEqual(['ns/a'])
    await source.stop()
    const told = [batches.length, problems.length, observations.length]
    failAll(asked => asked.watch().listed('5'))
    await clock.advance(600_000)
    expect([batches.length, problems.length, observations.length]).toEqual(told)
    expect(clock.pending).toBe(0)
    expect(api.asked.every(({ request }) => request.signal.aborted)).toBe(true)
  })
})
