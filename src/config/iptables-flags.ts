import type { IptablesConfig } from './config.ts'
import { type FlagSpec, grouped } from './flag.ts'
import type { FlagReader } from './flag-reader.ts'

/** Options of iptables mode that kube-proxy does not have. Only flags set them, also with --config. */
export type IptablesFlags = Pick<IptablesConfig, 'optimize'>

const GROUP = 'iptables mode'

/** Flags of kube-proxy, which are checked in every mode, as in kube-proxy. */
export const IPTABLES_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
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

/** Flags of kube-proxy for the pace of syncs. */
export const IPTABLES_PACE_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
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

export const OWN_IPTABLES_FLAGS: readonly FlagSpec[] = grouped(GROUP, [
  {
    name: 'iptables-optimize',
    kind: 'bool',
    default: 'false',
    help: "fewer rules per packet, same result; chains differ from kube-proxy's",
  },
])

export function readIptablesFlags(reader: FlagReader): IptablesFlags {
  return { optimize: reader.bool('iptables-optimize') }
}
