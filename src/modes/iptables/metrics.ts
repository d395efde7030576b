import type { Clock } from '../../base/clock.ts'
import type { Family } from '../../base/ip.ts'
import { NfacctClient } from '../../kernel/nfacct/client.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { builtinHook, placeOfTable, type ScopeOperations, tableKey } from '../../kernel/xt/scope.ts'
import { type ReadRows, readCounter, readGauge } from '../../telemetry/metric-set.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/tables.ts'
import type { KernelSockets } from '../mode.ts'
import { type ChainNames, isOurChain } from '../xt-common/layout.ts'
import { MARTIAN } from '../xt-common/rules-parts.ts'
import { type IptablesOptions, NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED } from './settings.ts'

/** The rules that this mode has written, and the kernel's counts for it. */
export interface IptablesNumbers {
  readonly rules: readonly TableRules[]
  /** Batches that the kernel rejected since the mode began: full syncs and partial ones. */
  readonly failures: { readonly full: number; readonly partial: number }
  /** Packets in state INVALID that were dropped; undefined where the kernel has no counter for them. */
  readonly invalidDropped: number | undefined
  /** Packets that were accepted for node ports at loopback. */
  readonly localhostAccepted: number | undefined
}

interface TableRules {
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
): ReadRows {
  const byTable = (count: 'total' | 'last') =>
    rules.map(each => [{ table: each.table, ip_family: each.family }, each[count]] as const)
  const byFamily = (value: number) => families.map(ip_family => [{ ip_family }, value] as const)
  return {
    kubeproxy_sync_proxy_rules_iptables_total: readGauge(
      'Rules in an iptables table that kprobe owns.',
      () => byTable('total'),
      'table',
      'ip_family',
    ),
    kubeproxy_sync_proxy_rules_iptables_last: readGauge(
      'Rules that the last batch wrote into an iptables table.',
      () => byTable('last'),
      'table',
      'ip_family',
    ),
    kubeproxy_sync_proxy_rules_iptables_restore_failures_total: readCounter(
      'Full syncs that the kernel rejected.',
      () => byFamily(failures.full),
      'ip_family',
    ),
    kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total: readCounter(
      'Partial syncs that the kernel rejected.',
      () => byFamily(failures.partial),
      'ip_family',
    ),
    ...(invalidDropped !== undefined && {
      kubeproxy_iptables_ct_state_invalid_dropped_packets_total: readCounter(
        'Packets in conntrack state INVALID that were dropped.',
        () => invalidDropped,
      ),
    }),
    ...(localhostAccepted !== undefined && {
      kubeproxy_iptables_localhost_nodeports_accepted_packets_total: readCounter(
        'Packets to node ports at loopback addresses that were accepted.',
        () => localhostAccepted,
      ),
    }),
  }
}

const TABLES = ['filter', 'nat'] as const

/**
 * Counts the rules in the kernel, and the batches that it rejected. As in kube-proxy's count, jumps in built-in
 * chains are not included, and the rule of KUBE-FIREWALL is.
 */
export class RuleCounts {
  readonly #names: ChainNames
  /** By `ip nat`. */
  #total = new Map<string, number>()
  #last = new Map<string, number>()
  #failures: IptablesNumbers['failures'] = { full: 0, partial: 0 }
  /** Returns whether the whole state was read since the last committed batch: the next batch is then a full sync. */
  #isFull = false

  constructor(names: ChainNames) {
    this.#names = names
  }

