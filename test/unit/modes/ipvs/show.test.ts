import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { serviceNames } from '../../../../src/inspect/admin-client.ts'
import type { IpsetListing } from '../../../../src/kernel/ipset/state.ts'
import {
  IP_VS_SVC_F_PERSISTENT,
  type IpvsProtocol,
  type ListedDestination,
  type VirtualServer,
} from '../../../../src/kernel/ipvs/state.ts'
import { namesOfElements } from '../../../../src/modes/common/service-names.ts'
import { entryRows, serverRows } from '../../../../src/modes/ipvs/dumps.ts'
import { heldIn, nameOf } from '../../../../src/modes/ipvs/show.ts'
import { ip } from '../../../support/addresses.ts'
import {
  backends,
  clusterIp,
  EXTERNAL_LOCAL,
  LOCAL,
  nodePort,
  REJECT,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { render } from './rendered.ts'

/** As /state says it. */
const SERVICES = [
  {
    service: 'ns/web',
    ports: [
      {
        name: 'ns/web:http',
        protocol: 'TCP',
        frontends: [
          { kind: 'ClusterIP', ip: '10.96.0.1', port: 80 },
          { kind: 'NodePort', port: 30080 },
          { kind: 'LoadBalancerIP', ip: '192.0.2.9', port: 80 },
        ],
        cluster: [
          { ip: '10.0.0.1', port: 8080, local: true },
          { ip: '10.0.0.2', port: 8080, local: false },
        ],
        local: [],
      },
      {
        name: 'ns/web',
        protocol: 'UDP',
        frontends: [{ kind: 'ClusterIP', ip: 'fd00::1', port: 53, sourceRanges: ['fd00::/8'] }],
        cluster: [],
        local: [{ ip: 'fd01::1', port: 53, local: true }],
      },
    ],
  },
  {
    service: 'ns/other',
    ports: [{ name: 'ns/other:http', protocol: 'TCP', frontends: [{ kind: 'NodePort', port: 30081 }] }],
  },
  'nonsense',
  { service: 'ns/odd', ports: [{ name: 5, frontends: [7] }] },
]

const names = serviceNames(SERVICES)

function serverAt(protocol: IpvsProtocol, address: string, port: number): VirtualServer {
  return { protocol, ip: ip(address), port, scheduler: 'rr', flags: 0, timeoutS: 0, netmask: 0 }
}

describe('the name of a virtual server', () => {
  it.each([
    ['TCP', '10.96.0.1', 80, 'ns/web:http'],
    ['UDP', 'fd00::1', 53, 'ns/web'],
    // A port that no frontend has: a server that only the rules know.
    ['TCP', '10.96.0.1', 65_535, 'ns/web'],
    ['TCP', '192.0.2.1', 30_080, 'ns/web:http'],
    ['UDP', '192.0.2.1', 30_080, ''],
    // An address of the node at which a Service balances, too.
    ['TCP', '192.0.2.9', 30_081, 'ns/other:http'],
  ] as const)('%s %s %i is %s', (protocol, address, port, name) => {
    expect(nameOf(serverAt(protocol, address, port), names)).toBe(name)
  })

  it('is empty when nobody says', () => {
    expect(nameOf(serverAt('TCP', '10.96.0.1', 80), namesOfElements([]))).toBe('')
    expect(nameOf(serverAt('TCP', '10.96.0.1', 80), serviceNames([]))).toBe('')
  })
})

describe('without a daemon', () => {
  const IP = ip('10.96.0.1')
  const VIP = ip('2001:db8::7')
  const names = namesOfElements(
    render(
      table(
        [
          service('ns/a', [
            {
              frontends: [clusterIp(IP, 80, LOCAL), nodePort(30_001, EXTERNAL_LOCAL)],
              cluster: backends(2),
              local: backends(1, { local: true }),
            },
          ]),
          service('ns/none', [{ name: 'dns', v6: true, frontends: [vip(VIP, 53, REJECT)] }]),
          service('ns/plain', [{ frontends: [clusterIp(ip('10.96.0.3'), 80)], cluster: backends(2) }]),
        ],
        { localIps: [ip('192.168.0.2')] },
      ),
    ).ruleset.tables,
  )

  it.each([
    ['192.168.0.2', 30_001, 'ns/a'],
    // Where pods are sent on to: a port of the ClusterIP that only the rules know.
    ['10.96.0.1', 65_535, 'ns/a'],
    ['10.96.0.1', 80, 'ns/a'],
    ['2001:db8::7', 53, 'ns/none:dns'],
    ['10.96.0.3', 80, ''],
  ] as const)('%s %i is %s by what the elements of our tables say', (address, port, name) => {
    expect(nameOf(serverAt('TCP', address, port), names)).toBe(name)
    expect(names.isComplete).toBe(false)
  })
})

it('does not list an exception of another program among the clients that may connect', () => {
  const ranges = [{ ip: ip('10.0.0.0'), bits: 8 }]
  const frontends = [vip(ip('192.0.2.9'), 80, EXTERNAL_LOCAL, ranges)]
  const state = render(table([service('ns/a', [{ frontends, cluster: backends(1), local: backends(1) }])]))
  const rowsOf = (entries: typeof state.entries) =>
    heldIn({ state: { ...state, entries }, names, localIps: [], chains: [] }, ['ip']).rows
  expect(rowsOf(state.entries)).toMatchObject([{ allowedFrom: ['10.0.0.0/8'] }])
  const excepted = state.entries.entries().map(([key, placed]) => {
    return [key, { ...placed, entry: { ...placed.entry, nomatch: true as const } }] as const
  })
  expect(rowsOf(PersistentMap.from(excepted))).toMatchObject([{ allowedFrom: [] }])
})

it('shows virtual servers by Service, with what drains', () => {
  const stats = { connections: 0n, packetsIn: 0n, packetsOut: 0n, bytesIn: 0n, bytesOut: 0n }
  const listed = (address: string, weight: number): ListedDestination => ({
    destination: { ip: ip(address), port: 8_080, weight, forwarding: 0 },
    stats,
    activeConnections: 2,
    inactiveConnections: 1,
  })
  const sticky = { ...serverAt('TCP', '10.96.0.1', 80), flags: IP_VS_SVC_F_PERSISTENT, timeoutS: 60 }
  const rows = serverRows(
    [
      { server: sticky, destinations: [listed('10.0.0.1', 1), listed('10.0.0.2', 0)] },
      { server: serverAt('TCP', '10.96.9.9', 1), destinations: [] },
    ],
    names,
  )
  expect(rows.map(({ service, address }) => `${service} ${address}`)).toEqual([
    ' 10.96.9.9:1',
    'ns/web:http 10.96.0.1:80',
  ])
  expect(rows[1]).toMatchObject({
    affinitySeconds: 60,
    destinations: [
      { address: '10.0.0.1:8080', weight: 1, activeConnections: 2, inactiveConnections: 1 },
      { address: '10.0.0.2:8080', weight: 0 },
    ],
  })
})

it('names the Service of each entry of a set', () => {
  const listing = (name: string, type: IpsetListing['set']['type'], entries: IpsetListing['entries']) => ({
    set: { name, type, family: 'IPv4' as const, maxElements: 65_536, hashSize: 1_024 },
    revision: 0,
    elements: entries.length,
    references: 0,
    memoryBytes: 0,
    entries,
  })
  const tcp = 6
  const rows = entryRows(
    [
      listing('KUBE-CLUSTER-IP', 'hash:ip,port', [{ ip: ip('10.96.0.1'), protocol: tcp, port: 80 }]),
      listing('KUBE-IPVS-IPS', 'hash:ip', [{ ip: ip('10.96.0.1') }, { ip: ip('10.96.9.9') }]),
      listing('KUBE-NODE-PORT-TCP', 'bitmap:port', [{ port: 30_080 }]),
      listing('KUBE-NODE-PORT-UDP', 'bitmap:port', [{ port: 30_080 }]),
      listing('KUBE-LOOP-BACK', 'hash:ip,port,ip', [
        { ip: ip('10.0.0.1'), protocol: tcp, port: 8_080, ip2: ip('10.0.0.1') },
      ]),
    ],
    names,
  )
  expect(rows.map(({ set, entry, service }) => [set, entry, service])).toEqual([
    ['KUBE-CLUSTER-IP', '10.96.0.1,tcp:80', 'ns/web:http'],
    ['KUBE-IPVS-IPS', '10.96.0.1', 'ns/web'],
    ['KUBE-IPVS-IPS', '10.96.9.9', ''],
    ['KUBE-NODE-PORT-TCP', '30080', 'ns/web:http'],
    ['KUBE-NODE-PORT-UDP', '30080', ''],
    ['KUBE-LOOP-BACK', '10.0.0.1,tcp:8080,10.0.0.1', 'ns/web:http'],
  ])
})
