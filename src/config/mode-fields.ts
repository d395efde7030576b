import type { ProxyMode } from './config.ts'
import type { PathOf } from './fields.ts'
import type { Settings } from './settings.ts'

/** What every mode has, and keeps in a section of its own or of another: where it stands in the file, and its flags. */
export interface ModeFields {
  readonly masqueradeAll: PathOf<'bool'>
  readonly masqueradeBit: PathOf<'int32'>
  readonly minSyncPeriod: PathOf<'duration'>
  readonly syncPeriod: PathOf<'duration'>
  /** Flags of kube-proxy that set the two periods in this mode, and in no other. */
  readonly periodFlags: { readonly min: string; readonly sync: string }
}

/** kube-proxy's userspace mode, while there was one, had no section of its own either. */
const OF_IPTABLES: ModeFields = {
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'iptables.minSyncPeriod',
  syncPeriod: 'iptables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
}

/** kube-proxy's conversion between its own configuration and v1alpha1: IPVS shares what iptables says of masquerading. */
export const MODE_FIELDS: Readonly<Record<ProxyMode, ModeFields>> = {
  nftables: {
    masqueradeAll: 'nftables.masqueradeAll',
    masqueradeBit: 'nftables.masqueradeBit',
    minSyncPeriod: 'nftables.minSyncPeriod',
    syncPeriod: 'nftables.syncPeriod',
    periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
  },
  ipvs: {
    masqueradeAll: 'iptables.masqueradeAll',
    masqueradeBit: 'iptables.masqueradeBit',
    minSyncPeriod: 'ipvs.minSyncPeriod',
    syncPeriod: 'ipvs.syncPeriod',
    periodFlags: { min: 'ipvs-min-sync-period', sync: 'ipvs-sync-period' },
  },
  iptables: OF_IPTABLES,
  userspace: OF_IPTABLES,
}

export const PROXY_MODES: readonly ProxyMode[] = ['nftables', 'ipvs', 'iptables', 'userspace']

/** Gives the requested mode; nftables for an unknown one, which readConfig reports. */
export function modeOf(settings: Settings): ProxyMode {
  const mode = settings.text('mode')
  return PROXY_MODES.find(each => each === mode) ?? 'nftables'
}

export function modeFieldsOf(settings: Settings): ModeFields {
  return MODE_FIELDS[modeOf(settings)]
}
