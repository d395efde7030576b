import fc from 'fast-check'
import type { TracePacket } from '../../../../src/kernel/evaluate/trace.ts'
import { IPPROTO_TCP, IPPROTO_UDP } from '../../../../src/kernel/nft/constants.ts'
import { ip, type PipelineConfig } from '../../../support/pipeline.ts'

/* Small clusters that change, and packets that meet what is in them: few addresses and ports, so that nearly everything meets. */

const NAMES = ['a', 'b', 'c', 'd'] as const
export const LOCAL_IPS = ['192.168.0.2', '192.168.1.2', '2001:db8::2', '2001:db8:1::2']
const VIPS = ['198.51.100.20', '198.51.100.21', '2001:db8:99::20']
const EXTERNALS = ['198.51.100.5', '198.51.100.20', '192.168.1.2', '2001:db8:99::5']
const RANGES = ['203.0.113.0/24', '192.0.2.1/32', '192.168.0.0/24', '10.180.9.0/24', '2001:db8:f::/48']
const PORTS = [80, 81, 30_001] as const
const NODE_PORTS = [30_000, 30_001, 30_002, 30_003] as const

export interface Change {
  readonly objects: readonly unknown[]
  readonly remove: readonly string[]
}

const anyName = fc.constantFrom(...NAMES)
const policy = fc.constantFrom('Cluster', 'Local')

const service = fc
  .record({
    name: anyName,
    type: fc.constantFrom('ClusterIP', 'NodePort', 'LoadBalancer', 'LoadBalancer'),
    families: fc.constantFrom<readonly ('IPv4' | 'IPv6')[]>(['IPv4'], ['IPv6'], ['IPv4', 'IPv6']),
    port: fc.constantFrom(...PORTS),
    protocol: fc.constantFrom('TCP', 'TCP', 'UDP'),
    second: fc.boolean(),
    externalIPs: fc.subarray(EXTERNALS, { maxLength: 2 }),
    ingress: fc.subarray(VIPS),
    ranges: fc.oneof(fc.constant([]), fc.subarray(RANGES)),
    internal: policy,
    external: policy,
    affinity: fc.constantFrom('None', 'None', 'ClientIP'),
  })
  .map(its => {
    const index = NAMES.indexOf(its.name)
    const one = { name: 'p', port: its.port, protocol: its.protocol, nodePort: NODE_PORTS[index] }
    const two = { name: 'q', port: 82, protocol: 'UDP' }
    const clusterIPs = its.families.map(family =>
      family === 'IPv4' ? `172.30.0.${10 + index}` : `fd00:172:30::${10 + index}`,
    )
    const balancer = its.type === 'LoadBalancer'
    return {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'ns1', name: its.name, creationTimestamp: `2026-01-0${1 + index}T00:00:00Z` },
      spec: {
        type: its.type,
        clusterIP: clusterIPs[0],
        clusterIPs,
        ipFamilies: its.families,
        ports: (its.second ? [one, two] : [one]).map(port =>
          its.type === 'ClusterIP' ? { ...port, nodePort: undefined } : port,
        ),
        externalIPs: its.externalIPs,
        internalTrafficPolicy: its.internal,
        externalTrafficPolicy: its.external,
        sessionAffinity: its.affinity,
        ...(balancer ? { loadBalancerSourceRanges: its.ranges } : {}),
      },
      status: { loadBalancer: { ingress: balancer ? its.ingress.map(address => ({ ip: address })) : [] } },
    }
  })

const endpoint = fc.record({
  number: fc.integer({ min: 1, max: 4 }),
  here: fc.boolean(),
  ready: fc.constantFrom(true, true, true, false),
  draining: fc.boolean(),
})

