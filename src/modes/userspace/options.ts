import type { Family } from '../../base/ip.ts'
import type { DetectorOption } from '../common/detector.ts'
import { NAT_PRIORITY } from '../common/rules.ts'
import { DEFAULT_LIMITS, type RelayLimits } from './relay/context.ts'

export interface UserspaceOptions {
  /** Of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** Of the hooks that translate destinations; NAT_PRIORITY unless another proxy serves this node, too. */
  readonly natPriority: number
  /** Tells pods, which policy Local sends everywhere, from others. */
  readonly detector: Readonly<Record<Family, DetectorOption | undefined>>
  readonly limits: RelayLimits
}

export const DEFAULT_USERSPACE_OPTIONS: UserspaceOptions = {
  tableName: 'kube-proxy-userspace',
  natPriority: NAT_PRIORITY,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  limits: DEFAULT_LIMITS,
}

/** A name of a proxy has no dot: no table of nftables mode is called so. */
export function tableNameOf(proxy: string | undefined): string {
  const { tableName } = DEFAULT_USERSPACE_OPTIONS
  return proxy === undefined ? tableName : `${tableName}.${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  return table.startsWith(prefix) ? table.slice(prefix.length) : undefined
}
