import { NODE_NAME } from './pipeline.ts'

/** Where the first endpoints of these Services are. */
export const PORT = 8080

/** `NAMESPACE/NAME`; a name alone is in the namespace `ns`. */
function metadataOf(text: string): { readonly namespace: string; readonly name: string } {
  const [namespace = '', name] = text.split('/')
  return name === undefined ? { namespace: 'ns', name: text } : { namespace, name }
}

/** A Service with one port 80, besides what is given. */
export function serviceOf(name: string, clusterIP: string, spec: object = {}, more: object = {}): object {
  return {
    kind: 'Service',
    apiVersion: 'v1',
    metadata: metadataOf(name),
    spec: {
      clusterIP,
      clusterIPs: [clusterIP],
      ipFamilies: ['IPv4'],
      ports: [{ name: 'http', port: 80, protocol: 'TCP' }],
      ...spec,
    },
    ...more,
  }
}

/** A load balancer with these addresses. */
export function balanced(spec: object, ...ips: readonly string[]): readonly [object, object] {
  const ingress = ips.map(ip => ({ ip }))
  return [{ type: 'LoadBalancer', ...spec }, { status: { loadBalancer: { ingress } } }]
}

export interface EndpointWords {
  readonly ready?: boolean
  readonly serving?: boolean
  readonly terminating?: boolean
  readonly nodeName?: string
  readonly pod?: string
}

/** An endpoint, ready on this node unless told otherwise. */
export function endpoint(address: string, words: EndpointWords = {}): object {
  const { ready = true, serving = ready, terminating = false, nodeName = NODE_NAME, pod } = words
  return {
    addresses: [address],
    conditions: { ready, serving, terminating },
    nodeName,
    ...(pod === undefined ? {} : { targetRef: { kind: 'Pod', namespace: 'ns', name: pod, uid: pod } }),
  }
}

/** A slice of a Service; endpoints may be addresses. */
export function sliceOf(
  service: string,
  endpoints: readonly (object | string)[],
  change: { readonly name?: string; readonly [field: string]: unknown } = {},
): object {
  const { namespace, name: labeled } = metadataOf(service)
  const { name = `${labeled}-1`, ...fields } = change
  return {
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    metadata: { namespace, name, labels: { 'kubernetes.io/service-name': labeled } },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: PORT, protocol: 'TCP' }],
    endpoints: endpoints.map(each => (typeof each === 'string' ? endpoint(each) : each)),
    ...fields,
  }
}

/** A Service of both families, with one endpoint in each. */
export function dual(number: number): readonly object[] {
  const [name, ips] = [`dual${number}`, [`10.96.1.${number}`, `fd00:96::${number}`]]
  return [
    serviceOf(name, ips[0] ?? '', { clusterIPs: ips, ipFamilies: ['IPv4', 'IPv6'] }),
    sliceOf(name, [`10.1.0.${number}`]),
    sliceOf(name, [`fd00:1::${number}`], { name: `${name}-6`, addressType: 'IPv6' }),
  ]
}
