/** What a proxy mode does with packets, where modes differ on purpose: docs/differences.md. */
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
  /** Large lists of endpoints are chosen from by rounded numbers of slots. */
  readonly roundsShares: boolean
}

/** What nftables mode promises, and the documents of Kubernetes for it. */
export const USUAL_PROMISES: Promises = {
  closesUnused: true,
  refusesBehind: false,
  masqueradesItself: false,
  answersAtLoopback: false,
  roundsShares: true,
}
