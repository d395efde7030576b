import type { Cidr, Ip } from '../base/ip.ts'
import type { BalancePolicy } from '../model/service.ts'
import type { FeatureGates } from './feature-gates.ts'

/** The name of a mode, as in modes/registry.ts. */
export type ProxyMode = string

/**
 * The gate of kube-proxy 1.37 without which its nftables mode serves no node port at localhost. Here `localhost` in
 * nodePortAddresses is enough, and only an explicit `false` turns it off.
 */
export const GATE_LOCALHOST = 'KubeProxyNFTablesLocalhostNodePorts'

/** The whole configuration, validated and frozen: no other code reads flags or files. */
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
  readonly masqueradeBit: number
  readonly nodePortAddresses: NodePortSelection
  readonly minSyncPeriodMs: number
  /** Share of a processor that syncs may take while changes keep coming, more than 0. */
  readonly syncShare: number
  readonly syncPeriodMs: number
  readonly logFormat: 'text' | 'json'
  readonly verbosity: number
  /** ExternalIPs outside these are refused, unless the list is empty. */
  readonly allowedExternalCidrs: readonly Cidr[]
  /** Load-balancer IPs outside these are refused, unless the list is empty. */
  readonly allowedLoadBalancerCidrs: readonly Cidr[]
  readonly client: ClientConfig
  /** A specific address overrides the Node's primary address; no server listens there. */
  readonly bindAddress: Ip | undefined
  readonly healthzBindAddress: BindAddress | undefined
  /** Address of /metrics, /configz, /flagz, /statusz and /proxyMode. */
  readonly metricsBindAddress: BindAddress
  /** A bind failure of either ends the process; otherwise kprobe retries every 5 s. */
  readonly bindAddressHardFail: boolean
  readonly oomScoreAdj: number
  readonly conntrack: ConntrackConfig
  readonly ipvs: IpvsConfig
  readonly iptables: IptablesConfig
  /** The NFLOG group that gets packets that rules reject or drop, in nftables and iptables mode; 0 for none. */
  readonly logRejects: number
  /** Feature gate AllowServiceExternalIPs; without it externalIPs are not served. */
  readonly allowServiceExternalIps: boolean
  /** Explicit values of the other gates; isGateOn knows the defaults. */
  readonly featureGates: FeatureGates
  readonly adminSocket: string
  /** Type of the condition of the Node that says whether this proxy is ready; empty for none. */
  readonly nodeCondition: string
  readonly prove: Proving
  /** The policy of Services without the annotation kprobe.io/balance. */
  readonly balance: BalancePolicy
  readonly stateDir: string
  /** Maximum number of time series for new connections per Service and endpoint; 0 for none. */
  readonly connectionMetricsMax: number
  readonly api: ApiConfig | undefined
  /** The web page at an address of its own; undefined for none. The admin socket has it in any case. */
  readonly ui: UiConfig | undefined
}

export interface UiConfig {
  readonly at: BindAddress
  readonly tokenFile: string
  /** Clients must have a certificate; undefined to serve without TLS. One of both is there unless `at` is loopback. */
  readonly tls: ApiTlsConfig | undefined
}

export const PROVING = ['off', 'full'] as const
export type Proving = (typeof PROVING)[number]

export interface ApiConfig {
  readonly address: string
  readonly tls: ApiTlsConfig | undefined
}

/** Paths of PEM files: the server's certificate, its key, and the authorities of its clients. */
export interface ApiTlsConfig {
  readonly certFile: string
  readonly keyFile: string
  readonly clientCaFile: string
}

export interface ClientConfig {
  /** Path of a kubeconfig; empty for in-cluster credentials, unless `master` is given. */
  readonly kubeconfig: string
  /** URL that replaces the kubeconfig's server; may be empty. */
  readonly master: string
  readonly contentType: string
  /** Replaces the Accept header that contentType implies; may be empty. */
  readonly acceptContentTypes: string
  readonly qps: number
  readonly burst: number
}

