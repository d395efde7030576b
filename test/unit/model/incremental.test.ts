import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { explainEndpoints } from '../../../src/inspect/why/endpoint-verdicts.ts'
import { needsOf } from '../../../src/model/endpoint-choice.ts'
import type { Backend, FrontendTable } from '../../../src/model/frontend.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SnapshotEvent } from '../../../src/model/snapshot.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import {
  DRAINING,
  endpoint,
  eventsOf,
  type Fields,
  node,
  OPTIONS,
  plain,
  service,
  slice,
  snapshotOf,
  UNREADY,
} from './objects.ts'

// Few names, addresses and ports, so that nearly everything meets.
const NAMES = ['a', 'b', 'c', 'd']
const name = fc.constantFrom(...NAMES)
const address = fc.constantFrom('10.96.0.1', '10.96.0.2', '192.0.2.1', '192.0.2.2', '192.168.1.7')
const address6 = fc.constantFrom('fd00::1', 'fd00::2')
const port = fc.record({
  name: fc.constantFrom('', 'x'),
  port: fc.constantFrom(80, 81),
  protocol: fc.constantFrom('TCP', 'UDP'),
  nodePort: fc.constantFrom(0, 30080, 30081),
})
const policy = fc.constantFrom('Cluster', 'Local')

const anyService = fc
  .record({
    name,
    clusterIPs: fc.oneof(
      address.map(v4 => [v4]),
      fc.tuple(address, address6),
      fc.constant(['None']),
    ),
    ports: fc.array(port, { maxLength: 3 }),
    externalIPs: fc.array(address, { maxLength: 2 }),
    ranges: fc.array(fc.constantFrom('10.0.0.0/8', '192.168.0.0/16', '0.0.0.0/0', 'x'), { maxLength: 2 }),
    ingress: fc.array(address, { maxLength: 2 }),
    policies: fc.tuple(policy, policy),
    time: fc.constantFrom(null, '2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z'),
    proxy: fc.constantFrom(undefined, undefined, undefined, 'other'),
    scheduler: fc.constantFrom(undefined, undefined, 'wrr', 'No Name'),
    balance: fc.constantFrom(
      {},
      {},
      { 'kprobe.io/balance': 'local-first' },
      { 'kprobe.io/balance': 'maglev', 'kprobe.io/weights': 'zone=a:2,node=there:0' },
      { 'kprobe.io/fail-over': 'passive' },
      { 'kprobe.io/fail-over': 'passive', 'kprobe.io/balance': 'local-first' },
    ),
    type: fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer'),
  })
  .map(its =>
    service(
      its.name,
      {
        type: its.type,
        clusterIP: undefined,
        clusterIPs: its.clusterIPs,
        ports: its.ports,
        externalIPs: its.externalIPs,
        loadBalancerSourceRanges: its.ranges,
        internalTrafficPolicy: its.policies[0],
        externalTrafficPolicy: its.policies[1],
        healthCheckNodePort: 30090,
      },
      {
        metadata: {
          creationTimestamp: its.time,
          labels: its.proxy === undefined ? {} : { 'service.kubernetes.io/service-proxy-name': its.proxy },
          annotations: {
            ...its.balance,
            ...(its.scheduler === undefined ? {} : { 'kprobe.io/ipvs-scheduler': its.scheduler }),
          },
        },
        status: { loadBalancer: { ingress: its.ingress.map(text => ({ ip: text })) } },
      },
    ),
  )

const anyEndpoint = fc
  .record({
    address: fc.constantFrom('10.1.0.1', '10.1.0.2', '10.1.0.3', '10.96.0.1', '127.0.0.1'),
    conditions: fc.constantFrom<Fields>({}, {}, DRAINING, UNREADY),
    nodeName: fc.constantFrom('here', 'there'),
    zone: fc.constantFrom('a', 'b'),
    uid: fc.constantFrom('', 'u1', 'u2'),
    hints: fc.constantFrom(
      undefined,
      { forZones: [{ name: 'a' }] },
      { forZones: [{ name: 'b' }], forNodes: [{ name: 'here' }] },
    ),
  })
  .map(its =>
    endpoint(its.address, {
      conditions: its.conditions,
      nodeName: its.nodeName,
      zone: its.zone,
      targetRef: { uid: its.uid },
      hints: its.hints,
    }),
  )

