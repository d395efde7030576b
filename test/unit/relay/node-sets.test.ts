import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type * as grpc from '@grpc/grpc-js'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Clock } from '../../../src/base/clock.ts'
import { runCommand } from '../../../src/commands.ts'
import { isJson } from '../../../src/model/fields.ts'
import { NodeViews } from '../../../src/relay/node-views.ts'
import { nodeSets } from '../../../src/relay/server.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { StateSource } from '../../../src/relay/state-source.ts'
import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { encodeLocalv1 } from '../../support/api/localv1.ts'
import { grpcClient, WatchClient } from '../../support/api/watch-client.ts'
import { clusterOf, nodeOf, serviceOf, sliceOf } from '../../support/apiserver/generator.ts'
import { ApiServer } from '../../support/apiserver/http-server.ts'
import { createRandom } from '../../support/apiserver/random.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { eventually } from '../../support/patience.ts'
import { identityOf, RelayWorld } from '../../support/relay.ts'
import { KeptCall } from '../../support/relay-call.ts'
import { OPTIONS } from '../model/objects.ts'

describe('Sets of a relay', () => {
  let server: ApiServer
  let folder: string
  let ends: (() => Promise<unknown>)[]
  let clients: grpc.Client[]

  beforeEach(async () => {
    folder = temporaryFolder()
    server = await ApiServer.start({ bookmarkEveryMs: 1_000 })
    for (const { resource, object } of clusterOf({ services: 30, endpointsPerService: 4, nodes: 6 }))
      server.store.create(resource, object)
    server.store.create('services', identityOf('cluster-a'))
    writeFileSync(join(folder, 'kubeconfig'), server.kubeconfig())
    ends = []
    clients = []
  })

  afterEach(async () => {
    for (const client of clients) client.close()
    for (const end of ends.reverse()) await end()
    await server.close()
  })

  /** A command of kprobe in this process, that listens at a socket of this name. */
  async function serve(name: string, argv: readonly string[]): Promise<grpc.Client> {
    const stop = new AbortController()
    const io = new FakeIo({ signal: stop.signal })
    const listen = `unix://${folder}/${name}.sock`
    const running = runCommand(
      [...argv, `--kubeconfig=${join(folder, 'kubeconfig')}`, '--v=0', `--listen=${listen}`],
      io,
    )
    ends.push(async () => {
      stop.abort()
      expect(await running, io.stderr).toBe(0)
    })
    await eventually(() => existsSync(`${folder}/${name}.sock`), name)
    const client = grpcClient(listen)
    clients.push(client)
    return client
  }

  /** Asks again and again, as KPNG does. */
  function follow(client: grpc.Client, node: string): WatchClient {
    const watch = new WatchClient(client)
    const ask = (): void => void watch.ask(node).then(ask)
    ask()
    return watch
  }

  it('of each node are those of `kprobe api` there, wherever it moves', async () => {
    const relay = await serve('relay', ['relay', '--sets'])
    const names = ['node-0', 'node-3', 'node-1', 'node-9']
    const pairs = await Promise.all(
      names.map(async name => ({
        name,
        ours: follow(relay, name),
        theirs: follow(await serve(name, ['api', `--hostname-override=${name}`]), ''),
      })),
    )
    const settle = async (what: string): Promise<void> => {
      for (const { name, ours, theirs } of pairs) {
        await eventually(
          () =>
            ours.store.syncs > 0 &&
            JSON.stringify(ours.store.content()) === JSON.stringify(theirs.store.content()),
          `${what}: ${name}`,
        )
        expect([...ours.store.complaints, ...theirs.store.complaints]).toEqual([])
      }
    }
    await settle('the first state')
    expect(pairs[0]?.ours.store.services.size).toBe(31)
    const random = createRandom(7)
    for (let step = 0; step < 30; step++) {
      const [service, node] = [random.int(0, 29), random.int(0, 5)]
      server.store.put('nodes', nodeOf(`node-${node}`, random.int(0, 5)))
      server.store.put('services', local(serviceOf(service, {}, { port: 80 + step }), random.chance(0.5)))
      server.store.put(
        'endpointslices',
        hinted(sliceOf(service, { number: 0, nodes: 6, pods: [step, step + 7] })),
      )
      if (step === 10) server.store.create('nodes', nodeOf('node-9', 9))
      if (step % 6 === 0) await settle(`step ${step}`)
    }
    await settle('the last state')
    const [{ ours: before } = raise(), { ours: other } = raise()] = pairs
    expect(before.store.content()).not.toEqual(other.store.content())
  })

  /** Endpoints are hinted to the zone after that of their node. */
  function hinted(slice: ApiObject): ApiObject {
    const endpoints = (Array.isArray(slice.endpoints) ? slice.endpoints : []).map(
      (its: { zone: string }) => ({
        ...its,
        hints: { forZones: [{ name: `zone-${(Number(its.zone.slice(5)) + 1) % 3}` }] },
      }),
    )
    return { ...slice, endpoints }
  }

  function local(service: ApiObject, isLocal: boolean): ApiObject {
    const internalTrafficPolicy = isLocal ? 'Local' : 'Cluster'
    return { ...service, spec: { ...(isJson(service.spec) ? service.spec : {}), internalTrafficPolicy } }
  }
})

