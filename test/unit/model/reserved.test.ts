import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { readSnapshotJson, snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import type { ServiceListeners } from '../../../src/model/reserved.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, type Snapshot } from '../../../src/model/snapshot.ts'
import { cidr, ip } from '../../support/addresses.ts'
import {
  endpoint,
  eventsOf,
  type Fields,
  frontendLines,
  node,
  OPTIONS,
  plain,
  refusalLines,
  service,
  slice,
  snapshotOf,
} from './objects.ts'

const API = '192.0.2.1'
const PORTS = [{ name: 'a', port: 6443 }]

/** The API server is dialed at API:6443. */
function dialed(objects: readonly Fields[], address = API): Snapshot {
  return applyEvents(snapshotOf(objects), [
    { kind: 'ApiEndpoints', value: [{ ip: ip(address), port: 6443 }] },
  ])
}

function resolved(snapshot: Snapshot, options: Partial<ResolveOptions> = {}, before?: Resolved): Resolved {
  return finish(resolve({ ...OPTIONS, ...options }, before, snapshot))
}

function standing({ table }: Resolved, key = 'ns/web') {
  const found = table.services.get(key)
  const lines = (found?.ports ?? []).flatMap(frontendLines).filter(line => !line.startsWith('10.96.'))
  return { frontends: lines, refusals: refusalLines(found) }
}

const thief = (spec: Fields = {}) => service('web', { externalIPs: [API], ports: PORTS, ...spec })
const balanced = (spec: Fields = {}) =>
  service(
    'web',
    { type: 'LoadBalancer', ports: PORTS, ...spec },
    { status: { loadBalancer: { ingress: [{ ip: API }] } } },
  )
const ready = slice('web-1', 'web', [endpoint('10.0.0.1')], { ports: [{ name: 'a', port: 8080 }] })
/** A headless Service without ports, which a named proxy serves at its whole addresses. */
const whole = service(
  'web',
  { clusterIP: 'None', externalIPs: [API, '192.0.2.9'], ports: undefined },
  { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'mine' } } },
)
const SERVED = { frontends: [`${API}:6443 external-cluster`], refusals: [] }

