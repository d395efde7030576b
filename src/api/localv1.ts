import { bool, int, list, type MessageTable, map, message, messageTable, text } from './encode.ts'

/* The objects of KPNG's localv1 (sigs.k8s.io/kpng/api/localv1), by KPNG's names. */

export interface IpSet {
  readonly V4?: readonly string[]
  readonly V6?: readonly string[]
}

/** ClusterIPs and ExternalIPs are always there, empty where there are none: back ends in Go look into them unasked. */
interface ServiceIps {
  readonly ClusterIPs: IpSet
  readonly ExternalIPs: IpSet
  readonly Headless?: true
  readonly LoadBalancerIPs?: IpSet
}

export interface PortMapping {
  readonly Name?: string
  /** 1 TCP, 2 UDP, 3 SCTP. */
  readonly Protocol: 1 | 2 | 3
  readonly Port: number
  readonly NodePort?: number
  readonly TargetPort?: number
  readonly TargetPortName?: string
}

export interface IpFilter {
  readonly TargetIPs: IpSet
  readonly SourceRanges: readonly string[]
}

export interface ServiceMessage {
  readonly Namespace: string
  readonly Name: string
  readonly Type: string
  readonly IPs: ServiceIps
  /** Send every protocol and port to the endpoint's address, unchanged. */
  readonly MapIP?: true
  readonly Ports?: readonly PortMapping[]
  readonly ExternalTrafficToLocal?: true
  readonly Labels?: Readonly<Record<string, string>>
  readonly Annotations?: Readonly<Record<string, string>>
  readonly IPFilters?: readonly IpFilter[]
  readonly ClientIP?: { readonly TimeoutSeconds: number }
  readonly InternalTrafficToLocal?: true
  readonly HealthCheckNodePort?: number
}

export interface PortName {
  readonly Name?: string
  readonly Port: number
}

export interface EndpointMessage {
  readonly Hostname?: string
  readonly IPs: IpSet
  /** Whether it is on the node of this state. */
  readonly Local?: true
  readonly PortOverrides?: readonly PortName[]
  /** Who may be sent here; absent where both may. */
  readonly Scopes?: { readonly Internal?: true; readonly External?: true }
}

const IP_SET = message(messageTable({ V4: [1, list(text)], V6: [2, list(text)] }))

const SERVICE_IPS = messageTable({
  ClusterIPs: [1, IP_SET],
  ExternalIPs: [2, IP_SET],
  Headless: [3, bool],
  LoadBalancerIPs: [4, IP_SET],
})

const PORT_MAPPING = messageTable({
  Name: [1, text],
  Protocol: [2, int],
  Port: [3, int],
  NodePort: [4, int],
  TargetPort: [5, int],
  TargetPortName: [6, text],
})

export const SERVICE: MessageTable = messageTable({
  Namespace: [1, text],
  Name: [2, text],
  Type: [3, text],
  IPs: [4, message(SERVICE_IPS)],
  MapIP: [5, bool],
  Ports: [6, list(message(PORT_MAPPING))],
  ExternalTrafficToLocal: [7, bool],
  Labels: [8, map],
  Annotations: [9, map],
  IPFilters: [10, list(message(messageTable({ TargetIPs: [1, IP_SET], SourceRanges: [2, list(text)] })))],
  ClientIP: [11, message(messageTable({ TimeoutSeconds: [1, int] }))],
  InternalTrafficToLocal: [12, bool],
  HealthCheckNodePort: [13, int],
})

export const ENDPOINT: MessageTable = messageTable({
  Hostname: [1, text],
  IPs: [2, IP_SET],
  Local: [3, bool],
  PortOverrides: [4, list(message(messageTable({ Name: [1, text], Port: [2, int] })))],
  Scopes: [5, message(messageTable({ Internal: [1, bool], External: [2, bool] }))],
})