function raise(): never {
  throw new Error('missing')
}

it('F216: the source of Sets is synced also when its last collection becomes whole while a pass waits', async () => {
  const clock = new FakeClock()
  const state = new RelayState({ clock, proxyName: '' })
  const { Service, EndpointSlice, ServiceCIDR, Node } = state.collections
  const heard: string[] = []
  let taken = (): void => undefined
  const source = new StateSource({ clock, state, nodesChanged: () => undefined })
  await source.start({
    events: batch => {
      heard.push(...batch.map(({ kind }) => kind))
      return new Promise(resolve => {
        taken = resolve
      })
    },
    synced: () => void heard.push('synced'),
    refusals: () => undefined,
    problem: () => undefined,
  })
  Service.put('shop/cart', { version: '5', resource: Buffer.alloc(0) })
  for (const collection of [Service, EndpointSlice, ServiceCIDR]) collection.seal('5')
  await clock.advance(1)
  expect(heard).toEqual(['Service'])
  Node.seal('5')
  taken()
  await clock.advance(1)
  expect(heard).toEqual(['Service', 'synced'])
  expect(source.status.missing).toEqual([])
  await source.stop()
})

const request = (node: string): Buffer => encodeLocalv1('WatchReq', { NodeName: node })

describe('F205: a client of a relay', () => {
  const watched: string[] = []
  const method = nodeSets({
    watch: node => {
      watched.push(node)
      return { message: () => undefined, ended: () => undefined }
    },
    nodeOf: call => call.commonName,
    isTrusted: call => call.commonName === 'relay',
  })

  it('gets the Sets of its own node, and of others only if it is trusted', () => {
    method(new KeptCall('n1')).message(request('N1'))
    method(new KeptCall('n1')).message(request(''))
    method(new KeptCall('relay')).message(request('n2'))
    expect(watched).toEqual(['n1', 'n1', 'n2'])
    for (const [commonName, node, why] of [
      ['n1', 'n2', /may request node "n1" only/],
      [undefined, 'n2', /may request node "" only/],
      [undefined, '', /NodeName "" is not a node name/],
      ['relay', '../n', /is not a node name/],
    ] as const)
      expect(() => method(new KeptCall(commonName)).message(request(node))).toThrow(why)
    expect(watched).toHaveLength(3)
  })
})

function inZone(index: number, zone: number): ApiObject {
  const node = nodeOf(`node-${index}`, index)
  const labels = { 'topology.kubernetes.io/zone': `z${zone}` }
  return { ...node, metadata: { ...(isJson(node.metadata) ? node.metadata : {}), labels } }
}

