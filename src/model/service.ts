import type { Cidr, Family, Ip } from '../base/ip.ts'
import type { Refusal } from './fields.ts'

export type Protocol = 'TCP' | 'UDP' | 'SCTP'
export type TrafficPolicy = 'Cluster' | 'Local'

/** `namespace/name`. */
export type ServiceKey = string

export function namespaceOf(key: ServiceKey): string {
  return key.slice(0, key.indexOf('/'))
}

/** A Service as this project reads it: parsed once at the border, valid by construction inside. */
export interface Service {
  readonly key: ServiceKey
  readonly uid: string
  /** RFC 3339 in UTC, for the order in which Services own a contested address; empty when absent. */
  readonly creationTimestamp: string
  readonly type: 'ClusterIP' | 'NodePort' | 'LoadBalancer' | 'ExternalName'
  /** At most one ClusterIP per family; empty for headless Services. */
  readonly clusterIps: readonly Ip[]
  readonly ports: readonly ServicePortSpec[]
  /** Without duplicates. */
  readonly externalIps: readonly Ip[]
  /** Ingress addresses whose ipMode is VIP; without duplicates. */
  readonly loadBalancerIps: readonly Ip[]
  /** Merged, sorted; a family without an entry is unrestricted. */
  readonly sourceRanges: readonly Cidr[]
  /** The ranges as the object lists them. */
  readonly writtenRanges: readonly Cidr[]
  readonly internalTrafficPolicy: TrafficPolicy
  /** Local only where it counts: NodePort, LoadBalancer, and ClusterIP Services with external IPs. */
  readonly externalTrafficPolicy: TrafficPolicy
  /** Seconds; 0 when sessionAffinity is None. */
  readonly affinityTimeoutS: number
  /** 0 unless the type is LoadBalancer and externalTrafficPolicy Local. */
  readonly healthCheckNodePort: number
  /**
   * Annotation kprobe.io/tcp-drain: how long established TCP connections may continue to an endpoint that is gone;
   * milliseconds, 0 cuts them at once, undefined leaves them to the peers.
   */
  readonly tcpDrainMs: number | undefined
  /** Annotation kprobe.io/ipvs-scheduler: scheduler of the virtual servers in IPVS mode (`wrr`); undefined for the default. */
  readonly ipvsScheduler: string | undefined
  /** Annotations kprobe.io/balance and kprobe.io/weights; absent where the Service has neither. */
  readonly balance?: ServiceBalance | undefined
  /** Annotation kprobe.io/fail-over is `passive`. */
  readonly failsOver?: true | undefined
  /** Value of the label service.kubernetes.io/service-proxy-name, if it is there. */
  readonly proxyName: string | undefined
  /** Absent for Services with ClusterIPs, and for those that no named proxy serves. */
  readonly headless?: Headless | undefined
  /** Absent unless requested (ParseOptions). */
  readonly details?: ServiceDetails
  readonly refusals: readonly Refusal[]
}

/** The ways to divide connections among endpoints: docs/balance.md. */
export type BalancePolicy = 'random' | 'maglev' | 'maglev/5-tuple' | 'local-first'

export interface ServiceBalance {
  /** Undefined for the default of the configuration. */
  readonly policy: BalancePolicy | undefined
  /** Empty for equal weights. */
  readonly weights: readonly WeightRule[]
}

/** The weight of the endpoints in a zone or on a node, 0 to 100. */
export interface WeightRule {
  readonly kind: 'zone' | 'node'
  readonly name: string
  readonly weight: number
}

/** What a mode does with these settings; absent in ResolveOptions where nothing balances: annotations are then ignored. */
export interface Balancing {
  /** The policy of Services without the annotation. */
  readonly policy: BalancePolicy
  /** The title of a mode that has only its own way: it refuses the annotations. */
  readonly refusedBy?: string
  /** The title of a mode without fail-over, which refuses that annotation. */
  readonly failOverRefusedBy?: string
}

export interface BalanceSettings {
  readonly policy: BalancePolicy
  /** Empty for equal weights. */
  readonly weights: readonly WeightRule[]
}

