import type { Octets } from './octets.ts'

/** An IP address as its 4 or 16 bytes in network order; the length tells the family. */
export type Ip = Octets

export type Family = 'IPv4' | 'IPv6'
export const FAMILIES: readonly Family[] = ['IPv4', 'IPv6']

export function familyOf(ip: Ip): Family {
  return ip.length === 4 ? 'IPv4' : 'IPv6'
}