const anySlice = fc
  .record({
    name: fc.constantFrom('s1', 's2', 's3', 's4'),
    to: name,
    endpoints: fc.array(anyEndpoint, { maxLength: 4 }),
    ports: fc.uniqueArray(
      fc.record({
        name: fc.constantFrom('', 'x'),
        port: fc.constantFrom(8080, 8081),
        protocol: fc.constantFrom('TCP', 'UDP'),
      }),
      { maxLength: 3 },
    ),
    day: fc.integer({ min: 1, max: 3 }),
  })
  .map(its =>
    slice(its.name, its.to, its.endpoints, {
      ports: its.ports,
      metadata: {
        labels: { 'kubernetes.io/service-name': its.to },
        annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': `2026-01-0${its.day}T00:00:00Z` },
      },
    }),
  )

const anyNode = fc
  .record({
    ips: fc.subarray(['192.168.1.7', '192.0.2.1', 'fd01::7']),
    zone: fc.constantFrom('a', 'b', undefined),
  })
  .map(({ ips, zone }) => node(zone === undefined ? { ips } : { ips, zone }))

const anySilence = fc
  .record({
    key: name.map(its => `ns/${its}`),
    endpoints: fc.array(
      fc.record({
        protocol: fc.constantFrom('TCP', 'UDP'),
        ip: fc.constantFrom('10.1.0.1', '10.1.0.2', '10.1.0.3').map(ip),
        port: fc.constantFrom(8080, 8081),
      }),
      { maxLength: 3 },
    ),
  })
  .map(({ key, endpoints }): SnapshotEvent => {
    return { kind: 'Silent', key, value: endpoints.length === 0 ? undefined : { endpoints } }
  })

const anyEvent: fc.Arbitrary<SnapshotEvent> = fc.oneof(
  { weight: 6, arbitrary: anyService.map(object => oneEvent(object)) },
  { weight: 6, arbitrary: anySlice.map(object => oneEvent(object)) },
  {
    weight: 2,
    arbitrary: name.map((key): SnapshotEvent => ({ kind: 'Service', key: `ns/${key}`, value: undefined })),
  },
  {
    weight: 2,
    arbitrary: fc
      .constantFrom('s1', 's2', 's3')
      .map((key): SnapshotEvent => ({ kind: 'EndpointSlice', key: `ns/${key}`, value: undefined })),
  },
  { weight: 2, arbitrary: anySilence },
  { weight: 1, arbitrary: anyNode.map(object => oneEvent(object)) },
  { weight: 1, arbitrary: fc.constant<SnapshotEvent>({ kind: 'Node', key: 'here', value: undefined }) },
  {
    weight: 1,
    arbitrary: fc
      .subarray(['10.0.0.7', '192.168.1.7', '127.0.0.1'])
      .map((ips): SnapshotEvent => ({ kind: 'LocalIps', value: ips.map(ip) })),
  },
)

function oneEvent(object: Fields): SnapshotEvent {
  const [event] = eventsOf([object])
  if (event === undefined) throw new Error('no event')
  return event
}

const RATES = { frontend: 500, sliceEndpoint: 300, endpoint: 700, perFrontend: false }

const anyOptions: fc.Arbitrary<ResolveOptions> = fc.record({
  nodeName: fc.constant('here'),
  serviceProxyName: fc.constantFrom(undefined, undefined, 'other'),
  nodePortSelection: fc.constantFrom(
    { primary: true, cidrs: [] },
    { primary: false, cidrs: [cidr('10.0.0.0/8')] },
  ),
  listNodePortAddresses: fc.boolean(),
  balancing: fc.constantFrom<ResolveOptions['balancing']>(
    undefined,
    { policy: 'random' },
    { policy: 'local-first' },
    { policy: 'random', refusedBy: 'iptables', failOverRefusedBy: 'iptables' },
  ),
  allowedExternalCidrs: fc.constantFrom([], [], [cidr('192.0.2.0/31')]),
  allowedLoadBalancerCidrs: fc.constantFrom([], [], [cidr('192.0.2.2/32')]),
  allowServiceExternalIps: fc.constantFrom(true, true, false),
  memory: fc.constantFrom(undefined, ...[4_000, 8_000, 14_000].map(bytes => ({ bytes, rates: RATES }))),
  bindAddress: fc.constantFrom(undefined, undefined, '\xc0\0\x02\x09'),
})

