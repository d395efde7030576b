import type { Family } from '../../base/ip.ts'
import { isDnsLabel } from '../../model/names.ts'
import type { DetectorOption } from '../common/detector.ts'
import { NAT_PRIORITY } from '../common/rules.ts'

export interface NftablesOptions {
  /** Of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** Of the hooks that translate destinations; NAT_PRIORITY unless another proxy serves this node, too. */
  readonly natPriority: number
  /** Masquerade pods' connections to ClusterIPs too. */
  readonly masqueradeAll: boolean
  /** 0 to 31: the bit of the packet mark that says "masquerade" between our hooks. */
  readonly masqueradeBit: number
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  /** Name the Service beside each endpoint too: easier to read, 15 to 25 % more to send. */
  readonly endpointComments: boolean
  /** Count new connections at each endpoint; the table is made anew when this changes. */
  readonly connectionCounters: boolean
}

export const DEFAULT_NFTABLES_OPTIONS: NftablesOptions = {
  tableName: 'kube-proxy',
  natPriority: NAT_PRIORITY,
  masqueradeAll: false,
  masqueradeBit: 14,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  endpointComments: false,
  connectionCounters: false,
}

/** No two proxies have a table of the same name: config/instance-name.ts refuses names that collide. */
export function tableNameOf(proxy: string | undefined): string {
  const { tableName } = DEFAULT_NFTABLES_OPTIONS
  return proxy === undefined ? tableName : `${tableName}-${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  const name = table.slice(prefix.length)
  return table.startsWith(prefix) && isDnsLabel(name) ? name : undefined
}
