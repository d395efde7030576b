import { describe, expect, it } from 'vitest'
import type { Ip } from '../../../../src/base/ip.ts'
import type { Frontend, FrontendTable } from '../../../../src/model/frontend.ts'
import { type SurroundingsOptions, surroundingsOf } from '../../../../src/modes/ipvs/places.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../../../src/modes/ipvs/settings.ts'
import type { IpvsState } from '../../../../src/modes/ipvs/state.ts'
import type { TracePacket } from '../../../../src/proof/evaluate/trace.ts'
import {
  backends,
  CLUSTER,
  clusterIp,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  ip6,
  LOCAL,
  nodePort,
  REJECT,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { createIpvsTracer } from '../../../support/tracers.ts'
import { lines, tableIn } from '../nftables/inspect.ts'
import { addresses, complaints, everything, members, render, servers } from './rendered.ts'

const IP = ip4(10, 96, 0, 1)
const VIP = ip4(203, 0, 113, 1)
const NODE_IP = ip4(192, 168, 0, 2)
const NODE_IP_2 = ip4(192, 168, 1, 2)
const ON_NODE = { localIps: [NODE_IP, NODE_IP_2] }
const LISTS = { cluster: backends(2), local: backends(1, { local: true }) }
const TO_CLUSTER = '10.21.0.1:8080 10.21.0.2:8080'

function externalIp(ip: Ip, port: number, route: Frontend['route']): Frontend {
  return { kind: 'ExternalIP', ip, port, route, sourceRanges: undefined }
}

describe('what the sets of kube-proxy have', () => {
  const ranges = [
    { ip: ip4(0, 0, 0, 0), bits: 0 },
    { ip: ip4(10, 0, 0, 0), bits: 8 },
    { ip: VIP, bits: 32 },
  ]
  const frontends = (route: Frontend['route']) => [
    clusterIp(IP, 80),
    nodePort(30_001, route),
    externalIp(ip4(198, 51, 100, 1), 80, route),
    vip(VIP, 80, route, ranges),
  ]

  it('says of each address what it is, by policy', () => {
    const cluster = render(table([service('ns/a', [{ frontends: frontends(EXTERNAL), ...LISTS }])], ON_NODE))
    const local = render(
      table([service('ns/a', [{ frontends: frontends(EXTERNAL_LOCAL), ...LISTS }])], ON_NODE),
    )
    const of = (state: IpvsState) =>
      ['EXTERNAL-IP', 'EXTERNAL-IP-LOCAL', 'LOAD-BALANCER', 'LOAD-BALANCER-LOCAL', 'NODE-PORT-TCP'].map(
        stem => members(state, `KUBE-${stem}`).join(' '),
      )
    expect(of(cluster)).toEqual(['198.51.100.1,6:80', '', '203.0.113.1,6:80', '', '30001'])
    expect(of(local)).toEqual(['', '198.51.100.1,6:80', '203.0.113.1,6:80', '203.0.113.1,6:80', '30001'])
    expect(members(cluster, 'KUBE-NODE-PORT-LOCAL-TCP')).toEqual([])
    expect(members(local, 'KUBE-NODE-PORT-LOCAL-TCP')).toEqual(['30001'])
  })

  it('has endpoints of this node of either list with themselves', () => {
    const mixed = [...backends(1, { local: true }), ...backends(1)]
    const state = render(
      table([
        service('ns/a', [{ frontends: frontends(EXTERNAL_LOCAL), cluster: mixed, local: LISTS.local }]),
      ]),
    )
    expect(members(state, 'KUBE-LOOP-BACK')).toEqual(['10.20.0.1,6:8080,10.20.0.1'])
  })

  it('has health check node ports in the families of the Service', () => {
    const its = service('ns/a', [{ frontends: [clusterIp(IP, 80)], ...LISTS }])
    const state = render(table([{ ...its, healthCheck: { port: 31_000, local: { IPv4: 1 } } }]))
    expect(members(state, 'KUBE-HEALTH-CHECK-NODE-PORT')).toEqual(['31000'])
    expect(members(state, 'KUBE-6-HEALTH-CHECK-NODE-PORT')).toEqual([])
  })
})

describe('what the rules answer before IPVS is asked', () => {
  it('is in the verdicts, with a virtual server of nobody', () => {
    const state = render(
      table([
        service('ns/a', [{ frontends: [clusterIp(IP, 80, REJECT), vip(VIP, 80, REJECT)] }]),
        service('ns/b', [{ frontends: [clusterIp(ip4(10, 96, 0, 2), 80, DROP)] }]),
        service('ns/c', [{ frontends: [clusterIp(ip4(10, 96, 0, 3), 80, LOCAL)] }]),
        service('ns/d', [{ frontends: [clusterIp(ip4(10, 96, 0, 4), 80, CLUSTER)] }]),
      ]),
    )
    expect(lines(tableIn(state), 'verdicts')).toEqual([
      '10.96.0.1 . tcp . 80 : goto refuse',
      '10.96.0.2 . tcp . 80 : goto no-local-endpoints',
      '10.96.0.3 . tcp . 80 : goto no-local-endpoints',
      '10.96.0.4 . tcp . 80 : goto refuse',
      '203.0.113.1 . tcp . 80 : goto refuse',
    ])
    expect(servers(state)).toHaveLength(5)
    expect(servers(state).every(line => line.endsWith('->'))).toBe(true)
  })
})

describe('policy Local', () => {
  it('has a private virtual server where the ClusterIP serves this node alone, at a port that nobody has', () => {
    const frontends = [clusterIp(IP, 65_535, LOCAL), vip(VIP, 80, EXTERNAL_LOCAL)]
    const second = [clusterIp(IP, 81, LOCAL), vip(VIP, 81, EXTERNAL_LOCAL)]
    const udp = [clusterIp(IP, 80, LOCAL), vip(VIP, 80, EXTERNAL_LOCAL)]
    const state = render(
      table([
        service('ns/a', [
          { frontends, ...LISTS },
          { name: 'b', frontends: second, ...LISTS },
          { name: 'c', protocol: 'UDP', frontends: udp, ...LISTS },
        ]),
      ]),
    )
    expect(lines(tableIn(state), 'cluster-lists')).toEqual([
      '203.0.113.1 . tcp . 80 : 10.96.0.1 . 65534',
      '203.0.113.1 . tcp . 81 : 10.96.0.1 . 65533',
      '203.0.113.1 . udp . 80 : 10.96.0.1 . 65535',
    ])
    expect(servers(state)).toContain(`TCP 10.96.0.1:65534 rr -> ${TO_CLUSTER}`)
    expect(members(state, 'KUBE-CLUSTER-IP')).toHaveLength(3)
    expect(complaints(state)).toEqual([])
  })

  it.each([
    ["another Service's", { clusterIps: [] }, []],
    ["another device's", {}, [IP]],
  ])('is refused for the inside when the ClusterIP is %s', (_, more, localIps) => {
    const its = service('ns/a', [
      { frontends: [clusterIp(IP, 80, LOCAL), vip(VIP, 80, EXTERNAL_LOCAL)], ...LISTS },
    ])
    const state = render(table([{ ...its, ...more }], { localIps }))
    expect(lines(tableIn(state), 'cluster-lists')).toEqual([])
    expect([...state.refusals.values()].flat().map(({ object, field }) => `${object} ${field}`)).toEqual([
      'Service ns/a spec.externalTrafficPolicy',
    ])
  })
})

describe('session affinity', () => {
  const affine = (external: Frontend['route']) =>
    render(
      table(
        [
          service('ns/a', [
            {
              affinityTimeoutS: 600,
              frontends: [clusterIp(IP, 80, LOCAL), nodePort(30_001, external), vip(VIP, 80, external)],
              ...LISTS,
            },
          ]),
        ],
        { localIps: [NODE_IP] },
      ),
    )

  // Of policy Cluster: test/scenarios/affinity*.yaml.
  it('is shared: every address leads to one virtual server of a list, also of policy Local inside', () => {
    expect(lines(tableIn(affine(EXTERNAL)), 'cluster-lists')).toEqual([
      '192.168.0.2 . tcp . 30001 : 10.96.0.1 . 65535',
      '203.0.113.1 . tcp . 80 : 10.96.0.1 . 65535',
    ])
    expect(lines(tableIn(affine(EXTERNAL_LOCAL)), 'local-lists')).toEqual([
      '192.168.0.2 . tcp . 30001 : 10.96.0.1 . 80',
      '203.0.113.1 . tcp . 80 : 10.96.0.1 . 80',
    ])
  })
})

describe('the scheduler', () => {
  const asking = (scheduler: string | undefined) =>
    table([service('ns/a', [{ scheduler, frontends: [clusterIp(IP, 80)], ...LISTS }])])

  it('is the usual one, or the one that the Service asks for', () => {
    const options = { scheduler: 'wrr' }
    const used = (frontends: FrontendTable) =>
      render(frontends, undefined, { options }).servers.values()[0]?.server
    expect(used(asking(undefined))).toMatchObject({ scheduler: 'wrr', flags: 0 })
    expect(used(asking('lc'))).toMatchObject({ scheduler: 'lc', flags: 0 })
    expect(used(asking('mh'))).toMatchObject({ scheduler: 'mh', flags: 0x10 })
  })

  it('is the usual one, with a word about it, where the kernel lacks the other', () => {
    const asked = asking('wlc')
    const before = render(asked)
    const state = render(asked, before, { options: { missingSchedulers: new Set(['wlc']) } })
    expect(servers(state)).toEqual([`TCP 10.96.0.1:80 rr -> ${TO_CLUSTER}`])
    expect(state.missingSchedulers).toEqual(new Set(['wlc']))
    expect(state.refusals.get('ns/a')).toEqual([
      {
        object: 'Service ns/a',
        field: 'metadata.annotations[kprobe.io/ipvs-scheduler]',
        value: 'wlc',
        reason: 'this kernel has no such scheduler (module ip_vs_wlc); kprobe uses rr',
      },
    ])
    expect(render(asked, state).refusals.size).toBe(0)
  })
})

describe('weights', () => {
  it('beyond what IPVS tools accept are scaled together, and none becomes 0', () => {
    const cluster = backends(4).map((its, at) => ({ ...its, weight: [500_000, 250_100, 501, 1][at] ?? 1 }))
    const made = service('ns/a', [{ frontends: [clusterIp(IP, 80)], cluster }])
    const [server] = render(table([made])).servers.values()
    expect([...(server?.destinations.values() ?? [])].map(({ weight }) => weight)).toEqual([
      65_535, 32_781, 66, 1,
    ])
  })
})

describe('addresses that other devices have', () => {
  it('are neither bound nor recorded as bound, and served all the same', () => {
    const state = render(
      table(
        [service('ns/a', [{ frontends: [clusterIp(IP, 80), vip(NODE_IP, 80, EXTERNAL)], ...LISTS }])],
        ON_NODE,
      ),
    )
    expect(addresses(state)).toEqual(['10.96.0.1'])
    expect(members(state, 'KUBE-IPVS-IPS')).toEqual(['10.96.0.1'])
    expect(members(state, 'KUBE-LOAD-BALANCER')).toEqual(['192.168.0.2,6:80'])
    expect(servers(state)).toContain(`TCP 192.168.0.2:80 rr -> ${TO_CLUSTER}`)
  })
})

it('lets load balancers meet the health check node port at the balanced address, and nobody at others', () => {
  const frontends = [
    clusterIp(IP, 80),
    vip(VIP, 80, EXTERNAL_LOCAL),
    { ...vip(ip4(203, 0, 113, 2), 80, EXTERNAL_LOCAL), kind: 'ExternalIP' as const },
  ]
  const its = service('ns/a', [{ frontends, ...LISTS }])
  const healthCheck = { port: 31_000, local: { IPv4: 1 } }
  const accepted = (localIps: readonly Ip[], more = {}): string[] =>
    lines(tableIn(render(table([{ ...its, healthCheck, ...more }], { localIps }))), 'health-checks')
  expect(accepted([])).toEqual(['203.0.113.1 . tcp . 31000'])
  expect(accepted([VIP])).toEqual([])
  expect(accepted([], { healthCheck: { ...healthCheck, port: 80 } })).toEqual([])
})

it('F145: a health check node port comes behind what another Service has there', () => {
  const others = service('ns/b', [{ frontends: [vip(VIP, 31_000, EXTERNAL)], ...LISTS }])
  const its = service('ns/a', [{ frontends: [vip(VIP, 80, EXTERNAL_LOCAL)], ...LISTS }])
  const state = render(table([{ ...its, healthCheck: { port: 31_000, local: { IPv4: 1 } } }, others]))
  const packet: TracePacket = {
    origin: 'interface',
    interfaceName: 'ext0',
    protocol: 6,
    source: ip4(198, 51, 100, 1),
    sourcePort: 40_000,
    destination: VIP,
    destinationPort: 31_000,
  }
  const { verdict, masquerade } = createIpvsTracer(state).trace(packet, {
    localIps: new Set(),
    random: () => 0,
  })
  expect({ verdict, masquerade }).toEqual({ verdict: 'dnat', masquerade: true })
})

it('keeps off places where somebody else has a virtual server, whoever else wants these', () => {
  const occupied = { servers: new Set(['TCP 192.168.0.2:30001', 'TCP 10.96.0.1:80']), version: 1 }
  const ports = { frontends: [clusterIp(IP, 80), nodePort(30_001, EXTERNAL)], ...LISTS }
  const balanced = { frontends: [clusterIp(ip4(10, 96, 0, 2), 80), vip(NODE_IP, 30_001, EXTERNAL)], ...LISTS }
  const both = [service('ns/a', [ports]), service('ns/b', [balanced])]
  const before = table(both, ON_NODE)
  const state = render(before, undefined, { options: { occupied } })
  expect(servers(state).map(line => line.split(' ->')[0])).toEqual([
    'TCP 10.96.0.1:80 rr',
    'TCP 10.96.0.2:80 rr',
  ])
  expect([...state.refusals.keys()]).toEqual(['ns/a', 'ns/b'])
  expect(members(state, 'KUBE-NODE-PORT-TCP')).toEqual([])
  const after = { ...before, services: before.services.with([['ns/b', undefined]]) }
  const next = render(after, state, { options: { occupied } })
  expect(everything(next)).toEqual(everything(render(after, undefined, { options: { occupied } })))
})

describe('the cost of a change', () => {
  it('is that of the Service which changed', () => {
    const many = Array.from({ length: 300 }, (_, i) =>
      service(`ns/s${i}`, [
        {
          frontends: [clusterIp(ip4(10, 97, i >>> 8, i & 255), 80), vip(VIP, 1_000 + i, EXTERNAL_LOCAL)],
          ...LISTS,
        },
      ]),
    )
    const before = table(many, ON_NODE)
    const state = render(before)
    const grown = service('ns/s7', [
      {
        frontends: [clusterIp(ip4(10, 97, 0, 7), 80), vip(VIP, 1_007, EXTERNAL_LOCAL)],
        ...LISTS,
        cluster: backends(3),
      },
    ])
    const touched = new Set<string>()
    const services = before.services.with([['ns/s7', grown]])
    const spied = { ...before, services: watched(services, touched) }
    const next = render(spied, state)
    expect([...touched]).toEqual(['ns/s7'])
    const differing = [...next.servers.keys()].filter(key => next.servers.get(key) !== state.servers.get(key))
    expect(differing).toEqual(['TCP 10.97.0.7:80'])
    expect(next.entries).toBe(state.entries)
    expect(next.addresses).toBe(state.addresses)
    expect(next.ruleset).toBe(state.ruleset)
    expect(next.sets).toBe(state.sets)
  })
})

/** The same version of the same map, which takes note of what is asked for. */
function watched<M extends { get(key: string): unknown }>(map: M, asked: Set<string>): M {
  const get = map.get.bind(map)
  map.get = (key: string) => {
    asked.add(key)
    return get(key)
  }
  return map
}

describe('what all Services are rendered by', () => {
  const NODE_IPS = [NODE_IP, ip6(0x99, 2)]

  function keyOf(localIps: readonly Ip[], more: Partial<SurroundingsOptions> = {}): string {
    const options = { ...DEFAULT_IPVS_OPTIONS, missingSchedulers: new Set<string>(), ...more }
    return surroundingsOf(table([], { localIps }), options).key
  }

  it('is the same when a pod brings link-local addresses along', () => {
    const linkLocal = [ip4(169, 254, 7, 7), `\xfe\x80${ip6(0, 1).slice(2)}`]
    expect(keyOf([...NODE_IPS, ...linkLocal])).toBe(keyOf(NODE_IPS))
  })

  it.each([
    ['an address of the node', keyOf(NODE_IPS.slice(1))],
    ['a scheduler', keyOf(NODE_IPS, { scheduler: 'lc' })],
    ['a missing scheduler', keyOf(NODE_IPS, { missingSchedulers: new Set(['mh']) })],
    [
      'what others have',
      keyOf(NODE_IPS, { occupied: { servers: new Set(['TCP 192.0.2.1:80']), version: 1 } }),
    ],
  ])('is not when there is another: %s', (_, key) => {
    expect(key).not.toBe(keyOf(NODE_IPS))
  })
})
