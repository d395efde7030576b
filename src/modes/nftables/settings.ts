import { isDnsLabel } from '../../model/fields.ts'
import { LOG_FLAG, logFlagText } from '../common/logs.ts'
import { type Detectors, NAT_PRIORITY } from '../common/rules.ts'
import type { ModeSettings } from '../mode.ts'

export const NFTABLES_SETTINGS: ModeSettings = {
  masqueradeAll: 'nftables.masqueradeAll',
  masqueradeBit: 'nftables.masqueradeBit',
  minSyncPeriod: 'nftables.minSyncPeriod',
  syncPeriod: 'nftables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
  defaultSyncPeriod: 600_000_000_000n,
  countsConnections: true,
  ownFlags: [LOG_FLAG],
  flagTexts: logFlagText,
}

export interface NftablesOptions {
  /** The name of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /**
   * The priority of the hooks that translate destinations: NAT_PRIORITY unless another proxy serves this node
   * too.
   */
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
  tableName: 'kube-proxy',
  natPriority: NAT_PRIORITY,
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  connectionCounters: false,
  logGroup: 0,
}

/** Gives the table name of a proxy. It is unique: config/own-flags.ts refuses names that collide. */
export function tableNameOf(proxy: string | undefined): string {
  const { tableName } = DEFAULT_NFTABLES_OPTIONS
  return proxy === undefined ? tableName : `${tableName}-${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  const name = table.slice(prefix.length)
  return table.startsWith(prefix) && isDnsLabel(name) ? name : undefined
}
