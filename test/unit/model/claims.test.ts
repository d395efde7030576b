import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import {
  eventsOf,
  type Fields,
  node,
  OPTIONS,
  plain,
  portShown,
  refusalLines,
  service,
  snapshotOf,
} from './objects.ts'

const at = (uid: string, creationTimestamp: string | null) => ({ metadata: { uid, creationTimestamp } })
const MONDAY = '2026-01-05T00:00:00Z'
const TUESDAY = '2026-01-06T00:00:00Z'

function resolved(snapshot: Snapshot, previous?: Resolved): Resolved {
  return finish(resolve(OPTIONS, previous, snapshot))
}

/** `name: frontends` of every Service, and all refusals. */
function standing(table: FrontendTable): { frontends: string[]; refusals: string[] } {
  const services = [...table.services.values()].sort((a, b) => (a.service < b.service ? -1 : 1))
  return {
    frontends: services.flatMap(its =>
      its.ports
        .flatMap(portShown)
        .flatMap(port => port.frontends.map(line => `${its.service} ${line.split(' ')[0]}`)),
    ),
    refusals: services.flatMap(refusalLines),
  }
}

function standingOf(...objects: Fields[]): ReturnType<typeof standing> {
  const { table } = resolved(snapshotOf(objects))
  expect(standing(resolved(snapshotOf(objects.toReversed())).table)).toEqual(standing(table))
  return standing(table)
}

const external = (name: string, clusterIP: string, metadata: Fields, spec: Fields = {}) =>
  service(name, { clusterIP, externalIPs: ['192.0.2.1'], ...spec }, metadata)

describe('two Services that claim one external address and port', () => {
  it.each([
    ['the older one', at('2', MONDAY), at('1', TUESDAY), 'ns/a'],
    ['the older one, the other way round', at('1', TUESDAY), at('2', MONDAY), 'ns/b'],
    ['of one age, the lower UID', at('2', MONDAY), at('1', MONDAY), 'ns/b'],
    ['of one age and UID, the first by name', at('', null), at('', null), 'ns/a'],
    ['one with a date over one without', at('1', null), at('2', MONDAY), 'ns/b'],
  ])('are told apart: %s has it', (_, a, b, winner) => {
    const loser = winner === 'ns/a' ? 'ns/b' : 'ns/a'
    expect(standingOf(external('a', '10.96.0.1', a), external('b', '10.96.0.2', b))).toEqual({
      frontends: ['ns/a 10.96.0.1:80', 'ns/b 10.96.0.2:80', `${winner} 192.0.2.1:80`].sort(),
      refusals: [
        `Service ${loser}: spec.externalIPs = 192.0.2.1:80/TCP: already claimed by Service ${winner}, which comes first`,
      ],
    })
  })

  it('share the address when ports or protocols differ', () => {
    const a = external('a', '10.96.0.1', at('1', MONDAY))
    const b = external('b', '10.96.0.2', at('2', MONDAY), {
      ports: [
        { port: 80, protocol: 'UDP' },
        { name: 'x', port: 81 },
      ],
    })
    expect(standingOf(a, b).refusals).toEqual([])
  })

  it('are distinguished as external IP and load-balancer address', () => {
    const status = { status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } } }
    const a = external('a', '10.96.0.1', at('1', MONDAY))
    const b = service('b', { clusterIP: '10.96.0.2' }, { ...at('2', MONDAY), ...status })
    expect(standingOf(a, b).refusals).toEqual([
      'Service ns/b: status.loadBalancer.ingress = 192.0.2.1:80/TCP: already claimed by Service ns/a, which comes first',
    ])
  })

  it('pass over a claim that is refused on its own account', () => {
    const allowed = { ...OPTIONS, allowedExternalCidrs: [{ ip: '\n\0\0\0', bits: 8 }] }
    const status = { status: { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } } }
    const a = external('a', '10.96.0.1', at('1', MONDAY))
    const b = service('b', { clusterIP: '10.96.0.2' }, { ...at('2', MONDAY), ...status })
    const { table } = finish(resolve(allowed, undefined, snapshotOf([a, b])))
    expect(standing(table).frontends).toContain('ns/b 192.0.2.1:80')
  })
})

