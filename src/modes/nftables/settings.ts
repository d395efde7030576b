import type { Config, NftablesConfig } from '../../config/config.ts'
import { type FlagReader, type FlagSpec, grouped } from '../../config/flag.ts'
import type { ModeSettings } from '../mode.ts'

const FLAG = 'log-rejects'
const GROUP_MAX = 65_535

const OWN_FLAGS: readonly FlagSpec[] = grouped('nftables mode', [
  {
    name: FLAG,
    kind: 'integer',
    placeholder: 'GROUP',
    default: '0',
    help: `log rejected and dropped packets to this NFLOG group, 1 to ${GROUP_MAX}, for \`kprobe drops\`; 0: log none`,
  },
])

export const NFTABLES_SETTINGS: ModeSettings = {
  masqueradeAll: 'nftables.masqueradeAll',
  masqueradeBit: 'nftables.masqueradeBit',
  minSyncPeriod: 'nftables.minSyncPeriod',
  syncPeriod: 'nftables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
  defaultSyncPeriod: 600_000_000_000n,
  countsConnections: true,
  ownFlags: OWN_FLAGS,
  flagTexts: ({ nftables }: Config) => ({ [FLAG]: `${nftables.logRejects}` }),
}

/** Reads the options of nftables mode. Only the flag sets them, also with --config. */
export function readNftablesOptions(reader: FlagReader): NftablesConfig {
  return { logRejects: reader.integer(FLAG, { min: 0, max: GROUP_MAX, fallback: 0 }) }
}