  observed(observed: Observed): void {
    this.#isFull = true
    this.#total = new Map()
    for (const [key, { chains }] of observed) {
      const place = placeOfTable(key)
      if (place === undefined) continue
      for (const { name, rules } of chains.values())
        if (isOurChain(this.#names, place.table, name)) grow(this.#total, key, rules.length)
        else if (name === this.#names.firewall)
          for (const { compiled } of rules) if (isMartian(compiled, place.family)) grow(this.#total, key, 1)
    }
  }

  committed(operations: ScopeOperations): void {
    this.#isFull = false
    this.#last = new Map()
    for (const operation of operations) {
      if (!('chain' in operation)) continue
      const { verb } = operation
      const added = verb === 'add-rule' || verb === 'insert-rule' ? 1 : 0
      const removed = verb === 'flush-chain' ? operation.rules : verb === 'delete-rule' ? 1 : 0
      if (added + removed === 0) continue
      const key = tableKey(operation)
      grow(this.#last, key, added)
      const isBase = builtinHook(operation.table, operation.chain) !== undefined
      if (!isBase) grow(this.#total, key, added - removed)
    }
  }

  rejected(): void {
    const { full, partial } = this.#failures
    this.#failures = this.#isFull ? { full: full + 1, partial } : { full, partial: partial + 1 }
  }

  numbers(): Pick<IptablesNumbers, 'rules' | 'failures'> {
    const rules = NFT_FAMILIES.flatMap(family =>
      TABLES.map((table): TableRules => {
        const key = `${family} ${table}`
        const counts = { total: this.#total.get(key) ?? 0, last: this.#last.get(key) ?? 0 }
        return { table, family: LAYOUTS[family].model, ...counts }
      }),
    )
    return { rules, failures: this.#failures }
  }
}

function isMartian(compiled: string, family: NftFamily): boolean {
  return printRule(readRule(compiled, family), family) === printRule(MARTIAN, family)
}

function grow(counts: Map<string, number>, key: string, by: number): void {
  counts.set(key, (counts.get(key) ?? 0) + by)
}

/** The counters of kube-proxy's rules, by its names. */
interface NfacctCounters {
  /** The counters that exist. Callers read this again each time, because ensure() changes it. */
  readonly available: IptablesOptions['nfacct']
  /** Creates the counters where the kernel supports them. Throws NetlinkError. */
  ensure(): void
  /** Reads the packets that each counter has counted. Throws NetlinkError. */
  read(): Pick<IptablesNumbers, 'invalidDropped' | 'localhostAccepted'>
  /** Removes the counters that no rule uses. Throws NetlinkError. */
  remove(): void
  close(): Promise<void>
}

/**
 * Opens the counters. `localhost` means that node ports are served at loopback, which the second counter is for.
 * Throws SystemError and NetlinkError, and leaves the socket to openAll then.
 */
export function openNfacctCounters(
  { netfilter }: Pick<KernelSockets, 'netfilter'>,
  clock: Clock,
  localhost: boolean,
): NfacctCounters {
  const client = new NfacctClient({ transport: netfilter(), clock })
  const packetsOf = (name: string): number | undefined => {
    const packets = client.read(name)?.packets
    return packets === undefined ? undefined : Number(packets)
  }
  const available = {
    invalidDropped: packetsOf(NFACCT_INVALID_DROPPED) !== undefined,
    localhostAccepted: localhost && packetsOf(NFACCT_LOCALHOST_ACCEPTED) !== undefined,
  }
  return {
    available,
    ensure() {
      available.invalidDropped = client.ensure(NFACCT_INVALID_DROPPED)
      available.localhostAccepted = localhost && client.ensure(NFACCT_LOCALHOST_ACCEPTED)
    },
    read: () => ({
      invalidDropped: packetsOf(NFACCT_INVALID_DROPPED),
      localhostAccepted: packetsOf(NFACCT_LOCALHOST_ACCEPTED),
    }),
    remove() {
      for (const name of [NFACCT_INVALID_DROPPED, NFACCT_LOCALHOST_ACCEPTED]) client.delete(name)
    },
    close: () => client.close(),
  }
}

/**
 * The counters of a named proxy: none. Counters belong to the network namespace and count for the unnamed proxy. If
 * rules of another proxy used them, the unnamed one could not remove them.
 */
export const NO_NFACCT_COUNTERS: NfacctCounters = {
  available: { invalidDropped: false, localhostAccepted: false },
  ensure: () => undefined,
  read: () => ({ invalidDropped: undefined, localhostAccepted: undefined }),
  remove: () => undefined,
  close: () => Promise.resolve(),
}