describe('two Services that claim one NodePort', () => {
  const nodePort = (name: string, clusterIPs: string[], metadata: Fields, protocol = 'TCP') =>
    service(
      name,
      {
        type: 'NodePort',
        clusterIP: undefined,
        clusterIPs,
        ports: [{ name: 'p', port: 80, nodePort: 30080, protocol }],
      },
      metadata,
    )

  it('are distinguished, and both families are one refusal', () => {
    const a = nodePort('a', ['10.96.0.1', 'fd00::1'], at('1', MONDAY))
    const b = nodePort('b', ['10.96.0.2', 'fd00::2'], at('2', MONDAY))
    expect(standingOf(a, b).refusals).toEqual([
      'Service ns/b: spec.ports[p].nodePort = 30080/TCP: already claimed by Service ns/a, which comes first',
    ])
  })

  it('do not meet across protocols or families', () => {
    const a = nodePort('a', ['10.96.0.1'], at('1', MONDAY))
    expect(standingOf(a, nodePort('b', ['10.96.0.2'], at('2', MONDAY), 'UDP')).refusals).toEqual([])
    expect(standingOf(a, nodePort('b', ['fd00::2'], at('2', MONDAY))).refusals).toEqual([])
  })

  it('do not meet an address port of the same number (F104)', () => {
    const a = nodePort('a', ['10.96.0.1'], at('1', MONDAY))
    const b = service(
      'b',
      { clusterIP: '10.96.0.2', externalIPs: ['192.0.2.1'], ports: [{ port: 30080 }] },
      at('2', MONDAY),
    )
    expect(standingOf(a, b).refusals).toEqual([])
  })
})

describe('F145: ports of the node that two Services want', () => {
  const port = (change: Fields) => ({ ports: [{ name: 'p', port: 80, ...change }] })
  const balancer = (name: string, clusterIP: string, at: Fields, { spec = {}, ip = '' }) =>
    service(
      name,
      { type: 'LoadBalancer', clusterIP, externalTrafficPolicy: 'Local', ...spec },
      { ...at, status: { loadBalancer: { ingress: ip === '' ? [] : [{ ip }] } } },
    )
  const old = at('2', MONDAY)
  const young = at('1', TUESDAY)

  it("a health check node port is the older one's, whether the other wants it for a check or as a NodePort", () => {
    const check = { spec: { healthCheckNodePort: 30100 } }
    const a = balancer('a', '10.96.0.1', old, check)
    const lost = (field: string, value: string) =>
      `Service ns/b: ${field} = ${value}: already claimed by Service ns/a, which comes first`
    expect(standingOf(a, balancer('b', '10.96.0.2', young, check)).refusals).toEqual([
      lost('spec.healthCheckNodePort', '30100/TCP'),
    ])
    const nodePort = { spec: port({ nodePort: 30100 }) }
    expect(standingOf(a, balancer('b', '10.96.0.2', young, nodePort)).refusals).toEqual([
      lost('spec.ports[p].nodePort', '30100/TCP'),
    ])
    expect(
      standingOf(balancer('a', '10.96.0.1', old, nodePort), balancer('b', '10.96.0.2', young, check))
        .refusals,
    ).toEqual([lost('spec.healthCheckNodePort', '30100/TCP')])
  })

  it('a load balancer at an address of the Node does not get the number of an older NodePort', () => {
    const here = node({ ips: ['192.168.1.7'] })
    const a = balancer('a', '10.96.0.1', old, { spec: port({ nodePort: 30080 }) })
    const b = balancer('b', '10.96.0.2', young, { spec: port({ port: 30080 }), ip: '192.168.1.7' })
    expect(standingOf(here, a, b).refusals).toEqual([
      'Service ns/b: status.loadBalancer.ingress = 192.168.1.7:30080/TCP: already claimed by Service ns/a, which comes first',
    ])
    const older = balancer('b', '10.96.0.2', at('1', '2025-01-01T00:00:00Z'), {
      spec: port({ port: 30080 }),
      ip: '192.168.1.7',
    })
    expect(standingOf(here, a, older).refusals).toEqual([])
    const before = snapshotOf([here, b])
    const after = applyEvents(before, eventsOf([a]))
    const previous = resolved(before)
    expect(standing(previous.table).refusals).toEqual([])
    expect(standing(resolved(after, previous).table)).toEqual(standing(resolved(after).table))
  })

  it('an address whose octets spell IPv4 is not a NodePort', () => {
    const a = external('a', '10.96.0.1', old, { externalIPs: ['73.80.118.52'], ...port({ port: 30080 }) })
    const b = balancer('b', '10.96.0.2', young, { spec: port({ nodePort: 30080 }) })
    expect(standingOf(a, b).refusals).toEqual([])
  })
})