describe('resolve with a previous result', () => {
  it('equals resolve from nothing after every step of any sequence of changes, with what is refused for memory', () => {
    const step = fc.record({
      events: fc.array(anyEvent, { maxLength: 4 }),
      options: fc.option(anyOptions, { freq: 12, nil: undefined }),
    })
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 12 }), steps => {
        let options = OPTIONS
        let snapshot = EMPTY_SNAPSHOT
        let previous: Resolved | undefined
        for (const { events, options: next } of steps) {
          options = next ?? options
          snapshot = applyEvents(snapshot, events)
          const resolved = finish(resolve(options, previous, snapshot))
          const { table } = resolved
          const anew = finish(resolve(options, undefined, snapshot))
          previous = resolved
          expect(plain(table)).toEqual(plain(anew.table))
          expect(table.number).toBe(snapshot.number)
          invariants(table)
        }
      }),
      { numRuns: runs(400) },
    )
  })

  it('does not depend on the order in which objects became known', () => {
    fc.assert(
      fc.property(fc.uniqueArray(anyEvent, { maxLength: 12, selector: subject }), events => {
        const tables = [events, events.toReversed()].map(order => {
          const snapshot = order.reduce((now, event) => applyEvents(now, [event]), EMPTY_SNAPSHOT)
          return plain(finish(resolve(OPTIONS, undefined, snapshot)).table)
        })
        expect(tables[1]).toEqual(tables[0])
      }),
      { numRuns: runs(1000) },
    )
  })

  it('serves the endpoints that explainEndpoints calls in, and no others', () => {
    let compared = 0
    fc.assert(
      fc.property(fc.array(anyEvent, { minLength: 4, maxLength: 16 }), events => {
        const snapshot = applyEvents(EMPTY_SNAPSHOT, events)
        const { table } = finish(resolve(OPTIONS, undefined, snapshot))
        for (const port of table.services.values().flatMap(its => its.ports)) {
          const { service, protocol, family } = port
          const portName = port.displayName.slice(service.length + 1)
          const query = { options: OPTIONS, snapshot, service, portName, protocol, family }
          const explained = explainEndpoints(query)?.endpoints ?? []
          const needs = needsOf(port.frontends)
          const inCluster = explained.filter(its => needs.cluster && its.cluster.isIn)
          const inLocal = explained.filter(its => needs.local && its.localList.isIn)
          expect(inCluster.map(places)).toEqual(port.cluster.map(places))
          expect(inLocal.map(places)).toEqual(port.local.map(places))
          compared += explained.length
        }
      }),
      // Few of the events make a Service whose endpoints are explained.
      { numRuns: Math.max(40, runs(400)) },
    )
    expect(compared).toBeGreaterThan(0)
  })

  const CLUSTER = Array.from({ length: 1000 }, (_, index) => [
    service(`s-${index}`, { clusterIP: `10.96.${index >> 8}.${index & 255}` }),
    slice(`s-${index}-x`, `s-${index}`, [
      endpoint(`10.1.${index >> 8}.${index & 255}`, { nodeName: index % 10 === 0 ? 'here' : 'there' }),
    ]),
  ]).flat()

  function touched(objects: readonly Fields[], options = OPTIONS): string[] {
    const before = snapshotOf([node({ zone: 'a' }), ...CLUSTER])
    const first = finish(resolve(OPTIONS, undefined, before))
    const next = finish(resolve(options, first, applyEvents(before, eventsOf(objects))))
    return [...PersistentMap.changes(first.table.services, next.table.services)].sort()
  }

  it('keeps the very objects of Services that did not change', () => {
    expect(touched([slice('s-7-x', 's-7', [endpoint('10.1.9.9')])])).toEqual(['ns/s-7'])
    expect(touched([slice('s-7-x', 's-8', [endpoint('10.1.9.9')])])).toEqual(['ns/s-7', 'ns/s-8'])
    expect(touched([node({ zone: 'b', podCIDRs: ['10.1.0.0/16'] })])).toEqual([])
    expect(touched([], { ...OPTIONS, nodePortSelection: { primary: false, cidrs: [] } })).toEqual([])
  })

  it('keeps everything that belongs to no Service when that is the same', () => {
    const snapshot = snapshotOf([node(), ...CLUSTER])
    const first = finish(resolve(OPTIONS, undefined, snapshot))
    const { table } = first
    const { table: next } = finish(resolve(OPTIONS, first, applyEvents(snapshot, eventsOf([service('new')]))))
    expect(next.nodePorts).toBe(table.nodePorts)
    expect(next.serviceCidrs).toBe(table.serviceCidrs)
    expect(next.node).toBe(table.node)
    expect(next.localBackends).toBe(table.localBackends)
  })

  it('gives the addresses of this machine, which are no business of any Service', () => {
    const before = snapshotOf([node(), ...CLUSTER])
    const first = finish(resolve(OPTIONS, undefined, before))
    const value = ['192.168.1.7', '10.0.0.7'].map(ip)
    const after = applyEvents(before, [{ kind: 'LocalIps', value }])
    const { table } = finish(resolve(OPTIONS, first, after))
    expect([first.table.localIps, table.localIps]).toEqual([[], value.toReversed()])
    expect(table.services).toBe(first.table.services)
  })

  it.skipIf(IS_QUICK)('offers to pause at least every 200 Services', () => {
    const steps = resolve(OPTIONS, undefined, snapshotOf(CLUSTER))
    let pauses = 0
    while (steps.next().done !== true) pauses++
    expect(pauses).toBeGreaterThanOrEqual(5)
  })
})

