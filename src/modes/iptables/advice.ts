import { count } from '../../base/text.ts'

/** The time that the kernel needs for a new connection, in microseconds: docs/benchmarks.md, at 1,000 to 30,000 Services. */
const COSTS = { nftables: 4, iptables: 6, service: 0.0137 } as const

/**
 * Compares the cost of a new connection in iptables mode and nftables mode. kubeadm 1.37 writes `mode: iptables` where the
 * mode was empty (kubernetes#139777), so that a node may have this mode without a decision for it.
 */
export function iptablesAdvice(services: number): string {
  const spentUs = Math.round(COSTS.iptables + services * COSTS.service)
  return `with ${count(services, 'Service')}, a new connection costs the kernel about ${spentUs} µs in iptables mode and ${COSTS.nftables} µs in nftables mode; to change, set mode: nftables (docs/how-to/move-a-node.md)`
}
