import { endpoint, serviceOf, sliceOf } from '../../support/objects.ts'

/**
 * Upstream's tests of Services (Kubernetes 1.36, test/e2e/network/service.go) as one node sees them: the objects that a test
 * creates, EndpointSlices as the controllers make them, and for each request of the test a row of a packet table
 * (README.md of the folder above).
 *
 * Where a test asks for the same from two nodes, the same Service is on the node with the endpoint in one step and on
 * another node in the next. A client on another node comes from `outside`, from that node's address. Where a test says only
 * that a request fails, the row says `nowhere`. What a test asks by name it asks here by address: the cluster's DNS is not
 * the proxy's.
 */
export interface UpstreamTest {
  /** Without `[sig-network] Services `. */
  readonly title: string
  /** None where `unplayed` says why. */
  readonly steps: readonly UpstreamStep[]
  readonly unplayed?: string
  /** Why userspace mode does not promise it. */
  readonly notInUserspace?: string
  /** The first clients whose endpoint is forgotten between the first step and the last: see `forgotten`. */
  readonly forgets?: boolean
}

export interface UpstreamStep {
  readonly title: string
  readonly objects?: readonly object[]
  readonly remove?: readonly string[]
  readonly packets?: string
  /** The answers of a health check node port at the primary address of the node. */
  readonly health?: readonly [port: number, answer: 200 | 503 | 'refused']
  /** A port of the node's own, of a pod with `hostNetwork`, which a pod reaches by way of the Service. */
  readonly hostPort?: number
  /** Seconds that pass before the packets. */
  readonly afterS?: number
}

export const NODE = '192.168.0.2'
export const OTHER_NODE = '192.168.0.3'
export const IP = '172.30.0.41'
export const IP_2 = '172.30.0.42'
export const IP_3 = '172.30.0.43'
export const NODE_PORT = 30001
export const HEALTH_PORT = 32000

export const ELSEWHERE = { nodeName: 'other-node' }
export const HERE = '10.180.0.1'
export const THERE = endpoint('10.180.1.1', ELSEWHERE)
/** Three pods of a Service, of two nodes. */
export const PODS = [HERE, '10.180.0.2', THERE]
export const REACHED = '10.180.0.1:8080 10.180.0.2:8080 10.180.1.1:8080'
export const TWO_PODS = [HERE, THERE]
export const BOTH = '10.180.0.1:8080 10.180.1.1:8080'

export const only = (name: string, its: object = {}) => ({ name, port: 80, protocol: 'TCP', ...its })
export const AT_NODE_PORT = { type: 'NodePort', ports: [only('http', { nodePort: NODE_PORT })] }
export const CLIENT_IP = { sessionAffinity: 'ClientIP' }
export const external = (name: string) => ({
  kind: 'Service',
  apiVersion: 'v1',
  metadata: { namespace: 'ns', name },
  spec: { type: 'ExternalName', externalName: 'externalsvc.ns.svc.cluster.local' },
})
export const web = (spec: object = {}, more: object = {}) => serviceOf('web', IP, spec, more)
export const pods = (endpoints: readonly (object | string)[], more: Readonly<Record<string, unknown>> = {}) =>
  sliceOf('web', endpoints, more)
export const SLICE = 'EndpointSlice ns/web-1'
export const PROXY_NAME = {
  metadata: {
    namespace: 'ns',
    name: 'web',
    labels: { 'service.kubernetes.io/service-proxy-name': 'foo-bar' },
  },
}
/** A pod that shuts down: ready no more, with or without publishNotReadyAddresses, and serving or not. */
export const terminating = (words: object) => ({ terminating: true, ready: false, ...words })

export const KEEPS_CLIENT = 'endpoints see the node in place of the client'

/** What verifyServeHostnameServiceUp asks: a process of a node, and a pod. */
export function up(ip: string, endpoints: string): string {
  return `
    node TCP ${ip}:80 -> ${endpoints} masqueraded
    pod TCP ${ip}:80 -> ${endpoints} kept`
}

/** What verifyServeHostnameServiceDown asks. */
export function down(ip: string): string {
  return `
    node TCP ${ip}:80 -> nowhere`
}

/** What CheckServiceReachability asks of a NodePort: a pod, at the ClusterIP and at the nodes. */
export function nodePortOf(endpoints: string, protocol = 'TCP'): string {
  return `
    pod ${protocol} ${IP}:80 -> ${endpoints} kept
    pod ${protocol} ${NODE}:${NODE_PORT} -> ${endpoints} masqueraded
    outside ${OTHER_NODE} ${protocol} ${NODE}:${NODE_PORT} -> ${endpoints} masqueraded`
}

export function bothProtocols(port: number): readonly object[] {
  return ['TCP', 'UDP'].map(protocol => ({ name: `${protocol.toLowerCase()}-port`, port, protocol }))
}
