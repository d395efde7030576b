import type { IptablesConfig } from '../../config/config.ts'
import { type FlagSpec, grouped } from '../../config/flag.ts'
import type { FlagReader } from '../../config/flag-reader.ts'
import type { Settings } from '../../config/settings.ts'
import { IPTABLES_SECTION } from '../common/iptables-section.ts'
import type { ModeSettings } from '../mode.ts'

const GROUP = 'iptables mode'

/** Flags of kube-proxy, which are checked in every mode, as in kube-proxy. */
const FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'iptables-masquerade-bit',
    kind: 'integer',
    placeholder: 'BIT',
    default: '14',
    help: "kube-proxy's name for --masquerade-bit, in every mode except nftables, and if --proxy-mode is not set",
  },
  {
    name: 'iptables-localhost-nodeports',
    kind: 'bool',
    default: 'true',
    help: 'accept NodePort traffic on 127.0.0.1, unless --nodeport-addresses excludes it; sets route_localnet=1',
  },
])

const PACE_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'iptables-min-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '20ms',
    help: "kube-proxy's name for --min-sync-period, in every mode except IPVS",
  },
  {
    name: 'iptables-sync-period',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '10m',
    help: "kube-proxy's name for --sync-period, in every mode except IPVS",
  },
])

const OWN_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'iptables-optimize',
    kind: 'bool',
    help: "fewer rules per packet, same result; chains differ from kube-proxy's",
  },
])

export const IPTABLES_SETTINGS: ModeSettings = {
  ...IPTABLES_SECTION,
  // nf_tables also reports changes of the tables of iptables.
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
  flags: FLAGS,
  paceFlags: PACE_FLAGS,
  ownFlags: OWN_FLAGS,
  flagTexts: ({ iptables }) => ({
    'iptables-localhost-nodeports': `${iptables.localhostNodePorts}`,
    'iptables-optimize': `${iptables.optimize}`,
  }),
}

/** Reads the options of iptables mode. Only the flag sets `optimize`, also with --config. */
export function readIptablesOptions(settings: Settings, reader: FlagReader): IptablesConfig {
  return {
    localhostNodePorts: settings.bool('iptables.localhostNodePorts'),
    optimize: reader.bool('iptables-optimize'),
  }
}
