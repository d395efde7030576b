/** In both families: kube-proxy takes a cluster for large above 1,000 endpoints of one family. */
const ENDPOINTS = 1_002
/** Of one EndpointSlice, as the API server allows. */
const SLICE_MAX = 1_000

const FAMILIES = [
  { type: 'IPv4', addressOf: (n: number) => `10.180.${n >> 8}.${n & 255}` },
  { type: 'IPv6', addressOf: (n: number) => `fd00:10::${(n + 1).toString(16)}` },
] as const

/** A Service with more endpoints than a cluster has that is not large, and its slices. */
export function largeService(): readonly object[] {
  const name = 'large'
  const clusterIPs = ['172.30.0.99', 'fd00:172:30::99']
  const port = { name: 'p80', port: 80, protocol: 'TCP' }
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns1', name },
    spec: {
      clusterIP: clusterIPs[0],
      clusterIPs,
      ipFamilies: FAMILIES.map(({ type }) => type),
      ports: [port],
    },
  }
  return [...FAMILIES.flatMap(family => slicesOf(family, name, port)), service]
}

function slicesOf({ type, addressOf }: (typeof FAMILIES)[number], service: string, port: object): object[] {
  const addresses = Array.from({ length: ENDPOINTS }, (_, index) => addressOf(index))
  return [addresses.slice(0, SLICE_MAX), addresses.slice(SLICE_MAX)].map((some, index) => ({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns1',
      name: `${service}-${type.toLowerCase()}-${index}`,
      labels: { 'kubernetes.io/service-name': service },
    },
    addressType: type,
    ports: [port],
    endpoints: some.map(address => ({ addresses: [address], conditions: { ready: true } })),
  }))
}