/** Address and port to listen at; an unspecified address listens in both families. */
export interface BindAddress {
  readonly ip: Ip
  readonly port: number
}

/** Kernel settings of conntrack; undefined keeps the kernel's value. */
export interface ConntrackConfig {
  /** Entries per CPU; 0 keeps nf_conntrack_max. */
  readonly maxPerCore: number
  /** Minimum of the total, if maxPerCore applies. */
  readonly min: number
  readonly tcpEstablishedTimeoutMs: number | undefined
  readonly tcpCloseWaitTimeoutMs: number | undefined
  readonly tcpFinWaitTimeoutMs: number | undefined
  readonly tcpTimeWaitTimeoutMs: number | undefined
  /** True sets the sysctl to 1; false keeps it. */
  readonly tcpBeLiberal: boolean
  readonly udpTimeoutMs: number | undefined
  readonly udpStreamTimeoutMs: number | undefined
  /** Larger values of an operator are lowered, too, as kube-proxy does. */
  readonly lower: boolean
}

export interface IpvsConfig {
  /** Name of the kernel module without `ip_vs_`, for Services that specify no scheduler. */
  readonly scheduler: string
  /** kprobe does not change virtual servers in these. */
  readonly excludeCidrs: readonly Cidr[]
  /** Answer ARP requests for an address only on the interface that has it. */
  readonly strictArp: boolean
  /**
   * Timeouts in seconds of idle TCP connections, of TCP connections after a FIN, and of UDP flows; 0 keeps the kernel's
   * value.
   */
  readonly tcpTimeoutS: number
  readonly tcpFinTimeoutS: number
  readonly udpTimeoutS: number
  /** The rules that packets pass before IPVS. */
  readonly rules: 'nftables' | 'iptables'
  /** Maximum time that a removed endpoint keeps its connections, milliseconds. */
  readonly drainTimeoutMs: number
  /** Interval of the checks of IPVS and ipsets for drift, milliseconds. */
  readonly digestPeriodMs: number
}

export interface IptablesConfig {
  /** Node ports answer at 127.0.0.1, unless --nodeport-addresses excludes it. */
  readonly localhostNodePorts: boolean
  /** Fewer rules in another order, with the same verdicts. */
  readonly optimize: boolean
}

export type SourceConfig =
  /** With `relay`, lists and watches go to relays; everything else goes to the API server. */
  | { readonly kind: 'kube'; readonly relay?: RelaySourceConfig }
  | { readonly kind: 'file'; readonly path: string }

export interface RelaySourceConfig {
  /** `unix:///PATH`, `tcp://IP:PORT@ZONE` or `dns:///NAME:PORT@ZONE`; a zone may be absent. */
  readonly addresses: readonly string[]
  /** The zone of this node, whose relays come first; empty for none. */
  readonly zone: string
  /** While no relay answers, the API server is asked. */
  readonly fallsBack: boolean
  readonly tls: RelayTlsConfig | undefined
  /** Path of a bearer token, which is read for each stream; empty for none. */
  readonly tokenFile: string
}

/** Paths of PEM files: the authorities of relays, and the certificate of the node with its key, both empty for none. */
export interface RelayTlsConfig {
  readonly caFile: string
  /** The name in the certificates of relays; empty for their addresses. */
  readonly serverName: string
  readonly certFile: string
  readonly keyFile: string
}

/** The way to recognize traffic from pods of this node (kube-proxy's --detect-local-mode). */
export type DetectLocal =
  /** The first CIDR of each family applies; a family without one has no detector. */
  | { readonly kind: 'ClusterCIDR'; readonly cidrs: readonly Cidr[] }
  | { readonly kind: 'NodeCIDR' }
  | { readonly kind: 'BridgeInterface'; readonly name: string }
  | { readonly kind: 'InterfaceNamePrefix'; readonly prefix: string }

export type NodePortSelection = {
  readonly primary: boolean
  /** The CIDRs include those of the keywords `localhost` and `all`. */
  readonly cidrs: readonly Cidr[]
}