describe('F206: Sets of many nodes', () => {
  interface Extras {
    readonly clock?: (clock: Clock) => Clock
    /** A pass looks at a node. */
    readonly seen?: (node: string) => void
  }

  async function begin(zoneOf: (index: number) => number, extras: Extras = {}) {
    const { clock = its => its, seen = () => undefined } = extras
    const world = new RelayWorld()
    const [relay] = world.relays
    if (relay === undefined) throw new Error('no relay')
    for (let index = 3; index < 60; index++) world.store.create('nodes', inZone(index, zoneOf(index)))
    relay.start()
    await world.clock.advance(2_000)
    const errors: Error[] = []
    const { nodeName: _, ...resolving } = OPTIONS
    const views = new NodeViews({
      clock: clock(world.clock),
      resolving,
      openSource: nodesChanged => {
        const source = new StateSource({ clock: world.clock, state: relay.state, nodesChanged })
        const nodeOf = source.nodeOf.bind(source)
        return Object.assign(source, {
          nodeOf: (name: string) => {
            seen(name)
            return nodeOf(name)
          },
        })
      },
      failed: error => errors.push(error),
    })
    const ask = (node: string): KeptCall & { again: () => void; leave: () => void } => {
      const call = new KeptCall()
      const handler = views.watch(node, call)
      const again = (): void => handler.message(request(node))
      again()
      return Object.assign(call, { again, leave: () => handler.closed?.() })
    }
    const end = async (): Promise<void> => {
      await views.close()
      await relay.kill()
      expect(errors).toEqual([])
    }
    return { world, views, ask, end }
  }

  it('share one state in a zone, and are forgotten a minute after the last client', async () => {
    const { world, views, ask, end } = await begin(() => 1)
    const calls = Array.from({ length: 50 }, (_, index) => ask(`node-${5 + index}`))
    await world.clock.advance(100)
    expect(views.counts).toEqual({ nodes: 50, shared: 1 })
    for (const call of calls) call.leave()
    await world.clock.advance(50_000)
    expect(views.counts.nodes).toBe(50)
    await world.clock.advance(15_000)
    expect(views.counts).toEqual({ nodes: 0, shared: 0 })
    // And begins anew.
    const again = ask('node-7')
    await world.clock.advance(100)
    expect(views.counts).toEqual({ nodes: 1, shared: 1 })
    expect(again.ended).toEqual([])
    await end()
  })

  it('of more zones than there is room for are refused, and the others stay', async () => {
    const { world, views, ask, end } = await begin(index => index)
    const calls = Array.from({ length: 40 }, (_, index) => ask(`node-${5 + index}`))
    await world.clock.advance(100)
    expect(views.counts).toEqual({ nodes: 32, shared: 32 })
    expect(calls.filter(({ ended }) => ended[0]?.startsWith('8 ') === true)).toHaveLength(8)
    expect(calls.find(({ ended }) => ended.length > 0)?.ended[0]).toMatch(
      /^8 the relay computes 32 other zones/,
    )
    await end()
  })

  it('move to another zone while all are taken, and take the places of nodes without clients', async () => {
    const { world, views, ask, end } = await begin(index => index)
    const calls = Array.from({ length: 32 }, (_, index) => ask(`node-${5 + index}`))
    await world.clock.advance(100)
    world.store.put('nodes', inZone(7, 70))
    world.store.put('services', serviceOf(77, { namespaces: 1 }))
    await world.clock.advance(1_000)
    for (const call of calls) call.again()
    await world.clock.advance(100)
    expect(calls.flatMap(({ ended }) => ended)).toEqual([])
    for (const { text } of calls) expect(text).toContain('service-77')
    expect(views.counts).toEqual({ nodes: 32, shared: 32 })
    calls[0]?.leave()
    const last = ask('node-50')
    await world.clock.advance(100)
    expect(last.ended).toEqual([])
    expect(last.text).toContain('service-77')
    expect(views.counts).toEqual({ nodes: 32, shared: 32 })
    await end()
  })

  it('are so many at a time, of which those without clients give way', async () => {
    const { views, ask, end } = await begin(() => 1)
    const first = ask('node-0')
    for (let index = 1; index < 1_024; index++) ask(`other-${index}`)
    expect(() => ask('one-more')).toThrow('the relay serves the Sets of 1024 other nodes, its limit')
    first.leave()
    ask('one-more')
    expect(views.counts.nodes).toBe(1_024)
    await end()
  })

  it('begin anew when all clients leave and come back while a pass is under way', async () => {
    let stop: Promise<void> | undefined
    let goOn = (): void => undefined
    let ms = 0
    const slow = (clock: Clock): Clock => ({
      nowMs() {
        if (stop !== undefined) ms += 10
        return clock.nowMs() + ms
      },
      after: (delayMs, run) => clock.after(delayMs, run),
      cpuMs: () => clock.cpuMs(),
      breathe: () => stop ?? clock.breathe(),
    })
    const seen = (): void => {
      if (ms === 0)
        stop ??= new Promise(resolve => {
          goOn = resolve
        })
    }
    const { world, views, ask, end } = await begin(index => index % 2, { clock: slow, seen })
    const names = ['node-4', 'node-5', 'node-6']
    const before = names.map(ask)
    await world.clock.advance(100)
    expect(before[2]?.text).toBe('')
    for (const call of before) call.leave()
    await world.clock.advance(61_000)
    expect(views.counts).toEqual({ nodes: 0, shared: 0 })
    world.store.create('services', serviceOf(77, { namespaces: 1 }))
    await world.clock.advance(1_000)
    const after = names.map(ask)
    await world.clock.advance(100)
    stop = undefined
    goOn()
    await world.clock.advance(1_000)
    expect(views.counts).toEqual({ nodes: 3, shared: 2 })
    for (const { text } of after) expect(text).toContain('service-77')
    world.store.create('services', serviceOf(78, { namespaces: 1 }))
    await world.clock.advance(1_000)
    for (const call of after) call.again()
    await world.clock.advance(100)
    for (const { text } of after) expect(text).toContain('service-78')
    await end()
  })

  it('answer a client that comes back while a pass refuses the node', async () => {
    let back: ReturnType<typeof ask> | undefined
    const seen = (node: string): void => {
      if (node !== 'node-40' || back !== undefined) return
      // Both give way: 1,024 others are asked for.
      first.leave()
      const late = ask('late')
      late.leave()
      back = ask('node-40')
    }
    const { world, views, ask, end } = await begin(index => index, { seen })
    for (let index = 5; index < 36; index++) ask(`node-${index}`)
    for (let index = 32; index < 1_024; index++) ask(`other-${index}`)
    const first = ask('node-40')
    expect(views.counts.nodes).toBe(1_024)
    await world.clock.advance(1_000)
    expect(back?.ended[0]).toMatch(/^8 /)
    await end()
  })
})