describe('an external address at which the API server answers', () => {
  it('is refused to a headless Service without ports, which keeps its other address', () => {
    const { table } = resolved(dialed([whole, ready]), { serviceProxyName: 'mine' })
    const found = table.services.get('ns/web')
    expect(found?.wholes?.flatMap(({ ips }) => ips)).toEqual([ip('192.0.2.9')])
    expect(refusalLines(found)).toEqual([
      expect.stringContaining(`spec.externalIPs = ${API}: the API server`),
    ])
  })

  it('is refused at that port, with endpoints or without, whatever ranges are allowed', () => {
    const refusals = [
      expect.stringContaining(`Service ns/web: spec.externalIPs = ${API}:6443/TCP: the API server`),
    ]
    const allowedExternalCidrs = [cidr('0.0.0.0/0')]
    for (const objects of [[thief()], [thief(), ready]])
      expect(standing(resolved(dialed(objects), { allowedExternalCidrs }))).toEqual({
        frontends: [],
        refusals,
      })
  })

  it('is taken at other ports and protocols', () => {
    const ports = [
      { name: 'a', port: 443 },
      { name: 'b', port: 6443, protocol: 'UDP' },
    ]
    const { frontends, refusals } = standing(resolved(dialed([thief({ ports })])))
    expect({ frontends, refusals }).toEqual({
      frontends: [`${API}:443 reject`, `${API}:6443 reject`],
      refusals: [],
    })
  })

  it('is refused at all ports where the mode binds it, unless it is an address of this node anyway', () => {
    const snapshot = dialed([thief({ ports: [{ name: 'a', port: 443 }] })])
    const binds = { bindsExternalIps: true }
    expect(standing(resolved(snapshot, binds)).refusals).toEqual([
      expect.stringContaining(`${API}:443/TCP: the API server answers at this address`),
    ])
    const local = applyEvents(snapshot, [{ kind: 'LocalIps', value: [ip(API)] }])
    expect(standing(resolved(local, binds))).toEqual({ frontends: [`${API}:443 reject`], refusals: [] })
  })

  it('F131: is known from the slice that API servers write, not from other slices', () => {
    const named = (name: string, address: string) =>
      slice(name, 'kubernetes', [endpoint(address)], {
        metadata: { namespace: 'default' },
        ports: [{ name: 'https', port: 6443 }],
      })
    const others = ['a', 'b', 'c', 'd'].map((name, index) => named(name, `198.51.100.${index}`))
    expect(standing(resolved(snapshotOf([thief(), ...others]))).refusals).toEqual([])
    expect(
      standing(resolved(snapshotOf([thief(), ...others, named('kubernetes', API)]))).refusals,
    ).toHaveLength(1)
    const elsewhere = thief({ externalIPs: ['198.51.100.1'] })
    expect(standing(resolved(snapshotOf([elsewhere, ...others]))).refusals).toHaveLength(1)
    const all = [elsewhere, ...others, named('kubernetes', API)]
    expect(standing(resolved(snapshotOf(all))).refusals).toEqual([])
  })

  it('is known from the endpoints of default/kubernetes, and follows them', () => {
    const slices = (address: string) =>
      slice('kubernetes', 'kubernetes', [endpoint(address)], {
        metadata: { namespace: 'default' },
        ports: [
          { name: 'https', port: 6443 },
          { name: 'other', port: 6443, protocol: 'UDP' },
        ],
      })
    const first = resolved(snapshotOf([thief(), slices(API)]))
    expect(standing(first)).toMatchObject({ frontends: [], refusals: [expect.stringContaining(API)] })
    const moved = applyEvents(first.snapshot, eventsOf([slices('192.0.2.9')]))
    const second = resolved(moved, {}, first)
    expect(standing(second)).toEqual({ frontends: [`${API}:6443 reject`], refusals: [] })
    expect(plain(second.table)).toEqual(plain(resolved(moved).table))
  })

  it('F131: costs a pass over all Services only where one of them asks for an address that changed', () => {
    const many = Array.from({ length: 600 }, (_, index) =>
      service(`s${index}`, { clusterIP: `10.96.${1 + (index >> 8)}.${index & 255}`, ports: PORTS }),
    )
    const before = resolved(dialed([...many, thief()], '198.51.100.1'))
    const movedTo = (address: string) =>
      applyEvents(before.snapshot, [{ kind: 'ApiEndpoints', value: [{ ip: ip(address), port: 6443 }] }])
    const pauses = (snapshot: Snapshot) => [...resolve(OPTIONS, before, snapshot)].length
    expect(pauses(movedTo('198.51.100.2'))).toBe(0)
    expect(pauses(movedTo(API))).toBeGreaterThan(0)
    const unclaimed = resolved(movedTo('198.51.100.2'), {}, before)
    expect(unclaimed.table.services).toBe(before.table.services)
    expect(standing(resolved(dialed([thief()], API), {}, unclaimed)).refusals).toHaveLength(1)
    expect(standing(resolved(movedTo(API), {}, unclaimed)).refusals).toHaveLength(1)
  })

  it('does not keep the Services of the API server itself from their ClusterIPs', () => {
    const own = service('web', { clusterIP: '10.96.0.1', ports: PORTS })
    const { table } = resolved(dialed([own, ready], '10.96.0.1'))
    expect(table.services.get('ns/web')?.ports.flatMap(frontendLines)).toEqual([
      '10.96.0.1:6443 internal/cluster',
    ])
  })
})

describe('a load-balancer address at which the API server answers', () => {
  it('is taken while the Service has an endpoint', () => {
    expect(standing(resolved(dialed([balanced(), ready])))).toEqual(SERVED)
    expect(standing(resolved(dialed([balanced()])))).toEqual({
      frontends: [],
      refusals: [expect.stringContaining(`status.loadBalancer.ingress = ${API}:6443/TCP: the API server`)],
    })
  })

  it('is refused while its source ranges keep this node out', () => {
    const ranges = (range: string) => balanced({ loadBalancerSourceRanges: [range] })
    expect(standing(resolved(dialed([node(), ranges('192.168.1.0/24'), ready]))).refusals).toEqual([])
    expect(standing(resolved(dialed([node(), ranges('203.0.113.0/24'), ready]))).frontends).toEqual([])
    expect(standing(resolved(dialed([ranges('192.168.1.0/24'), ready]))).frontends).toEqual([])
  })

  it('is not lost to an older Service whose external address is refused', () => {
    const older = service(
      'older',
      { clusterIP: '10.96.0.9', externalIPs: [API], ports: PORTS },
      { metadata: { creationTimestamp: '2020-01-01T00:00:00Z' } },
    )
    const snapshot = dialed([older, balanced(), ready])
    expect(standing(resolved(snapshot))).toEqual(SERVED)
    // The same after the other order of events.
    const later = applyEvents(snapshotOf([older, balanced(), ready]), [])
    const after = applyEvents(later, [{ kind: 'ApiEndpoints', value: [{ ip: ip(API), port: 6443 }] }])
    expect(plain(resolved(after, {}, resolved(later)).table)).toEqual(plain(resolved(snapshot).table))
  })
})

