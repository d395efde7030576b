import { type Family, formatIpPort } from '../../base/ip.ts'
import type { RealServer, ServerKey, VirtualAddress } from './state.ts'

/** `TCP 10.96.0.1:443`, `UDP [2001:db8::1]:53`. */
export function serverKey({ protocol, ip, port }: VirtualAddress): ServerKey {
  return `${protocol} ${formatIpPort(ip, port)}`
}

/** `10.0.0.1:80`: unique among the real servers of one virtual server. */
export function destinationKey({ ip, port }: Pick<RealServer, 'ip' | 'port'>): string {
  return formatIpPort(ip, port)
}

/** The netmask for persistence by whole addresses, in the form of VirtualServer. */
export const WHOLE_ADDRESS: Readonly<Record<Family, number>> = { IPv4: 0xffff_ffff, IPv6: 128 }
