import type { Clock } from '../../base/clock.ts'
import { type MissingExtension, missingText, probeXt, type XtUse } from '../../kernel/xt/probe.ts'
import { Connection } from '../../netlink/connection.ts'
import type { KernelSockets } from '../mode.ts'

/** The kernel options, and with them modules, that provide matches and targets of xtables. */
const OPTIONS: Readonly<Record<string, string>> = {
  comment: 'CONFIG_NETFILTER_XT_MATCH_COMMENT',
  conntrack: 'CONFIG_NETFILTER_XT_MATCH_CONNTRACK',
  statistic: 'CONFIG_NETFILTER_XT_MATCH_STATISTIC',
  addrtype: 'CONFIG_NETFILTER_XT_MATCH_ADDRTYPE',
  tcp: 'CONFIG_NETFILTER_XTABLES',
  udp: 'CONFIG_NETFILTER_XTABLES',
  recent: 'CONFIG_NETFILTER_XT_MATCH_RECENT',
  sctp: 'CONFIG_NETFILTER_XT_MATCH_SCTP',
  nfacct: 'CONFIG_NETFILTER_XT_MATCH_NFACCT',
  REJECT: 'CONFIG_IP_NF_TARGET_REJECT, CONFIG_IP6_NF_TARGET_REJECT',
  MARK: 'CONFIG_NETFILTER_XT_TARGET_MARK',
  MASQUERADE: 'CONFIG_NETFILTER_XT_TARGET_MASQUERADE',
  DNAT: 'CONFIG_NETFILTER_XT_NAT',
}

/** Formats missing extensions: `match statistic (revision 0) for ip and ip6: CONFIG_...`. */
export function lackText(missing: readonly MissingExtension[]): string {
  const options = [...new Set(missing.flatMap(({ name }) => OPTIONS[name] ?? []))]
  return `${missingText(missing)}: ${['CONFIG_NFT_COMPAT', ...options].join(', ')}`
}

/**
 * Gives the extensions that iptables rules need for one of `uses` and this kernel lacks. Throws NetlinkError.
 */
function missingXt(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
  uses: readonly XtUse[],
): readonly MissingExtension[] {
  const transport = netfilter()
  try {
    return probeXt(new Connection({ transport, clock })).filter(({ use }) => uses.includes(use))
  } finally {
    // The client waits for each reply, so nothing is in flight.
    void transport.close()
  }
}

/** Throws where the kernel lacks extensions that the rules of every Service need. */
export function demandIptables(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): void {
  const missing = missingXt(sockets, clock, ['services'])
  if (missing.length === 0) return
  throw new Error(
    `this kernel lacks matches or targets that iptables mode needs: ${lackText(missing)}. \`kprobe doctor --proxy-mode=iptables\` says what else is missing`,
  )
}

/** Describes the extensions that are missing for some Services only; undefined when none is. */
export function lesserLack(sockets: Pick<KernelSockets, 'netfilter'>, clock: Clock): string | undefined {
  const missing = missingXt(sockets, clock, ['affinity', 'sctp'])
  return missing.length === 0 ? undefined : lackText(missing)
}