describe('an external address at which a process of the node listens', () => {
  const BRIDGE = '172.17.0.1'
  const TAKEN: ServiceListeners = { taken: [{ ip: ip(BRIDGE), protocol: 'TCP', port: 80 }] }
  const FREE = { frontends: [`${BRIDGE}:80 reject`], refusals: [] }
  const ALLOWED = { allowedExternalCidrs: [cidr('172.17.0.0/16')] }
  const web = service('web', { externalIPs: [BRIDGE] })
  const twin = service('twin', { externalIPs: [BRIDGE], clusterIP: '10.96.0.2', ports: [{ port: 81 }] })

  function found(snapshot: Snapshot, value: ServiceListeners | undefined): Snapshot {
    return applyEvents(snapshot, [{ kind: 'Listeners', key: 'ns/web', value }])
  }

  it('is refused at that port, and taken when the process is gone', () => {
    const first = resolved(snapshotOf([web, twin]))
    expect(standing(first)).toEqual(FREE)
    const second = resolved(found(first.snapshot, TAKEN), {}, first)
    expect(standing(second)).toEqual({
      frontends: [],
      refusals: [
        `Service ns/web: spec.externalIPs = ${BRIDGE}:80/TCP: a process of this node listens there; allow it with --allowed-external-cidrs`,
      ],
    })
    expect(second.table.services.get('ns/twin')).toBe(first.table.services.get('ns/twin'))
    expect(standing(resolved(found(second.snapshot, undefined), {}, second))).toEqual(FREE)
  })

  it('F134: goes to a younger load balancer until the process is gone', () => {
    const dated = (year: number) => ({ metadata: { creationTimestamp: `${year}-01-01T00:00:00Z` } })
    const older = service('web', { externalIPs: [BRIDGE] }, dated(2020))
    const ingress = { ...dated(2021), status: { loadBalancer: { ingress: [{ ip: BRIDGE }] } } }
    const younger = service('lb', { type: 'LoadBalancer', clusterIP: '10.96.0.2' }, ingress)
    const first = resolved(snapshotOf([older, younger]))
    const second = resolved(found(first.snapshot, TAKEN), {}, first)
    const third = resolved(found(second.snapshot, undefined), {}, second)
    const anew = resolved(second.snapshot)
    const allowed = resolved(second.snapshot, ALLOWED, second)
    const refused = [first, second, third, anew, allowed].map(each =>
      ['ns/web', 'ns/lb'].filter(key => standing(each, key).refusals.length === 1).join(),
    )
    expect(refused).toEqual(['ns/lb', 'ns/web', 'ns/lb', 'ns/web', 'ns/lb'])
    expect(standing(second, 'ns/lb').frontends).toContain(`${BRIDGE}:80 reject`)
  })

  it('is taken where --allowed-external-cidrs allows it', () => {
    expect(standing(resolved(found(snapshotOf([web]), TAKEN), ALLOWED))).toEqual(FREE)
  })

  it('is refused within the pod CIDRs of this node, and follows these', () => {
    const own = node({ podCIDRs: ['172.17.0.0/24', 'fd00::/64'] })
    const first = resolved(snapshotOf([web]))
    const second = resolved(snapshotOf([web, own]), {}, first)
    expect(standing(second)).toEqual({
      frontends: [],
      refusals: [
        `Service ns/web: spec.externalIPs = ${BRIDGE}: within the pod CIDR of this node; allow it with --allowed-external-cidrs`,
      ],
    })
    const other = snapshotOf([web, node({ podCIDRs: ['172.18.0.0/24'] })])
    expect(standing(resolved(other, {}, second))).toEqual(FREE)
  })

  it('is written as JSON and read again, with the endpoints of the API server', () => {
    const before = found(dialed([web]), TAKEN)
    const { number, events } = snapshotJson(before)
    const after = finish(readSnapshotJson(JSON.parse(JSON.stringify({ number, events: [...events] }))))
    expect(after.listeners.entries()).toEqual(before.listeners.entries())
    expect(after.apiEndpoints).toEqual(before.apiEndpoints)
  })
})