function places({ ip: at, port: number, local }: Backend): string {
  return `${at} ${number} ${local}`
}

/** What an event is about. */
function subject(event: SnapshotEvent): string {
  return 'key' in event ? `${event.kind}/${event.key}` : event.kind
}

/** What planes rely on. */
function invariants(table: FrontendTable): void {
  const places = new Set<string>()
  const clusterIps = new Set<string>()
  const keys = new Set<string>()
  for (const { service: key, clusterIps: own, ports, wholes = [] } of table.services.values()) {
    for (const whole of wholes) {
      const isLocal = whole.route.kind === 'external-local'
      expect(whole.cluster.length > 0).toBe(whole.route.kind !== 'reject')
      if (!isLocal) expect(whole.local).toEqual([])
      for (const its of whole.ips) expect(once(places, `whole ${its}`), `${key} at ${its}`).toBe(true)
    }
    for (const its of own) expect(once(clusterIps, its), `ClusterIP of ${key}`).toBe(true)
    for (const its of ports) {
      expect(once(keys, its.key)).toBe(true)
      expect(its.frontends.length).toBeGreaterThan(0)
      for (const { ip: at, port: number, sourceRanges } of its.frontends) {
        const place = `${its.protocol}/${at ?? its.family}/${number}`
        expect(once(places, place), `${its.key} at ${place}`).toBe(true)
        expect(sourceRanges).not.toEqual([])
      }
      const needsCluster = its.frontends.some(
        ({ route }) =>
          route.kind.startsWith('external') || (route.kind === 'internal' && route.over === 'cluster'),
      )
      const needsLocal = its.frontends.some(
        ({ route }) => route.kind === 'internal' && route.over === 'local',
      )
      const mayLocal = needsLocal || its.frontends.some(({ route }) => route.kind === 'external-local')
      expect(its.cluster.length > 0).toBe(needsCluster)
      if (needsLocal) expect(its.local.length).toBeGreaterThan(0)
      if (!mayLocal) expect(its.local).toEqual([])
      expect(its.local.every(backend => backend.local)).toBe(true)
    }
  }
}

function once(seen: Set<string>, key: string): boolean {
  if (seen.has(key)) return false
  seen.add(key)
  return true
}
