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
  /** Rules of ours. */
  readonly total: number
  /** Rules that the last batch wrote. */
  readonly last: number
}

/**
 * Makes kube-proxy's metrics of this mode, with its names, types and labels (pkg/proxy/metrics/metrics.go).
 * Pure.
 */
export function iptablesMetrics(
  { rules, failures, invalidDropped, localhostAccepted }: IptablesNumbers,
  families: readonly Family[],
): readonly ModeMetric[] {
  const byTable = (value: (each: TableRules) => number): Pick<ModeMetric, 'labelNames' | 'values'> => ({
    labelNames: ['table', 'ip_family'],
    values: rules.map(each => ({
      labels: { table: each.table, ip_family: each.family },
      value: value(each),
    })),
  })
  const byFamily = (value: number): Pick<ModeMetric, 'kind' | 'labelNames' | 'values'> => ({
    kind: 'counter',
    labelNames: ['ip_family'],
    values: families.map(family => ({ labels: { ip_family: family }, value })),
  })
  return [
    {
      name: 'kubeproxy_sync_proxy_rules_iptables_total',
      help: "kprobe's rules in a table of iptables.",
      kind: 'gauge',
      ...byTable(({ total }) => total),
    },
    {
      name: 'kubeproxy_sync_proxy_rules_iptables_last',
      help: 'Rules that the last batch wrote into a table of iptables.',
      kind: 'gauge',
      ...byTable(({ last }) => last),
    },
    {
      name: 'kubeproxy_sync_proxy_rules_iptables_restore_failures_total',
      help: 'Batches with the whole state that the kernel rejected.',
      ...byFamily(failures.full),
    },
    {
      name: 'kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total',
      help: 'Batches with changes that the kernel rejected.',
      ...byFamily(failures.partial),
    },
    ...counted({
      name: 'kubeproxy_iptables_ct_state_invalid_dropped_packets_total',
      help: 'Packets dropped because connection tracking calls them invalid.',
      value: invalidDropped,
    }),
    ...counted({
      name: 'kubeproxy_iptables_localhost_nodeports_accepted_packets_total',
      help: 'Packets accepted for NodePorts at loopback addresses.',
      value: localhostAccepted,
    }),
  ]
}

interface Count {
  readonly name: string
  readonly help: string
  readonly value: number | undefined
}

/** Makes a metric. As in kube-proxy, a metric that the kernel does not count is absent. */
function counted({ name, help, value }: Count): readonly ModeMetric[] {
  return value === undefined
    ? []
    : [{ name, help, kind: 'counter', labelNames: [], values: [{ labels: {}, value }] }]
}
