import { serviceOf as plainService, sliceOf } from './objects.ts'

/** A Service and its EndpointSlice, as far as the IPVS mode's tests go. */
export interface ServiceSpec {
  readonly ip: string
  readonly port?: number
  readonly protocol?: 'TCP' | 'UDP' | 'SCTP'
  /** Addresses; each at port 8080. */
  readonly endpoints?: readonly string[]
  readonly externalIPs?: readonly string[]
  readonly nodePort?: number
  /** Seconds of session affinity. */
  readonly affinityS?: number
  /** By annotation. */
  readonly scheduler?: string
  readonly externalLocal?: boolean
  /** By annotation. */
  readonly tcpDrain?: string
}

export function serviceOf(name: string, spec: ServiceSpec): readonly object[] {
  const { ip, port = 80, protocol = 'TCP', endpoints = [], externalIPs = [], nodePort, affinityS } = spec
  const annotations = {
    ...(spec.scheduler === undefined ? {} : { 'kprobe.io/ipvs-scheduler': spec.scheduler }),
    ...(spec.tcpDrain === undefined ? {} : { 'kprobe.io/tcp-drain': spec.tcpDrain }),
  }
  const affinity = {
    sessionAffinity: 'ClientIP',
    sessionAffinityConfig: { clientIP: { timeoutSeconds: affinityS } },
  }
  const service = {
    type: nodePort === undefined ? 'ClusterIP' : 'NodePort',
    externalIPs,
    ...(spec.externalLocal === true ? { externalTrafficPolicy: 'Local' } : {}),
    ports: [{ name: 'http', port, protocol, ...(nodePort === undefined ? {} : { nodePort }) }],
    ...(affinityS === undefined ? {} : affinity),
  }
  const conditions = { ready: true }
  return [
    plainService(name, ip, service, { metadata: { name, namespace: 'ns', annotations } }),
    sliceOf(
      name,
      endpoints.map(address => ({ addresses: [address], conditions })),
      { ports: [{ name: 'http', port: 8080, protocol }] },
    ),
  ]
}