const slice = fc
  .record({
    name: fc.constantFrom('s1', 's2', 's3', 's4', 's5', 's6'),
    to: anyName,
    v6: fc.boolean(),
    endpoints: fc.array(endpoint, { maxLength: 4 }),
  })
  .map(({ name, to, v6, endpoints }) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns1',
      name: v6 ? `${name}-v6` : name,
      labels: { 'kubernetes.io/service-name': to },
    },
    addressType: v6 ? 'IPv6' : 'IPv4',
    ports: [
      { name: 'p', port: 8080, protocol: 'TCP' },
      { name: 'p', port: 8080, protocol: 'UDP' },
      { name: 'q', port: 5353, protocol: 'UDP' },
    ],
    endpoints: endpoints.map(({ number, here, ready, draining }) => ({
      addresses: [v6 ? `fd00:10::${here ? 0 : 1}:${number}` : `10.180.${here ? 0 : 1}.${number}`],
      nodeName: here ? 'test-node' : 'other-node',
      conditions: ready ? { ready } : { ready, serving: draining, terminating: draining },
    })),
  }))

export const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'test-node' },
  spec: { podCIDRs: ['10.180.0.0/24', 'fd00:10::/96'] },
  status: { addresses: ['192.168.0.2', '2001:db8::2'].map(address => ({ type: 'InternalIP', address })) },
}

export const SERVICE_CIDR = {
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name: 'kubernetes' },
  spec: { cidrs: ['172.30.0.0/16', 'fd00:172:30::/112'] },
}

export const changes: fc.Arbitrary<Change> = fc.oneof(
  { weight: 5, arbitrary: service.map((object): Change => ({ objects: [object], remove: [] })) },
  { weight: 6, arbitrary: slice.map((object): Change => ({ objects: [object], remove: [] })) },
  { weight: 1, arbitrary: anyName.map((name): Change => ({ objects: [], remove: [`Service ns1/${name}`] })) },
)

export const configs: fc.Arbitrary<PipelineConfig> = fc.record({
  clusterCIDR: fc.constantFrom('10.0.0.0/8,fd00:10::/64', '10.0.0.0/8', ''),
  masqueradeAll: fc.constantFrom(false, false, true),
  nodePortAddresses: fc.constantFrom<readonly string[]>(
    [],
    ['primary'],
    ['192.168.1.0/24'],
    ['0.0.0.0/0', '::/0'],
  ),
})

const DESTINATIONS = [
  ...[10, 11, 12, 13].flatMap(last => [`172.30.0.${last}`, `fd00:172:30::${last}`]),
  '172.30.0.99',
  // What is met seldom comes often.
  ...[...EXTERNALS, ...VIPS, ...VIPS, ...LOCAL_IPS, '127.0.0.1', '127.0.0.1'].flatMap(each => [
    each,
    each,
    each,
  ]),
  '::1',
  '10.180.1.1',
  '198.51.100.99',
]

const SOURCES = {
  outside: ['203.0.113.9', '192.0.2.1', '2001:db8:f::9', '2001:db8:e::9'],
  pod: ['10.180.9.9', '10.180.0.1', 'fd00:10::9:9', 'fd00:10::1'],
  node: ['192.168.0.2', '2001:db8::2'],
} as const

export const packets: fc.Arbitrary<TracePacket> = fc
  .record({
    destination: fc.constantFrom(...DESTINATIONS),
    from: fc.constantFrom('outside', 'pod', 'node'),
    source: fc.nat(1),
    own: fc.boolean(),
    port: fc.constantFrom(80, 80, 81, 81, ...NODE_PORTS, 82),
    protocol: fc.constantFrom(IPPROTO_TCP, IPPROTO_TCP, IPPROTO_UDP),
  })
  .map(({ destination, from, source, own, port, protocol }) => {
    const to = ip(destination)
    const loopback = destination === '127.0.0.1' || destination === '::1'
    const place = loopback ? 'node' : from
    const fits = SOURCES[place].map(ip).filter(its => its.length === to.length)
    const usual = fits[source % fits.length] ?? to
    // What a process sends to an address of the node comes from that address, unless it says otherwise.
    const isOwn = loopback || (place === 'node' && own && LOCAL_IPS.includes(destination))
    const packet = {
      protocol,
      source: isOwn ? to : usual,
      sourcePort: 40_000,
      destination: to,
      destinationPort: port,
    }
    if (place === 'node') return { ...packet, origin: 'process' }
    return { ...packet, origin: 'interface', interfaceName: place === 'pod' ? 'pod0' : 'ext0' }
  })
