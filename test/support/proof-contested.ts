/* Services and EndpointSlices that contend for addresses, ports and endpoints. */

export type Random = (bound: number) => number

const NODE_IP = '192.168.0.2'
const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'test-node', labels: { 'topology.kubernetes.io/zone': 'a' } },
  status: {
    addresses: [
      { type: 'InternalIP', address: NODE_IP },
      { type: 'InternalIP', address: 'fd00:192:168::2' },
    ],
  },
}
const CLUSTER_IP = (number: number) => `172.30.0.${number}`
const CLUSTER_IP6 = (number: number) => `fd00:172:30::${number}`
/** Several Services want the same addresses, one of which is the Node's and one a ClusterIP. */
const EXTERNAL = ['198.51.100.1', '198.51.100.2', '2001:db8::1', NODE_IP, CLUSTER_IP(3)]
const PORTS = [80, 443, 30_080]
const SERVICES = 8

function pick<T>(random: Random, list: readonly T[]): T {
  const item = list[random(list.length)]
  if (item === undefined) throw new Error('an empty list')
  return item
}

function some<T>(random: Random, list: readonly T[]): readonly T[] {
  return list.filter(() => random(3) === 0)
}

const protocolOf = (number: number) => ['TCP', 'UDP', 'SCTP', 'TCP'][number % 4]

function serviceOf(random: Random, number: number) {
  const type = pick(random, ['ClusterIP', 'NodePort', 'LoadBalancer'])
  const protocol = protocolOf(number)
  const hasNodePort = type !== 'ClusterIP'
  const isDual = random(3) === 0
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: 'ns',
      name: `s${number}`,
      uid: `uid-${number}`,
      creationTimestamp: `2026-01-0${1 + random(3)}T00:00:00Z`,
    },
    spec: {
      type,
      clusterIP: CLUSTER_IP(number),
      clusterIPs: isDual ? [CLUSTER_IP(number), CLUSTER_IP6(number)] : [CLUSTER_IP(number)],
      ipFamilies: isDual ? ['IPv4', 'IPv6'] : ['IPv4'],
      trafficDistribution: random(2) === 0 ? 'PreferClose' : undefined,
      externalIPs: some(random, EXTERNAL),
      externalTrafficPolicy: hasNodePort ? pick(random, ['Cluster', 'Local']) : undefined,
      internalTrafficPolicy: pick(random, ['Cluster', 'Cluster', 'Local']),
      sessionAffinity: pick(random, ['None', 'None', 'ClientIP']),
      loadBalancerSourceRanges: type === 'LoadBalancer' ? some(random, ['10.0.0.0/8', '203.0.113.0/24']) : [],
      ports: [
        { name: 'a', port: pick(random, PORTS), protocol, nodePort: hasNodePort ? 30_080 + random(3) : 0 },
        { name: 'b', port: 9_000, protocol: 'TCP', nodePort: hasNodePort ? 31_000 + number : 0 },
      ],
    },
    status: {
      loadBalancer: {
        ingress: type === 'LoadBalancer' ? some(random, EXTERNAL).map(each => ({ ip: each })) : [],
      },
    },
  }
}

function sliceOf(random: Random, number: number) {
  // Few addresses, so that Services share endpoints.
  const [isV6, hasHints] = [random(3) === 0, random(2) === 0]
  const prefix = isV6 ? 'fd00:180::' : '10.180.0.'
  const addresses = [...new Set(Array.from({ length: random(4) }, () => `${prefix}${random(6)}`))]
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns',
      name: `s${number}-${isV6 ? 6 : 4}`,
      labels: { 'kubernetes.io/service-name': `s${number}` },
    },
    addressType: isV6 ? 'IPv6' : 'IPv4',
    endpoints: addresses.map(address => ({
      addresses: [address],
      // A pod is on one node, whatever slice says so.
      nodeName: /[03]$/.test(address) ? 'test-node' : 'other-node',
      hints: hasHints ? { forZones: [{ name: pick(random, ['a', 'b']) }] } : undefined,
    })),
    ports: [
      { name: 'a', port: 8_080, protocol: protocolOf(number) },
      { name: 'b', port: 8_080, protocol: 'TCP' },
    ],
  }
}

/** A Service or an EndpointSlice that comes, changes or goes. */
export function stepOf(random: Random) {
  const number = 1 + random(SERVICES)
  switch (random(6)) {
    case 0:
      return { objects: [], remove: [`Service ns/s${number}`] }
    case 1:
    case 2:
      return { objects: [serviceOf(random, number)] }
    default:
      return { objects: [sliceOf(random, number)] }
  }
}

export function firstObjects(random: Random): readonly object[] {
  const numbers = Array.from({ length: SERVICES }, (_, at) => at + 1)
  return [NODE, ...numbers.flatMap(number => [serviceOf(random, number), sliceOf(random, number)])]
}
