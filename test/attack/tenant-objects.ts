import type { Random } from '../support/apiserver/random.ts'
import { NODE_ADDRESSES } from '../support/lab/address.ts'
import { NODE_NAME } from '../support/pipeline.ts'

/** `a` was there first and owns what it claims; `b` came later, and wants all of it. */
export type Tenant = 'a' | 'b'

export const NODE: object = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: NODE_NAME },
  spec: { podCIDRs: ['10.180.0.0/24'] },
  status: { addresses: NODE_ADDRESSES.map(address => ({ type: 'InternalIP', address })) },
}
export const SERVICE_CIDR: object = {
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name: 'kubernetes' },
  spec: { cidrs: ['172.30.0.0/16'] },
}

const BORN: Readonly<Record<Tenant, string>> = { a: '2020-01-01T00:00:00Z', b: '2025-01-01T00:00:00Z' }
const SERVICES = 3
/** What both want; the last ones are addresses of the node. */
const EXTERNAL = ['198.51.100.1', '198.51.100.2', '192.168.0.2', '192.168.99.22'] as const
const PORTS = [80, 81, 30_080] as const
const NODE_PORTS = [30_080, 30_081, 30_100] as const
const HEALTH_PORTS = [30_080, 30_100, 30_101] as const
const RANGES = ['203.0.113.0/24', '10.0.0.0/8', '198.18.0.0/15', '0.0.0.0/0', 'rubbish'] as const

/** A pod of the first tenant on this node, and a port of it. */
export const LOCAL_POD = '10.180.0.1'
export const POD_PORT = 80

export interface Change {
  readonly objects: readonly object[]
  /** `Service a/s1`. */
  readonly remove: readonly string[]
}

/** One thing that a tenant does to its objects. */
export function changeBy(tenant: Tenant, random: Random): Change {
  const index = random.int(0, SERVICES - 1)
  const dice = random.int(0, 99)
  if (dice < 12) return { objects: [], remove: [`Service ${tenant}/s${index}`] }
  if (dice < 20) return { objects: [], remove: [`EndpointSlice ${tenant}/s${index}-1`] }
  if (dice < 50) return { objects: [sliceOf(tenant, index, random)], remove: [] }
  const objects = [serviceOf(tenant, index, random)]
  return { objects: random.chance(0.6) ? [...objects, sliceOf(tenant, index, random)] : objects, remove: [] }
}

function some<T>(list: readonly T[], random: Random, max = 2): readonly T[] {
  return Array.from({ length: random.int(0, max) }, () => random.pick(list))
}

function clusterIpOf(tenant: Tenant, index: number): string {
  return `172.30.0.${(tenant === 'a' ? 1 : 11) + index}`
}

/** Addresses that are another's by right: ClusterIPs. The first tenant asks for none. */
function stolen(tenant: Tenant, random: Random): readonly string[] {
  return tenant === 'b' && random.chance(0.4) ? [clusterIpOf('a', random.int(0, SERVICES - 1))] : []
}

function serviceOf(tenant: Tenant, index: number, random: Random): object {
  const type = random.pick(['ClusterIP', 'NodePort', 'LoadBalancer', 'LoadBalancer'] as const)
  const isLocal = random.chance(0.5)
  const [wanted] = random.chance(0.2) ? stolen(tenant, random) : []
  const clusterIP = wanted ?? clusterIpOf(tenant, index)
  const port = (at: number) => ({
    name: `p${at}`,
    port: random.pick(PORTS),
    protocol: random.pick(['TCP', 'TCP', 'UDP'] as const),
    ...(type === 'ClusterIP' ? {} : { nodePort: random.pick(NODE_PORTS) }),
  })
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: tenant,
      name: `s${index}`,
      // The second tenant's sort first wherever age does not count.
      uid: `${tenant === 'a' ? 'z' : '0'}${index}`,
      creationTimestamp: BORN[tenant],
    },
    spec: {
      type,
      clusterIP,
      clusterIPs: [clusterIP],
      ipFamilies: ['IPv4'],
      ports: [0, 1].slice(0, random.int(1, 2)).map(port),
      externalIPs: [
        ...some(EXTERNAL, random),
        ...stolen(tenant, random),
        ...(tenant === 'b' && random.chance(0.3) ? [LOCAL_POD] : []),
      ],
      loadBalancerSourceRanges: random.chance(0.5) ? some(RANGES, random) : [],
      sessionAffinity: random.chance(0.3) ? 'ClientIP' : 'None',
      externalTrafficPolicy: isLocal ? 'Local' : 'Cluster',
      internalTrafficPolicy: random.chance(0.2) ? 'Local' : 'Cluster',
      ...(type === 'LoadBalancer' && isLocal ? { healthCheckNodePort: random.pick(HEALTH_PORTS) } : {}),
    },
    status:
      type === 'LoadBalancer'
        ? {
            loadBalancer: {
              ingress: [...some(EXTERNAL, random), ...stolen(tenant, random)].map(ip => ({ ip })),
            },
          }
        : {},
  }
}

/** The second tenant names pods of the first as endpoints, too, and ClusterIPs. */
function sliceOf(tenant: Tenant, index: number, random: Random): object {
  const pods = [`10.180.0.${tenant === 'a' ? 1 : 5}`, `10.180.${tenant === 'a' ? 1 : 5}.${index + 1}`]
  const others = tenant === 'b' ? ['10.180.0.1', '10.180.1.1', '172.30.0.1', '192.168.0.2', '127.0.0.1'] : []
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: tenant,
      name: `s${index}-1`,
      labels: { 'kubernetes.io/service-name': `s${index}` },
    },
    addressType: 'IPv4',
    ports: [0, 1].map(at => ({
      name: `p${at}`,
      port: 8_080 + at,
      protocol: random.pick(['TCP', 'UDP'] as const),
    })),
    endpoints: some([...pods, ...others], random, 3).map(address => ({
      addresses: [address],
      conditions: { ready: random.chance(0.8), serving: true, terminating: random.chance(0.2) },
      nodeName: address.startsWith('10.180.0.') ? NODE_NAME : 'other-node',
    })),
  }
}
