import type { Cidr } from '../../base/cidr.ts'
import type { Family } from '../../base/ip.ts'
import type { DetectorOption } from '../common/detector.ts'

/**
 * Where the rules before IPVS are written: all of them in our own tables, or in kube-proxy's chains in the
 * tables of iptables, with the rest in our own tables.
 */
export type RuleWriter = 'nftables' | 'iptables'

/** The options of IPVS mode. */
export interface IpvsOptions {
  readonly rules: RuleWriter
  /**
   * The name of our tables. It differs from that of nftables mode, because both tables exist during a change
   * of mode.
   */
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
