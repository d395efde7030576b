import type { PersistentMap } from '../base/collections.ts'
import { type Cidr, type Family, familyOf, type Ip } from '../base/ip.ts'
import type { Refusal } from './fields.ts'
import type { EndpointSlice, PortBalance, Protocol, Service, ServiceKey, SliceList } from './service.ts'

/** An endpoint to which a frontend may send a connection. */
export interface Backend {
  readonly ip: Ip
  readonly port: number
  /** The endpoint is on this node: its connections to itself need masquerading (hairpin). */
  readonly local: boolean
  /** How many connections it gets beside the others of its list: a whole number; absent for 1. */
  readonly weight?: number
}

/** Decides about the first packet of a connection to a frontend. All policy is in here. */
export type Route =
  /** Answer with an ICMP port unreachable: there is no usable endpoint anywhere. */
  | { readonly kind: 'reject' }
  /** Say nothing: a Local policy and no usable endpoint on this node. */
  | { readonly kind: 'drop' }
  /** ClusterIP: balance over one list; clients outside the cluster are masqueraded (off-cluster by the detector). */
  | { readonly kind: 'internal'; readonly over: 'cluster' | 'local' }
  /** External address, policy Cluster: masquerade everyone and balance over the cluster list. */
  | { readonly kind: 'external-cluster' }
  /**
   * External address, policy Local: pods go to the cluster list as they are, processes of this node go to the cluster
   * list masqueraded, everyone else goes to the local list with its source address kept, or is dropped if it is empty.
   */
  | { readonly kind: 'external-local' }

export type FrontendKind = 'ClusterIP' | 'NodePort' | 'ExternalIP' | 'LoadBalancerIP'

/** One protocol, address and port at which traffic is caught. */
export interface Frontend {
  readonly kind: FrontendKind
  /** Undefined for NodePort: any address of FrontendTable.nodePorts. */
  readonly ip: Ip | undefined
  readonly port: number
  readonly route: Route
  /** Clients that may connect, merged and sorted; undefined lets everyone in. Never empty. */
  readonly sourceRanges: readonly Cidr[] | undefined
  /**
   * The clients of `sourceRanges` as the object lists them, unmerged, followed by the source addresses of
   * this node: one rule each, where rules must equal kube-proxy's. Absent without ranges.
   */
  readonly writtenRanges?: readonly Cidr[]
}

/** One port of one Service in one family: the unit that planes render. */
export interface PortFrontends {
  /** `namespace/name:port/PROTOCOL/FAMILY`: unique, and stable over restarts. */
  readonly key: string
  /** `namespace/name:port`, or `namespace/name` when the port has no name: how kube-proxy prints it. */
  readonly displayName: string
  readonly service: ServiceKey
  readonly family: Family
  readonly protocol: Protocol
  /** Seconds; 0 without session affinity. Shared by all frontends of the port. */
  readonly affinityTimeoutS: number
  /** IPVS scheduler of the Service; undefined for the default one. */
  readonly scheduler: string | undefined
  /** Absent where connections are divided equally, at random. */
  readonly balance?: PortBalance | undefined
  /** Maximum time that connections continue to an endpoint that is gone (kprobe.io/tcp-drain), milliseconds; TCP only. */
  readonly tcpDrainMs?: number | undefined
  readonly frontends: readonly Frontend[]
  /** Sorted by address and port, without duplicates. A list that no route uses is empty, whatever endpoints the port has. */
  readonly cluster: readonly Backend[]
  readonly local: readonly Backend[]
}

/** Counts the endpoints of both lists, each once: a list that no route uses is empty. */
export function endpointCount({ cluster, local }: Pick<PortFrontends, 'cluster' | 'local'>): number {
  if (local.length === 0 || cluster.length === 0) return cluster.length + local.length
  return new Set([...cluster, ...local].map(({ ip, port }) => `${ip} ${port}`)).size
}

