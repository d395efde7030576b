import { IPTABLES_SECTION } from './iptables-section.ts'
import type { ModeRow, ModeSettings } from './mode-row.ts'

const SETTINGS: ModeSettings = {
  // kube-proxy's userspace mode, while there was one, had no section of its own either.
  ...IPTABLES_SECTION,
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
}

const TABLE = 'kube-proxy-userspace'

/** Gives the table name of a proxy. Names of proxies have no dot, so no table of nftables mode has this name. */
export function tableNameOf(proxy: string | undefined): string {
  return proxy === undefined ? TABLE : `${TABLE}.${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  return table.startsWith(prefix) ? table.slice(prefix.length) : undefined
}

export const USERSPACE: ModeRow = {
  name: 'userspace',
  title: 'userspace',
  purpose: 'a relay for debugging',
  settings: SETTINGS,
  tableName: tableNameOf,
  proxyOfTable,
  forwards: true,
}
