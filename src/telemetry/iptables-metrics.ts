import type { Registry } from 'prom-client'
import type { Family } from '../base/ip.ts'
import { metricSet } from './metric-set.ts'

/** What iptables mode has written, and what the kernel has counted for it. */
export interface IptablesNumbers {
  readonly rules: readonly TableRules[]
  /** Batches that the kernel did not take, since the mode began: those about everything, and those about what changed. */
  readonly failures: { readonly full: number; readonly partial: number }
  /** Packets in state INVALID that were dropped; undefined where the kernel has no counter for them. */
  readonly invalidDropped: number | undefined
  /** Packets that were accepted for NodePorts at loopback. */
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

/** kube-proxy's metrics of this mode, by their names, types and labels (pkg/proxy/metrics/metrics.go). */
export class IptablesMetrics {
  readonly #registry: Registry
  readonly #families: readonly Family[]
  #numbers: IptablesNumbers | undefined

  constructor(registry: Registry, families: readonly Family[]) {
    this.#registry = registry
    this.#families = families
  }

  /** Undefined while another mode is in use, which has none of them. */
  take(numbers: IptablesNumbers | undefined): void {
    const before = this.#numbers
    this.#numbers = numbers
    if (numbers === undefined && before !== undefined)
      for (const name of NAMES) this.#registry.removeSingleMetric(`kubeproxy_${name}`)
    else if (numbers !== undefined && before === undefined) this.#add()
  }

  #add(): void {
    const { levels, filled } = metricSet(this.#registry, 'kubeproxy_')
    const byTable = ['table', 'ip_family'] as const
    const [total, last, failures, partial, invalid, localhost] = NAMES
    levels(total, "kprobe's rules in a table of iptables.", {
      labelNames: byTable,
      fill: gauge => {
        for (const each of this.#numbers?.rules ?? []) gauge.set(labelsOf(each), each.total)
      },
    })
    levels(last, 'Rules that the last batch wrote into a table of iptables.', {
      labelNames: byTable,
      fill: gauge => {
        for (const each of this.#numbers?.rules ?? []) gauge.set(labelsOf(each), each.last)
      },
    })
    const labelNames = ['ip_family'] as const
    filled(failures, 'Batches with the whole state that the kernel rejected.', {
      labelNames,
      fill: counter => {
        for (const family of this.#families)
          counter.inc({ ip_family: family }, this.#numbers?.failures.full ?? 0)
      },
    })
    filled(partial, 'Batches with changes that the kernel rejected.', {
      labelNames,
      fill: counter => {
        for (const family of this.#families)
          counter.inc({ ip_family: family }, this.#numbers?.failures.partial ?? 0)
      },
    })
    // As in kube-proxy, what the kernel does not count is not there at all.
    if (this.#numbers?.invalidDropped !== undefined)
      filled(invalid, 'Packets dropped because connection tracking calls them invalid.', {
        labelNames: [],
        fill: counter => counter.inc(this.#numbers?.invalidDropped ?? 0),
      })
    if (this.#numbers?.localhostAccepted !== undefined)
      filled(localhost, 'Packets accepted for NodePorts at loopback addresses.', {
        labelNames: [],
        fill: counter => counter.inc(this.#numbers?.localhostAccepted ?? 0),
      })
  }
}

const NAMES = [
  'sync_proxy_rules_iptables_total',
  'sync_proxy_rules_iptables_last',
  'sync_proxy_rules_iptables_restore_failures_total',
  'sync_proxy_rules_iptables_partial_restore_failures_total',
  'iptables_ct_state_invalid_dropped_packets_total',
  'iptables_localhost_nodeports_accepted_packets_total',
] as const

function labelsOf({ table, family }: TableRules): { readonly table: string; readonly ip_family: Family } {
  return { table, ip_family: family }
}
