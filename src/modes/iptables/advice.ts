import { count } from '../../base/text.ts'
import type { Config } from '../../config/config.ts'

/**
 * The time that the kernel needs for a first packet, in microseconds: in iptables mode for the last Service of the list, from
 * measurements at 1,000 and 10,000 Services (docs/decisions/0017-iptables-over-netlink.md).
 */
const COSTS = { nftables: 4, iptables: 5, service: 0.0045 } as const

/**
 * Compares the cost of a new connection in iptables mode and nftables mode; `--iptables-optimize` has no list to walk. kubeadm 1.37 writes `mode: iptables` where the
 * mode was empty (kubernetes#139777), so that a node may have this mode without a decision for it.
 */
export function iptablesAdvice(
  { iptables: { optimize } }: Pick<Config, 'iptables'>,
  services: number,
): string | undefined {
  if (optimize) return undefined
  const spentUs = Math.round(COSTS.iptables + services * COSTS.service)
  return `with ${count(services, 'Service')}, a new connection costs the kernel up to ${spentUs} µs in iptables mode and ${COSTS.nftables} µs in nftables mode; to change, set mode: nftables (docs/how-to/move-a-node.md)`
}