/** Everything that one Service needs on this node, in both families. */
export interface ServiceFrontends {
  readonly service: ServiceKey
  /** The ClusterIPs it owns: an address that two Services have by mistake is listed only for the older one. */
  readonly clusterIps: readonly Ip[]
  readonly ports: readonly PortFrontends[]
  /** Refusals of the Service, of its slices, and those found while resolving (such as a contested address). */
  readonly refusals: readonly Refusal[]
  /** Absent unless the Service has a health check node port. */
  readonly healthCheck?: HealthCheck | undefined
  /**
   * One a family, of a headless Service that lists no ports; absent otherwise. The planes of `kprobe run` translate ports
   * and have no place for them: back ends of other kinds do.
   */
  readonly wholes?: readonly WholeAddresses[] | undefined
}

/**
 * External addresses of a Service as a whole: packets of every protocol, to every port, keep their port. A port of the
 * same address that another Service claims is more specific and belongs to that Service.
 */
export interface WholeAddresses {
  readonly family: Family
  readonly ips: readonly Ip[]
  /** reject, external-cluster or external-local. */
  readonly route: Route
  readonly affinityTimeoutS: number
  /** Sorted by address, without duplicates; their port is 0. A list that the route does not use is empty. */
  readonly cluster: readonly Backend[]
  readonly local: readonly Backend[]
}

/** Addresses at which NodePorts answer. */
export type NodePortAddresses =
  /** Every address of this node; loopback only for modes that need it. */
  { readonly kind: 'all' } | { readonly kind: 'only'; readonly ips: readonly Ip[] }

/** The wanted state of this node's kernel, as values; the input of every plane. Immutable. */
export interface FrontendTable {
  /** The number of the Snapshot that it was computed from. */
  readonly number: number
  readonly services: PersistentMap<ServiceFrontends>
  /** Addresses of local backends, with the number of port lists that hold each: who may need hairpin masquerading. */
  readonly localBackends: PersistentMap<number>
  readonly nodePorts: Readonly<Record<Family, NodePortAddresses>>
  /** Families whose node ports a forwarder of this process also serves at 127.0.0.1 or ::1 (KEP-6032); absent for none. */
  readonly forwardedAtLocalhost?: readonly Family[] | undefined
  /** Empty for a named proxy: an unknown address there may belong to another proxy. */
  readonly serviceCidrs: readonly Cidr[]
  /** Addresses that interfaces of this machine have, sorted; empty when no mode needs them. */
  readonly localIps: readonly Ip[]
  readonly node: { readonly ips: readonly Ip[]; readonly podCidrs: readonly Cidr[] }
}

/** The answer to load balancers at the health check node port of a Service of policy Local. */
export interface HealthCheck {
  readonly port: number
  /**
   * Distinct addresses of ready endpoints on this node, over all ports. A family is in it when the Service has a ClusterIP
   * of that family. Endpoints that terminate do not count, even where they still get traffic: that is how a load balancer
   * learns to look elsewhere (KEP-1669).
   */
  readonly local: Readonly<Partial<Record<Family, number>>>
}

/** Gives the answer of a Service that has such a port. */
export function healthCheckOf(service: Service, slices: SliceList, nodeName: string): HealthCheck {
  const { healthCheckNodePort: port, clusterIps } = service
  const local: Partial<Record<Family, number>> = {}
  for (const ip of clusterIps) local[familyOf(ip)] = countLocal(slices, familyOf(ip), nodeName)
  return { port, local }
}

function countLocal(slices: SliceList, family: Family, nodeName: string): number {
  const ips = new Set<Ip>()
  for (const slice of slices)
    if (slice.family === family && slice.ports.length > 0) addLocal(ips, slice, nodeName)
  return ips.size
}

function addLocal(ips: Set<Ip>, { endpoints }: EndpointSlice, nodeName: string): void {
  for (const { ip, traits } of endpoints)
    if (traits.conditions.ready && traits.nodeName === nodeName) ips.add(ip)
}