describe('two Services with one ClusterIP', () => {
  const a = service('a', { ports: [{ port: 80 }, { name: 'x', port: 81 }] }, at('1', MONDAY))
  const b = service('b', { ports: [{ port: 80 }, { name: 'y', port: 82 }] }, at('2', MONDAY))

  it('keep the ports that they do not share', () => {
    expect(standingOf(a, b)).toEqual({
      frontends: ['ns/a 10.96.0.1:80', 'ns/a 10.96.0.1:81', 'ns/b 10.96.0.1:82'],
      refusals: [
        'Service ns/b: spec.clusterIPs = 10.96.0.1:80/TCP: already claimed by Service ns/a, which comes first',
      ],
    })
  })

  it('do not meet when another proxy has one of them', () => {
    const metadata = {
      ...at('1', MONDAY).metadata,
      labels: { 'service.kubernetes.io/service-proxy-name': 'x' },
    }
    expect(standingOf(service('a', {}, { metadata }), b)).toEqual({
      frontends: ['ns/b 10.96.0.1:80', 'ns/b 10.96.0.1:82'],
      refusals: [],
    })
  })
})

describe('two ports of one Service', () => {
  it('are distinguished by their order', () => {
    const ports = [
      { name: 'a', port: 80, nodePort: 30080 },
      { name: 'b', port: 80, nodePort: 30081 },
      { name: 'c', port: 82, nodePort: 30080 },
      { name: 'd', port: 80, nodePort: 30080, protocol: 'UDP' },
    ]
    expect(standingOf(service('web', { type: 'NodePort', externalIPs: ['192.0.2.1'], ports }))).toEqual({
      frontends: [
        '10.96.0.1:80',
        '*:30080',
        '192.0.2.1:80',
        '*:30081',
        '10.96.0.1:82',
        '192.0.2.1:82',
        '10.96.0.1:80',
        '*:30080',
        '192.0.2.1:80',
      ].map(line => `ns/web ${line}`),
      refusals: [
        'Service ns/web: spec.clusterIPs = 10.96.0.1:80/TCP: already claimed by port "a" of this Service, which comes first',
        'Service ns/web: spec.externalIPs = 192.0.2.1:80/TCP: already claimed by port "a" of this Service, which comes first',
        'Service ns/web: spec.ports[c].nodePort = 30080/TCP: already claimed by port "a" of this Service, which comes first',
      ],
    })
  })
})

describe('when a contest changes', () => {
  const a = external('a', '10.96.0.1', at('1', MONDAY))
  const b = external('b', '10.96.0.2', at('2', MONDAY))
  const c = external('c', '10.96.0.3', at('3', MONDAY))
  const CROWD = Array.from({ length: 300 }, (_, index) =>
    service(`crowd-${index}`, { clusterIP: `10.97.${index >> 8}.${index & 255}` }),
  )

  function step(objects: Fields[], events: SourceEvent[]): { table: FrontendTable; changed: string[] } {
    const before = snapshotOf([...objects, ...CROWD])
    const previous = resolved(before)
    const snapshot = applyEvents(before, events)
    const { table } = resolved(snapshot, previous)
    expect(plain(table)).toEqual(plain(resolved(snapshot).table))
    const keys = new Set([...previous.table.services.keys(), ...table.services.keys()])
    return {
      table,
      changed: [...keys].filter(key => table.services.get(key) !== previous.table.services.get(key)).sort(),
    }
  }
  const gone = (key: string): SourceEvent => ({ kind: 'Service', key, value: undefined })

  it('the next claimant is promoted when the owner is deleted, and no other Service changes (I-46)', () => {
    const { table, changed } = step([a, b, c], [gone('ns/a')])
    expect(standing(table).frontends).toContain('ns/b 192.0.2.1:80')
    expect(changed).toEqual(['ns/a', 'ns/b', 'ns/c'])
    expect(refusalLines(table.services.get('ns/c'))).toEqual([
      'Service ns/c: spec.externalIPs = 192.0.2.1:80/TCP: already claimed by Service ns/b, which comes first',
    ])
  })

  it('a ClusterIP moves between Services in one step (F34)', () => {
    const first = service('first', { clusterIP: '10.96.0.9' }, at('1', MONDAY))
    const second = service('second', { clusterIP: '10.96.0.9' }, at('2', TUESDAY))
    const { table } = step([first], [gone('ns/first'), ...eventsOf([second])])
    expect(standing(table).frontends).toContain('ns/second 10.96.0.9:80')
    expect(standing(table).refusals).toEqual([])
  })
})
