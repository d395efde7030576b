import { cidrOf, contains, formatCidr } from '../../base/cidr.ts'
import type { Ip } from '../../base/ip.ts'
import type { LinkAddress } from './list-addresses.ts'

/**
 * Returns the addresses of the kernel's list that interfaces were configured with, and `nodeIps`, the addresses of
 * the Node object. All other addresses are VIPs, which keepalived and similar programs add and remove. VIPs are: /32
 * and /128 addresses, all but the oldest address of a prefix, and all other addresses of a prefix that contains an
 * address of the Node. An ambiguous address is a VIP.
 */
export function ownAddresses(all: readonly LinkAddress[], nodeIps: readonly Ip[]): ReadonlySet<Ip> {
  const nodes = nodeIps.map(nodeIp => ({ nodeIp, at: all.filter(({ ip }) => ip === nodeIp) }))
  const own = new Map<string, Ip>()
  for (const { ip, index, prefixLength, secondary } of all) {
    if (prefixLength === ip.length * 8 || secondary) continue
    const prefix = cidrOf(ip, prefixLength)
    // If the Node's address left its interface for a moment, the kernel promoted a VIP.
    const isNodes = nodes.some(
      ({ nodeIp, at }) =>
        contains(prefix, nodeIp) && (at.length === 0 || at.some(address => address.index === index)),
    )
    // The last one of several wins: the kernel lists the newest IPv6 address first (ipv6_link_dev_addr).
    if (!isNodes) own.set(`${index} ${formatCidr(prefix)}`, ip)
  }
  return new Set([...own.values(), ...nodeIps])
}
