import type { Cidr } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import { IPVS_TABLE } from '../../config/modes/ipvs.ts'
import { type Detectors, detectorsOf } from '../common/detector.ts'

/** The place of the rules before IPVS: our own tables, or, as far as possible, kube-proxy's chains. */
export type RuleWriter = 'nftables' | 'iptables'

export interface IpvsOptions {
  readonly rules: RuleWriter
  /** The name of our tables; not that of nftables mode, because both exist during a change of mode. */
  readonly tableName: string
  /** The scheduler of Services that do not configure one: rr by default. */
  readonly scheduler: string
  /** Virtual servers in these prefixes belong to another program. */
  readonly excludeCidrs: readonly Cidr[]
  readonly masqueradeAll: boolean
  /** The bit of the packet mark, 0 to 31. */
  readonly masqueradeBit: number
  /** The detectors of traffic from pods of this node; undefined where pods cannot be distinguished. */
  readonly detector: Detectors
  /** Maximum time that a removed endpoint keeps its connections, milliseconds. */
  readonly drainMs: number
  /** The interval between digests, which find changes that the kernel does not report, milliseconds. */
  readonly digestMs: number
}

export const DEFAULT_IPVS_OPTIONS: IpvsOptions = {
  rules: 'nftables',
  tableName: IPVS_TABLE,
  scheduler: 'rr',
  excludeCidrs: [],
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: undefined, IPv6: undefined },
  drainMs: 900_000,
  digestMs: 1_000,
}

export function ipvsOptions(config: Config): IpvsOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, ipvs } = config
  return {
    ...DEFAULT_IPVS_OPTIONS,
    rules: ipvs.rules,
    scheduler: ipvs.scheduler,
    excludeCidrs: ipvs.excludeCidrs,
    masqueradeAll,
    masqueradeBit,
    detector: detectorsOf(detectLocal),
    drainMs: ipvs.drainTimeoutMs,
    digestMs: ipvs.digestPeriodMs,
  }
}
