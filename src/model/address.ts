import { type Cidr, parseCidr, whyNotCidr } from '../base/cidr.ts'
import {
  type Family,
  familyOf,
  type Ip,
  isBroadcast,
  isIpv4Mapped,
  isLinkLocal,
  isLoopback,
  isMulticast,
  isUnspecified,
  parseIp,
  whyNotIp,
} from '../base/ip.ts'

/**
 * Why no Service may catch traffic to this address or send traffic to it, or undefined. Sources: CVE-2020-8554
 * (addresses that belong to the node or its cloud), CVE-2021-25736 (the empty address), CVE-2021-25740 (endpoints that
 * mean something else on every node), CVE-2021-29923 (text that two programs read differently).
 */
function dangerOf(ip: Ip): string | undefined {
  return isPlainV4(ip) ? undefined : dangerIn(ip)
}

/** Most addresses: what is dangerous in IPv4 shows in the first byte, 0, 127, 169 or 224 and above. */
function isPlainV4(ip: Ip): boolean {
  const first = ip.charCodeAt(0)
  return ip.length === 4 && first > 0 && first < 224 && first !== 127 && first !== 169
}

function dangerIn(ip: Ip): string | undefined {
  if (isUnspecified(ip)) return 'the unspecified address, which stands for every address'
  if (isLoopback(ip)) return 'a loopback address, which every node has for itself'
  if (isLinkLocal(ip))
    return 'a link-local address, which belongs to the network this node is on (or its cloud metadata)'
  if (isMulticast(ip)) return 'a multicast address; Services have unicast addresses'
  if (isBroadcast(ip)) return 'the broadcast address; Services have unicast addresses'
  if (isIpv4Mapped(ip))
    return 'an IPv4-mapped IPv6 address, which programs read as either family; write plain IPv4'
  return undefined
}

/** The address an untrusted value stands for, or undefined; whyNotAddress then says why. */
export function readAddress(value: unknown, family?: Family): Ip | undefined {
  const ip = typeof value === 'string' ? parseIp(value) : undefined
  if (ip === undefined || dangerOf(ip) !== undefined) return undefined
  return family === undefined || familyOf(ip) === family ? ip : undefined
}

export function whyNotAddress(value: unknown, family?: Family): string {
  if (typeof value !== 'string') return 'not text; an IP address is a string'
  const ip = parseIp(value)
  if (ip === undefined) return whyNotIp(value)
  return dangerOf(ip) ?? `an ${familyOf(ip)} address where an ${family ?? 'IP'} one belongs`
}

/** The prefix an untrusted value stands for, or undefined; whyNotPrefix then says why. */
export function readPrefix(value: unknown): Cidr | undefined {
  // Stored objects may carry spaces around ranges: the API server trims before it validates.
  const cidr = typeof value === 'string' ? parseCidr(value.trim()) : undefined
  return cidr === undefined || isMappedPrefix(cidr) ? undefined : cidr
}

export function whyNotPrefix(value: unknown): string {
  if (typeof value !== 'string') return 'not text; a CIDR is a string'
  const cidr = parseCidr(value.trim())
  if (cidr === undefined) return whyNotCidr(value.trim())
  return 'a prefix of IPv4-mapped IPv6 addresses, which programs read as either family; write plain IPv4'
}

function isMappedPrefix(cidr: Cidr): boolean {
  return cidr.bits >= 96 && isIpv4Mapped(cidr.ip)
}
