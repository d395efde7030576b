import type { Family } from '../../base/ip.ts'
import type { ModeMetric } from '../../telemetry/mode-metrics.ts'

/** What this mode has written, and what the kernel has counted for it. */
export interface IptablesNumbers {
  readonly rules: readonly TableRules[]
  /** Batches that the kernel rejected since the mode began: full syncs and partial ones. */
  readonly failures: { readonly full: number; readonly partial: number }
  /** Packets in state INVALID that were dropped; undefined where the kernel has no counter for them. */
  readonly invalidDropped: number | undefined
  /** Packets that were accepted for node ports at loopback. */
  readonly localhostAccepted: number | undefined
}

export interface TableRules {
  readonly table: string
  readonly family: Family
  readonly total: number
  readonly last: number
}

/**
 * Makes kube-proxy's metrics of this mode, with its names, types and labels (pkg/proxy/metrics/metrics.go). As there,
 * a metric that the kernel does not count is absent. Pure.
 */
export function iptablesMetrics(
  { rules, failures, invalidDropped, localhostAccepted }: IptablesNumbers,
  families: readonly Family[],
): readonly ModeMetric[] {
  const byTable = (name: string, help: string, value: (each: TableRules) => number): ModeMetric => ({
    name: `kubeproxy_sync_proxy_rules_iptables_${name}`,
    help,
    kind: 'gauge',
    labelNames: ['table', 'ip_family'],
    values: rules.map(each => ({
      labels: { table: each.table, ip_family: each.family },
      value: value(each),
    })),
  })
  const byFamily = (name: string, help: string, value: number): ModeMetric => ({
    name: `kubeproxy_sync_proxy_rules_iptables_${name}`,
    help,
    kind: 'counter',
    labelNames: ['ip_family'],
    values: families.map(family => ({ labels: { ip_family: family }, value })),
  })
  const packets = (name: string, help: string, value: number | undefined): readonly ModeMetric[] => {
    if (value === undefined) return []
    const values = [{ labels: {}, value }]
    return [{ name: `kubeproxy_iptables_${name}`, help, kind: 'counter', labelNames: [], values }]
  }
  return [
    byTable('total', 'Rules in an iptables table that kprobe owns.', ({ total }) => total),
    byTable('last', 'Rules that the last batch wrote into an iptables table.', ({ last }) => last),
    byFamily('restore_failures_total', 'Full syncs that the kernel rejected.', failures.full),
    byFamily('partial_restore_failures_total', 'Partial syncs that the kernel rejected.', failures.partial),
    ...packets(
      'ct_state_invalid_dropped_packets_total',
      'Packets in conntrack state INVALID that were dropped.',
      invalidDropped,
    ),
    ...packets(
      'localhost_nodeports_accepted_packets_total',
      'Packets to node ports at loopback addresses that were accepted.',
      localhostAccepted,
    ),
  ]
}
