import type { Flow } from '../support/lab/lab.ts'
import type { KubeObject } from '../support/reference/api.ts'
import { NODE_ADDRESS, VIP } from './hand-over-clients.ts'
import { ENDPOINTS, type HandOver } from './hand-over-rig.ts'

/* A Service of the proxy "red", beside the one of HandOver, which belongs to the proxies without a name. */

export const RED_FLAG = '--service-proxy-name=red'
export const RED_VIP = '172.30.0.12'
export const RED_POD = '10.0.1.4'
const NODE_PORT = 30_090
const OF_RED = { 'service.kubernetes.io/service-proxy-name': 'red' }

export const RED: readonly KubeObject[] = [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name: 'red', labels: OF_RED },
    spec: {
      type: 'NodePort',
      clusterIP: RED_VIP,
      ports: [{ name: 'http', port: 80, nodePort: NODE_PORT, protocol: 'TCP' }],
    },
  },
  redSlice(RED_POD),
]

export function redSlice(address: string): KubeObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns',
      name: 'red-4',
      labels: { 'kubernetes.io/service-name': 'red', ...OF_RED },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: [{ addresses: [address], conditions: { ready: true } }],
  }
}

/** What becomes of a packet: its verdict, and the endpoints that it reaches. */
type Served = readonly [verdict: string, endpoints: readonly string[]]

/** What becomes of packets to both Services that are served by the pod of red, and by `endpoints` of the other. */
export function bothServed(red = RED_POD, endpoints: readonly string[] = ENDPOINTS): readonly Served[] {
  const toRed: Served = ['DNAT', [`${red}:8080`]]
  return [toRed, toRed, toRed, ['DNAT', endpoints]]
}

/** Sends packets to both Services. */
export async function packetsToBoth({ lab }: HandOver): Promise<readonly Served[]> {
  const outside = { from: 'outside', source: '203.0.113.5', protocol: 'TCP' } as const
  const own = { from: 'node', source: NODE_ADDRESS, protocol: 'TCP' } as const
  const flows: readonly Flow[] = [
    { ...outside, destination: RED_VIP, port: 80 },
    { ...outside, destination: NODE_ADDRESS, port: NODE_PORT },
    { ...own, destination: RED_VIP, port: 80 },
    { ...outside, destination: VIP, port: 80, tries: 60 },
  ]
  const outcomes = await lab.trace(flows)
  return outcomes.map(({ verdict, endpoints }) => [verdict, [...endpoints.keys()].sort()])
}