/** How the connections of one port are divided. Absent for `random` without weights. */
export interface PortBalance extends BalanceSettings {
  /** Equal on every node of the cluster: a hash of the Service's UID, or of its name where it has none. */
  readonly seed: number
}

/** An endpoint that leaves the connection attempts of this node without an answer, while others of its port answer. */
export interface SilentEndpoint {
  readonly protocol: Protocol
  readonly ip: Ip
  readonly port: number
}

/** The silent endpoints of a Service. Those that have been silent longest come first. */
export interface SilentEndpoints {
  readonly endpoints: readonly SilentEndpoint[]
}

/**
 * A headless Service of a named proxy is reached at its external addresses: at its ports, or, where it lists none, at the
 * addresses as a whole, whatever protocol and port a packet is of.
 */
export type Headless = 'ports' | 'whole'

export interface ServicePortSpec {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
  /** 0 when there is none. */
  readonly nodePort: number
}

/** Fields of a Service that no data plane needs; kept only where back ends get them. */
export interface ServiceDetails {
  readonly labels: Readonly<Record<string, string>>
  readonly annotations: Readonly<Record<string, string>>
  /** Target ports by `name/PROTOCOL`, where they differ from the port: a number, or the name of a pod's port. */
  readonly targetPorts: Readonly<Record<string, number | string>>
}

/** An EndpointSlice as this project reads it. */
export interface EndpointSlice {
  /** `namespace/name` of the slice. */
  readonly key: string
  readonly service: ServiceKey
  readonly family: Family
  /** Wall clock: when the change that led to this version happened; 0 if the slice names none. */
  readonly triggerTimeMs: number
  readonly ports: readonly EndpointPort[]
  /** Sorted by address; those of one address in the order of the object. */
  readonly endpoints: readonly Endpoint[]
  /** Hostnames of endpoints, by address. Absent unless requested (ParseOptions), and without any. */
  readonly hostnames?: Readonly<Record<Ip, string>>
  /**
   * Names of the endpoints' pods in the order of `endpoints`, joined by commas: one text, because there are many of them.
   * Absent where no endpoint has one.
   */
  readonly targetNames?: string | undefined
  /** UIDs of the same pods. They distinguish a pod that moved between slices from one that inherited an address. */
  readonly targetUids?: string | undefined
  readonly refusals: readonly Refusal[]
}

export interface EndpointPort {
  readonly name: string
  readonly protocol: Protocol
  readonly port: number
}

export interface Endpoint {
  readonly ip: Ip
  readonly traits: EndpointTraits
}

/** The properties that many endpoints have in common. Equal ones of one pool (ValuePool) are one object. */
export interface EndpointTraits {
  readonly nodeName: string
  /** Absent where the slice names none. */
  readonly zone?: string
  /** One of eight objects, that all endpoints share. */
  readonly conditions: EndpointConditions
  /** NO_HINTS when there are none. */
  readonly hints: EndpointHints
}

export interface EndpointConditions {
  readonly ready: boolean
  readonly serving: boolean
  readonly terminating: boolean
}

/** The zones and nodes whose clients an endpoint is meant for: KEP-2433, KEP-3015. */
export interface EndpointHints {
  readonly forZones: readonly string[]
  readonly forNodes: readonly string[]
}

export const NO_HINTS: EndpointHints = { forZones: [], forNodes: [] }

/** The slices of one Service, sorted by key; never empty. */
export type SliceList = readonly EndpointSlice[]

/** The memory that a mode takes for each part of a Service, in bytes: growth of the peak, measured. */
export interface CostRates {
  readonly frontend: number
  /** An endpoint of a slice, beside those of its ports; 0 where they include it. */
  readonly sliceEndpoint: number
  /** An endpoint of a port. */
  readonly endpoint: number
  /** The most slots that so many endpoints of a port take with these settings; absent where each takes one. */
  readonly slotsMax?: (endpoints: number, settings: BalanceSettings) => number
  /** Each frontend has endpoints of its own, as virtual servers of IPVS have. */
  readonly perFrontend: boolean
}
