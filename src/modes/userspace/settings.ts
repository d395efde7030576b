import { IPTABLES_SECTION } from '../common/iptables-section.ts'
import type { ModeSettings } from '../mode.ts'

export const USERSPACE_SETTINGS: ModeSettings = {
  // kube-proxy's userspace mode, while there was one, had no section of its own either.
  ...IPTABLES_SECTION,
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
}
