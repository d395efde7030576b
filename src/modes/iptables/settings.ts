import { contains, familyOf, isLoopback } from '../../base/ip.ts'
import type { Config, IptablesConfig } from '../../config/config.ts'
import { type FlagReader, flagGroup } from '../../config/flag.ts'
import type { Settings } from '../../config/settings.ts'
import {
  missingFails,
  type TuneOptions,
  type TuneReport,
  tuneSysctls,
  wantedSysctl,
} from '../../kernel/sysctl/sysctls.ts'
import type { Promises } from '../../model/promises.ts'
import { IPTABLES_SECTION } from '../common/kube-proxy.ts'
import { LOG_FLAG, logFlagText } from '../common/logs.ts'
import { type Detectors, detectorsOf } from '../common/rules.ts'
import type { KernelSockets, ModeSettings, Proving } from '../mode.ts'
import { type ChainNames, chainNames, isOurChain, KUBE_CHAINS } from '../xt-common/layout.ts'

const GROUP = 'iptables mode'

/** Flags of kube-proxy, which are checked in every mode, as in kube-proxy. */
const FLAGS = flagGroup(GROUP, {
  '--iptables-masquerade-bit BIT = 14':
    "kube-proxy's name for --masquerade-bit, in every mode except nftables, and if --proxy-mode is not set",
  '--iptables-localhost-nodeports = true':
    'accept NodePort traffic on 127.0.0.1, unless --nodeport-addresses excludes it; sets route_localnet=1',
})

const PACE_FLAGS = flagGroup(GROUP, {
  '--iptables-min-sync-period DURATION = 20ms':
    "kube-proxy's name for --min-sync-period, in every mode except IPVS",
  '--iptables-sync-period DURATION = 10m': "kube-proxy's name for --sync-period, in every mode except IPVS",
})

const OWN_FLAGS = flagGroup(GROUP, {
  '--iptables-optimize': "fewer rules per packet, same result; chains differ from kube-proxy's",
})

export const IPTABLES_SETTINGS: ModeSettings = {
  ...IPTABLES_SECTION,
  // nf_tables also reports changes of the tables of iptables.
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
  flags: FLAGS,
  paceFlags: PACE_FLAGS,
  ownFlags: [...OWN_FLAGS, LOG_FLAG],
  flagTexts: ({ iptables, logRejects }) => ({
    ...logFlagText({ logRejects }),
    'iptables-localhost-nodeports': `${iptables.localhostNodePorts}`,
    'iptables-optimize': `${iptables.optimize}`,
  }),
}

/** Reads the options of iptables mode. Only the flag sets `optimize`, also with --config. */
export function readIptablesOptions(settings: Settings, reader: FlagReader): IptablesConfig {
  return {
    localhostNodePorts: settings.bool('iptables.localhostNodePorts'),
    optimize: reader.bool('iptables-optimize'),
  }
}

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

/**
 * Makes the options. tcpBeLiberal is read once, as in kube-proxy. kprobe sets the configured value before it writes
 * rules.
 */
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

/** What this mode does otherwise than nftables mode: docs/differences.md. */
const IPTABLES_PROMISES: Promises = {
  closesUnused: false,
  refusesBehind: true,
  masqueradesItself: true,
  answersAtLoopback: true,
  bindsAddresses: false,
  masqueradesDirectly: false,
  kubeProxyChains: false,
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
