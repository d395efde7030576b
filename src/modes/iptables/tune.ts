import { contains } from '../../base/cidr.ts'
import { familyOf, isLoopback } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import type { TuneOptions, TuneReport } from '../../kernel/sysctl/files.ts'
import { tuneSysctls, wantedSysctl } from '../../kernel/sysctl/switches.ts'
import { missingFails } from '../common/tune.ts'

/** Lets packets from 127.0.0.1 leave by a device, as those of a connection to a node port there do. */
export const ROUTE_LOCALNET = wantedSysctl('net/ipv4/conf/all/route_localnet', 1)

export async function tuneIptables(config: Config, options: TuneOptions): Promise<TuneReport> {
  const wanted = answersAtLoopback(config) ? [ROUTE_LOCALNET] : []
  return missingFails(await tuneSysctls(wanted, options))
}

/** The first address of 127.0.0.0/8: a range that contains it contains the whole prefix. */
const LOOPBACK_START = '\x7f\0\0\0'

/**
 * Whether node ports are served at 127.0.0.1 in iptables mode: it is configured, and the node-port addresses
 * include loopback. They are never served at ::1, which cannot be translated.
 */
export function answersAtLoopback({ iptables, nodePortAddresses }: Config): boolean {
  if (!iptables.localhostNodePorts || nodePortAddresses.primary) return false
  const cidrs = nodePortAddresses.cidrs.filter(({ ip }) => familyOf(ip) === 'IPv4')
  return cidrs.length === 0 || cidrs.some(cidr => isLoopback(cidr.ip) || contains(cidr, LOOPBACK_START))
}
