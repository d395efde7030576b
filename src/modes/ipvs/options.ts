import type { Cidr } from '../../base/cidr.ts'
import type { Family } from '../../base/ip.ts'
import type { DetectorOption } from '../common/detector.ts'

/**
 * Whose rules stand before IPVS: all of them in tables of our own, or kube-proxy's chains in those of iptables, and in ours
 * what these cannot say.
 */
export type RuleWriter = 'nftables' | 'iptables'

/** What the mode can be told. */
export interface IpvsOptions {
  readonly rules: RuleWriter
  /** Not the one of nftables mode: while one mode takes the place of the other, both tables are there. */
  readonly tableName: string
  /** `kube-ipvs0`. */
  readonly deviceName: string
  /** Of Services that do not ask for one of their own: rr. */
  readonly scheduler: string
  /** Virtual servers in these are somebody else's, whatever they look like. */
  readonly excludeCidrs: readonly Cidr[]
  readonly masqueradeAll: boolean
  /** 0 to 31. */
  readonly masqueradeBit: number
  /** How pods of this node are told from other traffic; undefined where they cannot be. */
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  /** How long an endpoint that is gone may keep its connections, milliseconds. */
  readonly drainMs: number
  /** Distance between looks at what the kernel announces to nobody, milliseconds. */
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
