import { type Family, formatIpPort } from '../../base/ip.ts'
import { IP_VS_SVC_F_PERSISTENT } from './constants.ts'
import type { RealServer, ServerKey, VirtualAddress, VirtualServer } from './state.ts'

/** `TCP 10.96.0.1:443`, `UDP [2001:db8::1]:53`. */
export function serverKey({ protocol, ip, port }: VirtualAddress): ServerKey {
  return `${protocol} ${formatIpPort(ip, port)}`
}

/** `10.0.0.1:80`: unique among the real servers of one virtual server. */
export function destinationKey({ ip, port }: Pick<RealServer, 'ip' | 'port'>): string {
  return formatIpPort(ip, port)
}

/** Returns whether a client keeps its real server until the timeout expires. */
export function isPersistent({ flags }: VirtualServer): boolean {
  return (flags & IP_VS_SVC_F_PERSISTENT) !== 0
}

/** The netmask for persistence by whole addresses, in the form of VirtualServer. */
export const WHOLE_ADDRESS: Readonly<Record<Family, number>> = { IPv4: 0xffff_ffff, IPv6: 128 }

/** Returns whether two virtual servers with the same address have the same settings. */
export function sameSettings(a: VirtualServer, b: VirtualServer): boolean {
  return (
    a === b ||
    (a.scheduler === b.scheduler &&
      a.flags === b.flags &&
      a.timeoutS === b.timeoutS &&
      a.netmask === b.netmask)
  )
}

/** Returns whether two real servers with the same address have the same settings. */
export function sameDestination(a: RealServer, b: RealServer): boolean {
  return a === b || (a.weight === b.weight && a.forwarding === b.forwarding)
}
