import type { Cidr } from '../base/cidr.ts'
import type { Ip } from '../base/ip.ts'
import type { FeatureGates } from './feature-gates.ts'

/** The name of a mode in modes/registry.ts. */
export type ProxyMode = string

/** The whole configuration, validated and frozen: nothing else in the program reads flags or files. */
export interface Config {
  readonly proxyMode: ProxyMode
  readonly backend: 'netlink' | 'dry-run'
  readonly source: SourceConfig
  readonly once: boolean
  /** Lower-cased name of this node. */
  readonly nodeName: string
  readonly serviceProxyName: string | undefined
  readonly detectLocal: DetectLocal
  readonly masqueradeAll: boolean
  /** 0 to 31. */
  readonly masqueradeBit: number
  readonly nodePortAddresses: NodePortSelection
  /** Minimum time between two commits, milliseconds. */
  readonly minSyncPeriodMs: number
  /** Maximum interval between full resyncs, milliseconds. */
  readonly syncPeriodMs: number
  readonly logFormat: 'text' | 'json'
  readonly verbosity: number
  /** When not empty, externalIPs outside these are refused. */
  readonly allowedExternalCidrs: readonly Cidr[]
  /** When not empty, load-balancer addresses outside these are refused. */
  readonly allowedLoadBalancerCidrs: readonly Cidr[]
  readonly client: ClientConfig
  /** When specific, it overrides the Node's primary address; it binds nothing. */
  readonly bindAddress: Ip | undefined
  /** Address of /healthz and /livez; undefined for none. */
  readonly healthzBindAddress: BindAddress | undefined
  /** Address of /metrics, /configz, /flagz, /statusz and /proxyMode. */
  readonly metricsBindAddress: BindAddress
  /** A bind failure of either ends the process; otherwise kprobe retries every 5 s. */
  readonly bindAddressHardFail: boolean
  /** -1000 to 1000. */
  readonly oomScoreAdj: number
  readonly conntrack: ConntrackConfig
  /** Options of IPVS mode, and of its cleanup. */
  readonly ipvs: IpvsConfig
  /** Options of iptables mode. */
  readonly iptables: IptablesConfig
  /** Feature gate AllowServiceExternalIPs; without it externalIPs are not served. */
  readonly allowServiceExternalIps: boolean
  /** Values given for the other gates; isGateOn knows the defaults. */
  readonly featureGates: FeatureGates
  /** Unix socket at which the daemon answers the other commands; empty for none. */
  readonly adminSocket: string
  /** New connections per Service and endpoint as metrics, while there are at most so many series; 0 for none. */
  readonly connectionMetricsMax: number
  /** The back-end API; undefined for none. */
  readonly api: ApiConfig | undefined
}

/** A gRPC server for back ends. */
export interface ApiConfig {
  /** unix:///PATH or tcp://IP:PORT. */
  readonly address: string
  readonly tls: ApiTlsConfig | undefined
}

/** Paths of PEM files: the server's certificate, its key, and the authorities of its clients. */
export interface ApiTlsConfig {
  readonly certFile: string
  readonly keyFile: string
  readonly clientCaFile: string
}

/** How the API server is reached (clientConnection). */
export interface ClientConfig {
  /** Path of a kubeconfig; empty for in-cluster credentials, unless `master` is given. */
  readonly kubeconfig: string
  /** URL that replaces the kubeconfig's server; may be empty. */
  readonly master: string
  /** What bodies are asked for and sent in. */
  readonly contentType: string
  /** Replaces the Accept header that follows from contentType; may be empty. */
  readonly acceptContentTypes: string
  /** Requests a second, on average; 0 for no limit. */
  readonly qps: number
  readonly burst: number
}

/** Address and port to listen at; an unspecified address listens in both families. */
export interface BindAddress {
  readonly ip: Ip
  readonly port: number
}

/** Kernel settings of connection tracking; undefined leaves what is there. */
export interface ConntrackConfig {
  /** Entries a processor; 0 leaves nf_conntrack_max alone. */
  readonly maxPerCore: number
  /** The minimum in all, when maxPerCore applies. */
  readonly min: number
  readonly tcpEstablishedTimeoutMs: number | undefined
  readonly tcpCloseWaitTimeoutMs: number | undefined
  readonly tcpFinWaitTimeoutMs: number | undefined
  readonly tcpTimeWaitTimeoutMs: number | undefined
  /** True sets the sysctl to 1; false leaves it. */
  readonly tcpBeLiberal: boolean
  readonly udpTimeoutMs: number | undefined
  readonly udpStreamTimeoutMs: number | undefined
  /** Values of an operator that are larger than these are lowered, too, as kube-proxy does. */
  readonly lower: boolean
}

/** What only IPVS mode has. */
export interface IpvsConfig {
  /** Name of the kernel's module without `ip_vs_`, for Services that ask for none of their own. */
  readonly scheduler: string
  /** Virtual servers in these are never touched. */
  readonly excludeCidrs: readonly Cidr[]
  /** Answer ARP requests for an address only on the interface that has it. */
  readonly strictArp: boolean
  /** Timeouts of idle TCP connections, of those after a FIN and of UDP flows, in seconds; 0 keeps the kernel's value. */
  readonly tcpTimeoutS: number
  readonly tcpFinTimeoutS: number
  readonly udpTimeoutS: number
  /** Who decides about packets before IPVS does. */
  readonly rules: 'nftables' | 'iptables'
  /** How long an endpoint that is gone may keep its connections, milliseconds. */
  readonly drainTimeoutMs: number
  /** How often IPVS and ipsets are checked for changes by others, milliseconds. */
  readonly digestPeriodMs: number
}

/** What only iptables mode has. */
export interface IptablesConfig {
  /** NodePorts answer at 127.0.0.1, where the choice of NodePort addresses does not leave it out. */
  readonly localhostNodePorts: boolean
  /** Rules in another order and fewer of them, with the same verdicts. */
  readonly optimize: boolean
}

export type SourceConfig = { readonly kind: 'kube' } | { readonly kind: 'file'; readonly path: string }

/** How traffic from pods of this node is recognized (kube-proxy's --detect-local-mode). */
export type DetectLocal =
  /** The first CIDR of each family counts; without one there is no detector for that family. */
  | { readonly kind: 'ClusterCIDR'; readonly cidrs: readonly Cidr[] }
  /** node.spec.podCIDRs. */
  | { readonly kind: 'NodeCIDR' }
  | { readonly kind: 'BridgeInterface'; readonly name: string }
  | { readonly kind: 'InterfaceNamePrefix'; readonly prefix: string }

export type NodePortSelection = {
  /** The Node's first address of each family. */
  readonly primary: boolean
  readonly cidrs: readonly Cidr[]
}
