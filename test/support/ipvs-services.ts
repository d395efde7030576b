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
  const labels = { 'kubernetes.io/service-name': name }
  const annotations = {
    ...(spec.scheduler === undefined ? {} : { 'kprobe.io/ipvs-scheduler': spec.scheduler }),
    ...(spec.tcpDrain === undefined ? {} : { 'kprobe.io/tcp-drain': spec.tcpDrain }),
  }
  return [
    {
      kind: 'Service',
      apiVersion: 'v1',
      metadata: { name, namespace: 'ns', annotations },
      spec: {
        type: nodePort === undefined ? 'ClusterIP' : 'NodePort',
        clusterIP: ip,
        clusterIPs: [ip],
        ipFamilies: ['IPv4'],
        externalIPs,
        ...(spec.externalLocal === true ? { externalTrafficPolicy: 'Local' } : {}),
        ports: [{ name: 'http', port, protocol, ...(nodePort === undefined ? {} : { nodePort }) }],
        ...(affinityS === undefined
          ? {}
          : {
              sessionAffinity: 'ClientIP',
              sessionAffinityConfig: { clientIP: { timeoutSeconds: affinityS } },
            }),
      },
    },
    {
      kind: 'EndpointSlice',
      apiVersion: 'discovery.k8s.io/v1',
      metadata: { name: `${name}-1`, namespace: 'ns', labels },
      addressType: 'IPv4',
      ports: [{ name: 'http', port: 8080, protocol }],
      endpoints: endpoints.map(address => ({ addresses: [address], conditions: { ready: true } })),
    },
  ]
}
