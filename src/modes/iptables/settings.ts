import { OWN_IPTABLES_FLAGS } from '../../config/iptables-flags.ts'
import { IPTABLES_SECTION } from '../common/iptables-section.ts'
import type { ModeSettings } from '../mode.ts'

export const IPTABLES_SETTINGS: ModeSettings = {
  ...IPTABLES_SECTION,
  // nf_tables reports changes of tables of iptables as well.
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
  ownFlags: OWN_IPTABLES_FLAGS,
  flagTexts: ({ iptables }) => ({
    'iptables-localhost-nodeports': `${iptables.localhostNodePorts}`,
    'iptables-optimize': `${iptables.optimize}`,
  }),
}
