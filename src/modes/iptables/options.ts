import type { Family } from '../../base/ip.ts'
import type { DetectorOption } from '../common/detector.ts'
import { type ChainNames, KUBE_CHAINS } from '../xt-common/layout.ts'

/** The inputs of the rules besides the FrontendTable. */
export interface IptablesOptions {
  readonly names: ChainNames
  readonly masqueradeAll: boolean
  readonly masqueradeBit: number
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  /** `--iptables-localhost-nodeports`: node ports are served on 127.0.0.1. */
  readonly localhostNodePorts: boolean
  /** nf_conntrack_tcp_be_liberal is set: no rule drops packets in state INVALID. */
  readonly tcpBeLiberal: boolean
  /** The counters of nfacct that exist, and that rules may therefore use. */
  readonly nfacct: { readonly invalidDropped: boolean; readonly localhostAccepted: boolean }
  /** `--iptables-optimize`. */
  readonly optimize: boolean
}

export const DEFAULT_IPTABLES_OPTIONS: IptablesOptions = {
  names: KUBE_CHAINS,
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: undefined, IPv6: undefined },
  localhostNodePorts: true,
  tcpBeLiberal: false,
  nfacct: { invalidDropped: false, localhostAccepted: false },
  optimize: false,
}

/** The counters of xt_nfacct, with kube-proxy's names. */
export const NFACCT_INVALID_DROPPED = 'ct_state_invalid_dropped_pkts'
export const NFACCT_LOCALHOST_ACCEPTED = 'localhost_nps_accepted_pkts'
