import type { Config } from '../../config/config.ts'
import { IPTABLES_SECTION } from '../common/kube-proxy.ts'
import { DEFAULT_LIMITS, type RelayLimits } from '../common/relay/context.ts'
import { type Detectors, detectorsOf, NAT_PRIORITY, natPriorityOf } from '../common/rules.ts'
import type { ModeSettings } from '../mode.ts'

export const USERSPACE_SETTINGS: ModeSettings = {
  // kube-proxy's userspace mode, while there was one, had no section of its own either.
  ...IPTABLES_SECTION,
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
}

export interface UserspaceOptions {
  /** The name of both tables, `ip` and `ip6`. */
  readonly tableName: string
  /** The priority of the hooks that translate destinations: NAT_PRIORITY unless another proxy serves this node too. */
  readonly natPriority: number
  /** Distinguishes pods, which policy Local sends to endpoints everywhere, from other clients. */
  readonly detector: Detectors
  readonly limits: RelayLimits
}

export const DEFAULT_USERSPACE_OPTIONS: UserspaceOptions = {
  tableName: 'kube-proxy-userspace',
  natPriority: NAT_PRIORITY,
  detector: { IPv4: { kind: 'node-cidr' }, IPv6: { kind: 'node-cidr' } },
  limits: DEFAULT_LIMITS,
}

/** Gives the table name of a proxy. Names of proxies have no dot, so no table of nftables mode has this name. */
export function tableNameOf(proxy: string | undefined): string {
  const { tableName } = DEFAULT_USERSPACE_OPTIONS
  return proxy === undefined ? tableName : `${tableName}.${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  return table.startsWith(prefix) ? table.slice(prefix.length) : undefined
}

export function userspaceOptions({ detectLocal, serviceProxyName }: Config): UserspaceOptions {
  const tableName = tableNameOf(serviceProxyName)
  const natPriority = natPriorityOf(serviceProxyName)
  return { ...DEFAULT_USERSPACE_OPTIONS, tableName, natPriority, detector: detectorsOf(detectLocal) }
}
