import type { Service, ServicePortSpec, SliceList } from './service.ts'

/** The cost of a Service. It follows from counts alone, so that it is known before anything of the Service is resolved. */
export interface ServiceCost {
  readonly ports: number
  /** ClusterIPs, externalIPs and load-balancer addresses. */
  readonly addresses: number
  /** Endpoints of each port, summed over the ports. */
  readonly endpoints: number
  /** Memory that it takes at the peak of a first sync: model, rendered state, messages, the kernel's copy. */
  readonly bytes: number
}

/** The memory that a mode takes for each part of a Service, in bytes: growth of the peak, measured. */
export interface CostRates {
  readonly frontend: number
  /** An endpoint of a slice, beside those of its ports; 0 where they include it. */
  readonly sliceEndpoint: number
  /** An endpoint of a port. */
  readonly endpoint: number
  /** Each frontend has endpoints of its own, as virtual servers of IPVS have. */
  readonly perFrontend: boolean
}

/** Taken in every mode. */
const SERVICE_BYTES = 1_536
const RANGE_BYTES = 64
/** A client's endpoint is looked up in a second map. */
const AFFINITY_FACTOR = 1.75

export function costOf(service: Service, slices: SliceList, rates: CostRates): ServiceCost {
  const { ports, clusterIps, externalIps, loadBalancerIps, sourceRanges } = service
  const addresses = clusterIps.length + externalIps.length + loadBalancerIps.length
  // A headless Service without ports is reached at its addresses as a whole.
  const frontends = Math.max(1, ports.length) * addresses + count(ports, hasNodePort) * clusterIps.length
  const endpoints = endpointsOf(ports, slices)
  const lists =
    (rates.perFrontend ? Math.max(1, addresses) : 1) * (service.affinityTimeoutS > 0 ? AFFINITY_FACTOR : 1)
  const ranges = ports.length * loadBalancerIps.length * sourceRanges.length
  const once = rates.sliceEndpoint * sum(slices, slice => slice.endpoints.length)
  const bytes =
    SERVICE_BYTES +
    rates.frontend * frontends +
    once +
    rates.endpoint * endpoints * lists +
    RANGE_BYTES * ranges
  return { ports: ports.length, addresses, endpoints, bytes: Math.ceil(bytes) }
}

function hasNodePort({ nodePort }: ServicePortSpec): boolean {
  return nodePort !== 0
}

/** Linear in what the objects say, however often a port and a slice meet. */
function endpointsOf(ports: readonly ServicePortSpec[], slices: SliceList): number {
  const [first] = ports
  if (first === undefined) return sum(slices, ({ endpoints }) => endpoints.length)
  if (ports.length === 1)
    return sum(slices, slice => slice.endpoints.length * count(slice.ports, port => isSamePort(port, first)))
  const byPort = new Map<string, number>()
  for (const { ports: its, endpoints } of slices)
    for (const port of its) byPort.set(keyOf(port), (byPort.get(keyOf(port)) ?? 0) + endpoints.length)
  return sum(ports, port => byPort.get(keyOf(port)) ?? 0)
}

type PortName = Pick<ServicePortSpec, 'name' | 'protocol'>

function isSamePort(a: PortName, b: PortName): boolean {
  return a.name === b.name && a.protocol === b.protocol
}

function keyOf({ name, protocol }: PortName): string {
  return `${name}/${protocol}`
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  let total = 0
  for (let index = 0; index < list.length; index++) {
    const item = list[index]
    if (item !== undefined) total += of(item)
  }
  return total
}

function count<T>(list: readonly T[], is: (item: T) => boolean): number {
  return sum(list, item => (is(item) ? 1 : 0))
}
