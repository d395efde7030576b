import { tableNameOf } from '../../config/modes/nftables.ts'
import type { Detectors } from '../common/detector.ts'
import { NAT_PRIORITY } from '../common/rules.ts'

export interface NftablesOptions {
  /** The name of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** The priority of the hooks that translate destinations: NAT_PRIORITY unless another proxy serves this node too. */
  readonly natPriority: number
  /** Masquerades connections of pods to ClusterIPs too. */
  readonly masqueradeAll: boolean
  /** The bit of the packet mark, 0 to 31, that means "masquerade" between our hooks. */
  readonly masqueradeBit: number
  readonly detector: Detectors
  /** Counts new connections at each endpoint. The table is replaced when this changes. */
  readonly connectionCounters: boolean
  /** The NFLOG group that gets rejected and dropped packets; 0 for none. */
  readonly logGroup: number
}

export const DEFAULT_NFTABLES_OPTIONS: NftablesOptions = {
  tableName: tableNameOf(undefined),
  natPriority: NAT_PRIORITY,
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  connectionCounters: false,
  logGroup: 0,
}
