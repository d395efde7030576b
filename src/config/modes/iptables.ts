import type { IptablesConfig } from '../config.ts'
import { type FlagReader, flagGroup } from '../flag.ts'
import type { Settings } from '../settings.ts'
import { IPTABLES_SECTION } from './iptables-section.ts'
import { LOG_FLAG, logFlagText } from './log-rejects.ts'
import type { ModeRow, ModeSettings } from './mode-row.ts'

const GROUP = 'iptables mode'

/** Flags of kube-proxy, which are checked in every mode, as in kube-proxy. */
const FLAGS = flagGroup(GROUP, {
  '--iptables-masquerade-bit BIT = 14':
    "kube-proxy's name for --masquerade-bit, in every mode except nftables, and if --proxy-mode is not set",
  '--iptables-localhost-nodeports = true':
    'accept NodePort traffic on 127.0.0.1, unless --nodeport-addresses excludes it; sets route_localnet=1',
})

const PACE_FLAGS = flagGroup(GROUP, {
  '--iptables-min-sync-period DURATION = 20ms':
    "kube-proxy's name for --min-sync-period, in every mode except IPVS",
  '--iptables-sync-period DURATION = 10m': "kube-proxy's name for --sync-period, in every mode except IPVS",
})

const OWN_FLAGS = flagGroup(GROUP, {
  '--iptables-optimize': "fewer rules per packet, same result; chains differ from kube-proxy's",
})

const SETTINGS: ModeSettings = {
  ...IPTABLES_SECTION,
  // nf_tables also reports changes of the tables of iptables.
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
  flags: FLAGS,
  paceFlags: PACE_FLAGS,
  ownFlags: [...OWN_FLAGS, LOG_FLAG],
  flagTexts: ({ iptables, logRejects }) => ({
    ...logFlagText({ logRejects }),
    'iptables-localhost-nodeports': `${iptables.localhostNodePorts}`,
    'iptables-optimize': `${iptables.optimize}`,
  }),
}

export function readIptablesOptions(settings: Settings, reader: FlagReader): IptablesConfig {
  return {
    localhostNodePorts: settings.bool('iptables.localhostNodePorts'),
    optimize: reader.bool('iptables-optimize'),
  }
}

export const IPTABLES: ModeRow = {
  name: 'iptables',
  title: 'iptables',
  settings: SETTINGS,
  // One rule depends on tcpBeLiberal.
  fields: ['iptables', 'conntrack'],
  tableName: () => undefined,
  isProvable: true,
}
