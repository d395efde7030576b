/** The treatment of packets where proxy modes differ on purpose: docs/differences.md. */
export interface Promises {
  /** Other ports of a ClusterIP are rejected, and packets to unused addresses of a ServiceCIDR dropped. */
  readonly closesUnused: boolean
  /**
   * Rules behind the translation of destinations refuse packets: those of a ClusterIP forwarded and sent packets, all
   * others delivered and forwarded ones. They translate nothing, so a node port of the same number still answers.
   */
  readonly refusesBehind: boolean
  /** Every endpoint that connects to itself is masqueraded, and not only those of this node. */
  readonly masqueradesItself: boolean
  /** Node ports answer at 127.0.0.0/8, where they answer at every address or loopback addresses are listed. */
  readonly answersAtLoopback: boolean
  /**
   * Addresses of Services become addresses of this node, unless another device has them: other ports of these are
   * rejected, but the health check node port at a load-balancer address. Clients whose source is such an address are
   * masqueraded on their way to a ClusterIP. Node ports answer at the addresses that this node has, without
   * link-local ones, and an external address is not served at any port if it is an API server's.
   */
  readonly bindsAddresses: boolean
  /** An endpoint of this node that sends to itself is masqueraded, also without a Service. */
  readonly masqueradesDirectly: boolean
  /**
   * Chains of kube-proxy's IPVS mode mark what is masqueraded: at each address of the node by the number of a node port,
   * for sources that are addresses of Services, and never for loopback sources. A health check node port is open at each
   * address of a Service, and a private virtual server for processes of this node.
   */
  readonly kubeProxyChains: boolean
  /** Connections are divided by kprobe.io/balance and kprobe.io/weights. */
  readonly balances: boolean
  /** Silent endpoints get no connections where the Service has kprobe.io/fail-over. */
  readonly failsOver: boolean
  /** Large lists of endpoints are chosen from by rounded numbers of slots. */
  readonly roundsShares: boolean
}

/** The promises of nftables mode, which follow the documents of Kubernetes. */
export const USUAL_PROMISES: Promises = {
  closesUnused: true,
  refusesBehind: false,
  masqueradesItself: false,
  answersAtLoopback: false,
  bindsAddresses: false,
  masqueradesDirectly: false,
  kubeProxyChains: false,
  balances: true,
  failsOver: true,
  roundsShares: true,
}
