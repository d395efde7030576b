import { isDnsLabel } from '../../model/fields.ts'
import { familiesAtLocalhost } from '../../model/node-context.ts'
import { type Config, GATE_LOCALHOST } from '../config.ts'
import { LOG_FLAG, logFlagText } from './log-rejects.ts'
import type { ModeRow, ModeSettings } from './mode-row.ts'

const SETTINGS: ModeSettings = {
  masqueradeAll: 'nftables.masqueradeAll',
  masqueradeBit: 'nftables.masqueradeBit',
  minSyncPeriod: 'nftables.minSyncPeriod',
  syncPeriod: 'nftables.syncPeriod',
  defaultSyncPeriod: 600_000_000_000n,
  countsConnections: true,
  balances: true,
  failsOver: true,
  ownFlags: [LOG_FLAG],
  flagTexts: logFlagText,
}

/** Tests whether the feature gate leaves node ports at localhost to the relay. */
export function mayForward({ featureGates }: Pick<Config, 'featureGates'>): boolean {
  return featureGates[GATE_LOCALHOST] !== false
}

const TABLE = 'kube-proxy'

/** Gives the table name of a proxy. It is unique: own-flags.ts refuses names that collide. */
export function tableNameOf(proxy: string | undefined): string {
  return proxy === undefined ? TABLE : `${TABLE}-${proxy}`
}

export function proxyOfTable(table: string): string | undefined {
  const prefix = tableNameOf('')
  const name = table.slice(prefix.length)
  return table.startsWith(prefix) && isDnsLabel(name) ? name : undefined
}

export const NFTABLES: ModeRow = {
  name: 'nftables',
  title: 'nftables',
  settings: SETTINGS,
  tableName: tableNameOf,
  proxyOfTable,
  forwardsSome: config => mayForward(config) && familiesAtLocalhost(config.nodePortAddresses).length > 0,
  isProvable: true,
}
