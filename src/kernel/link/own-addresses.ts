import { cidrOf, contains, formatCidr } from '../../base/cidr.ts'
import type { Ip } from '../../base/ip.ts'
import type { LinkAddress } from './list-addresses.ts'

/**
 * The addresses that the interfaces were configured with, of the kernel's list, and `nodeIps`, the addresses of the Node
 * object. All others are VIPs, which keepalived and its like add and remove: those of /32 and /128, all but the oldest one
 * of a prefix, and all others of a prefix that an address of the Node is in. An address in doubt is a VIP.
 */
export function ownAddresses(all: readonly LinkAddress[], nodeIps: readonly Ip[]): ReadonlySet<Ip> {
  const nodes = nodeIps.map(nodeIp => ({ nodeIp, at: all.filter(({ ip }) => ip === nodeIp) }))
  const own = new Map<string, Ip>()
  for (const { ip, index, prefixLength, secondary } of all) {
    if (prefixLength === ip.length * 8 || secondary) continue
    const prefix = cidrOf(ip, prefixLength)
    // The Node's address may have left its interface for a moment, so that a VIP was promoted.
    const isNodes = nodes.some(
      ({ nodeIp, at }) =>
        contains(prefix, nodeIp) && (at.length === 0 || at.some(address => address.index === index)),
    )
    // Of several, the last one stays: the kernel lists the newest address of IPv6 first (ipv6_link_dev_addr).
    if (!isNodes) own.set(`${index} ${formatCidr(prefix)}`, ip)
  }
  return new Set([...own.values(), ...nodeIps])
}
