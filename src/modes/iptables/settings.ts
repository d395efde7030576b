import { contains, familyOf, isLoopback } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import {
  missingFails,
  type TuneOptions,
  type TuneReport,
  tuneSysctls,
  wantedSysctl,
} from '../../kernel/sysctl/sysctls.ts'
import type { Promises } from '../../model/promises.ts'
import { type Detectors, detectorsOf } from '../common/detector.ts'
import type { KernelSockets, Proving } from '../mode.ts'
import { type ChainNames, chainNames, isOurChain, KUBE_CHAINS } from '../xt-common/layout.ts'

/** The inputs of the rules besides the FrontendTable. */
export interface IptablesOptions {
  readonly names: ChainNames
  readonly masqueradeAll: boolean
  readonly masqueradeBit: number
  readonly detector: Detectors
  /** `--iptables-localhost-nodeports`: node ports are served on 127.0.0.1. */
  readonly localhostNodePorts: boolean
  /** nf_conntrack_tcp_be_liberal is set: no rule drops packets in state INVALID. */
  readonly tcpBeLiberal: boolean
  /** The counters of nfacct that exist, and that rules may therefore use. */
  readonly nfacct: { readonly invalidDropped: boolean; readonly localhostAccepted: boolean }
  readonly optimize: boolean
  /** The NFLOG group that gets packets that rules of Services reject or drop; 0 for none. */
  readonly logGroup: number
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
  logGroup: 0,
}

/** The counters of xt_nfacct, with kube-proxy's names. */
export const NFACCT_INVALID_DROPPED = 'ct_state_invalid_dropped_pkts'
export const NFACCT_LOCALHOST_ACCEPTED = 'localhost_nps_accepted_pkts'

const TCP_BE_LIBERAL = 'proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal'

/** Makes the options. tcpBeLiberal is read once, as in kube-proxy; kprobe sets its value before it writes rules. */
export function iptablesOptions(
  config: Config,
  { setting = () => undefined }: Pick<KernelSockets, 'setting'>,
): IptablesOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, iptables, conntrack, serviceProxyName } = config
  return {
    ...DEFAULT_IPTABLES_OPTIONS,
    names: chainNames(serviceProxyName),
    masqueradeAll,
    masqueradeBit,
    detector: detectorsOf(detectLocal),
    localhostNodePorts: answersAtLoopback(config),
    tcpBeLiberal: conntrack.tcpBeLiberal || (setting(TCP_BE_LIBERAL) ?? 0) !== 0,
    optimize: iptables.optimize,
    logGroup: config.logRejects,
  }
}

/** Lets packets from 127.0.0.1 leave by a device, as those of a connection to a node port there do. */
export const ROUTE_LOCALNET = wantedSysctl('net/ipv4/conf/all/route_localnet', 1)

export async function tuneIptables(config: Config, options: TuneOptions): Promise<TuneReport> {
  const wanted = answersAtLoopback(config) ? [ROUTE_LOCALNET] : []
  return missingFails(await tuneSysctls(wanted, options))
}

/** The first address of 127.0.0.0/8: a range that contains it contains the whole prefix. */
const LOOPBACK_START = '\x7f\0\0\0'

/**
 * Returns whether node ports are served at 127.0.0.1: it is configured, and the node-port addresses include loopback.
 * They are never served at ::1, which cannot be translated.
 */
export function answersAtLoopback({
  iptables,
  nodePortAddresses,
}: Pick<Config, 'iptables' | 'nodePortAddresses'>): boolean {
  if (!iptables.localhostNodePorts) return false
  const cidrs = nodePortAddresses.cidrs.filter(({ ip }) => familyOf(ip) === 'IPv4')
  if (cidrs.length === 0) return !nodePortAddresses.primary
  return cidrs.some(cidr => isLoopback(cidr.ip) || contains(cidr, LOOPBACK_START))
}

/** The differences from nftables mode: docs/differences.md. */
const IPTABLES_PROMISES: Promises = {
  closesUnused: false,
  refusesBehind: true,
  masqueradesItself: true,
  answersAtLoopback: true,
  bindsAddresses: false,
  masqueradesDirectly: false,
  kubeProxyChains: false,
  balances: false,
  failsOver: false,
  roundsShares: false,
}

const TABLES = ['filter', 'nat', 'mangle'] as const

/** KUBE-FIREWALL is not among our chains: kubelet writes it, too. */
export function iptablesProving(
  config: Pick<Config, 'serviceProxyName' | 'iptables' | 'nodePortAddresses'>,
): Proving {
  const names = chainNames(config.serviceProxyName)
  return {
    promises: { ...IPTABLES_PROMISES, answersAtLoopback: answersAtLoopback(config) },
    owns: (table, chain) => {
      const known = TABLES.find(each => each === table)
      return known !== undefined && isOurChain(names, known, chain)
    },
  }
}
