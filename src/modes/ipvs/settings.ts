import { type Cidr, formatCidr } from '../../base/cidr.ts'
import { FAMILIES, type Family } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import { OWN_IPVS_FLAGS } from '../../config/ipvs-flags.ts'
import { type DetectorOption, detectorOf } from '../common/detector.ts'
import type { ModeSettings } from '../mode.ts'

/** Where the rules before IPVS are written: in our own tables, or as far as possible in kube-proxy's chains. */
export type RuleWriter = 'nftables' | 'iptables'

/** The options of IPVS mode. */
export interface IpvsOptions {
  readonly rules: RuleWriter
  /** The name of our tables; not that of nftables mode, because both exist during a change of mode. */
  readonly tableName: string
  /** `kube-ipvs0`. */
  readonly deviceName: string
  /** The scheduler of Services that do not configure one: rr by default. */
  readonly scheduler: string
  /** Virtual servers in these prefixes belong to another program. */
  readonly excludeCidrs: readonly Cidr[]
  readonly masqueradeAll: boolean
  /** The bit of the packet mark, 0 to 31. */
  readonly masqueradeBit: number
  /** How pods of this node are distinguished from other traffic; undefined where they cannot be. */
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  /** How long a removed endpoint may keep its connections, milliseconds. */
  readonly drainMs: number
  /** The interval between digests, which find changes that the kernel does not report, milliseconds. */
  readonly digestMs: number
}

export const DEFAULT_IPVS_OPTIONS: IpvsOptions = {
  rules: 'nftables',
  tableName: 'kube-proxy-ipvs',
  deviceName: 'kube-ipvs0',
  scheduler: 'rr',
  excludeCidrs: [],
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: undefined, IPv6: undefined },
  drainMs: 900_000,
  digestMs: 1_000,
}

/** The device to which addresses of Services are bound. These are no addresses of this machine. */
export const IPVS_DEVICE = DEFAULT_IPVS_OPTIONS.deviceName

export function ipvsOptions(config: Config): IpvsOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, ipvs } = config
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  return {
    ...DEFAULT_IPVS_OPTIONS,
    rules: ipvs.rules,
    scheduler: ipvs.scheduler,
    excludeCidrs: ipvs.excludeCidrs,
    masqueradeAll,
    masqueradeBit,
    detector: { IPv4, IPv6 },
    drainMs: ipvs.drainTimeoutMs,
    digestMs: ipvs.digestPeriodMs,
  }
}

export const IPVS_SETTINGS: ModeSettings = {
  // As in kube-proxy's conversion from v1alpha1, this mode reads the settings of masquerading from the section `iptables`.
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'ipvs.minSyncPeriod',
  syncPeriod: 'ipvs.syncPeriod',
  periodFlags: { min: 'ipvs-min-sync-period', sync: 'ipvs-sync-period' },
  // IPVS reports no changes: besides the digests, only a full resync finds them.
  defaultSyncPeriod: 30_000_000_000n,
  notNegative: ['ipvs.tcpFinTimeout', 'ipvs.tcpTimeout', 'ipvs.udpTimeout'],
  countsConnections: true,
  ownFlags: OWN_IPVS_FLAGS,
  flagTexts: ({ ipvs }) => ({
    'ipvs-scheduler': ipvs.scheduler,
    'ipvs-exclude-cidrs': ipvs.excludeCidrs.map(formatCidr).join(),
    'ipvs-strict-arp': `${ipvs.strictArp}`,
    'ipvs-tcp-timeout': `${ipvs.tcpTimeoutS}s`,
    'ipvs-tcpfin-timeout': `${ipvs.tcpFinTimeoutS}s`,
    'ipvs-udp-timeout': `${ipvs.udpTimeoutS}s`,
    'ipvs-rules': ipvs.rules,
    'ipvs-drain-timeout': `${ipvs.drainTimeoutMs}ms`,
    'ipvs-digest-period': `${ipvs.digestPeriodMs}ms`,
  }),
}
