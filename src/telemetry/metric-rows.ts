import type { BuildInfo } from '../base/build-info.ts'
import {
  counter,
  exemplified,
  gauge,
  type Handles,
  histogram,
  type Rows,
  readCounter,
  readGauge,
} from './metric-set.ts'
import { PROXY } from './proxy-metrics.ts'

export interface MetricSources {
  readonly build: BuildInfo
  readonly features: readonly FeatureState[]
  /** Seconds since the last message from the part of the source that has been silent longest. */
  readonly staleS: () => number | undefined
  /** Tests whether a source of relays reads from the API server; undefined for other sources. */
  readonly isDirect: () => boolean | undefined
  /** Seconds since a source confirmed the saved state that is served; undefined while none is. */
  readonly servedStaleS: () => number | undefined
  /** Seconds since the last proof read the kernel; undefined where the daemon proves nothing. */
  readonly proofAgeS: () => number | undefined
  /** The connections that met no reply, as the last reading found them; undefined where the daemon does not read. */
  readonly unanswered: () => UnansweredCounts | undefined
  /** Reads the counters of the rules that reject or drop. */
  readonly refused: () => Promise<readonly RefusedPackets[]>
}

/** `service` is `namespace/name:port`; empty for all Services together. */
type RefusedPackets = Readonly<Record<'family' | 'verdict' | 'reason' | 'service', string>> & {
  readonly packets: number
}

export interface UnansweredCounts {
  /** The worst endpoints at the last reading; undefined before the first one. */
  readonly last: { readonly rows: readonly UnansweredCount[] } | undefined
  /** Endpoints that left more than half of their connections without a reply, 5 at least. */
  readonly silent: number
}

/** `service` is `namespace/name:port`. */
type UnansweredCount = Readonly<Record<'service' | 'protocol' | 'endpoint', string>> &
  Readonly<Record<'connections' | 'unanswered', number>> & { readonly isOneWay: boolean }

interface FeatureState {
  readonly name: string
  /** `ALPHA`, `BETA`; empty for general availability. */
  readonly stage: string
  readonly enabled: boolean
}

const WORK = {
  kprobe_commit_generation_retries_total: counter(
    'Commits that the kernel rejected because another program committed first.',
  ),
  kprobe_failed_passes_total: counter('Syncs that failed and were retried.'),
  kprobe_quarantined_services: gauge('Services that the kernel rejects now.'),
  kprobe_family_programmed: gauge(
    'Whether the kernel accepts the rules of this IP family: 1 or 0.',
    'ip_family',
  ),
  kprobe_refusals: gauge(
    'Fields and objects of the source that kprobe ignores now: invalid, not allowed, too large, or without room in memory (500 of each kind at most).',
  ),
  kprobe_services: gauge('Services in the kernel.'),
  kprobe_kube_proxy_beside: gauge('Whether a kube-proxy runs on this node beside kprobe: 1 or 0.'),
  kprobe_node_known: gauge('Whether the Node object of this machine was found: 1 or 0.'),
  kprobe_conntrack_failures_total: counter('Failed passes over the connection-tracking table.', 'ip_family'),
  kprobe_listener_lookups_failed_total: counter(
    'Failed checks of external addresses against the listening sockets of this node.',
  ),
  kprobe_config_changes_total: counter('Configuration changes by result.', 'result'),
  kprobe_commits_total: counter('Commits that the kernel accepted.'),
  kprobe_commit_bytes_total: counter('Bytes of netlink messages in the commits that the kernel accepted.'),
  kprobe_commit_changes_total: counter(
    'Kernel objects that the accepted commits created, changed or removed.',
  ),
  kprobe_commit_duration_seconds: exemplified(
    'Time from sending a commit to its acknowledgement.',
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5],
  ),
  kprobe_foreign_commits_total: counter('Commits to nf_tables by other programs.'),
  kprobe_drift_found_total: counter("Commits by other programs that may have changed kprobe's objects."),
  kprobe_heals_total: counter("Repairs of kprobe's kernel objects."),
  kprobe_healed_objects_total: counter('Kernel objects repaired.'),
  kprobe_drained_endpoints_total: counter(
    'Endpoints removed from IPVS after draining, by outcome.',
    'outcome',
  ),
  kprobe_drain_cut_connections_total: counter(
    'Connections cut because the drain time of their endpoint expired.',
  ),
  kprobe_failed_over_endpoints: gauge(
    'Endpoints that get no new connections from this node because they left some without a reply (kprobe.io/fail-over).',
  ),
  kprobe_fail_overs_total: counter(
    'Endpoints taken out because they left connections without a reply (kprobe.io/fail-over).',
  ),
  kprobe_conntrack_entries: gauge('Tracked connections.'),
  kprobe_conntrack_entries_limit: gauge('Maximum number of tracked connections (nf_conntrack_max).'),
  kprobe_conntrack_lost_total: counter(
    'Packets dropped and entries evicted by connection tracking, by reason.',
    'reason',
  ),
} satisfies Rows<MetricSources>

const SOURCE = {
  kprobe_source_stale_seconds: readGauge(
    'Time since the last message from the part of the source that has been silent longest.',
    ({ staleS }) => staleS(),
  ),
  kprobe_source_direct: readGauge(
    'Whether the node reads from the API server because no relay answers: 1 or 0.',
    ({ isDirect }) => Number(isDirect() === true),
  ),
  kprobe_source_problems_total: counter('Failures of a part of the source.'),
  kprobe_source_lists_total: counter('Complete lists read, by reason.', 'resource', 'reason'),
  kprobe_source_watch_ends_total: counter('Watches that ended, by reason.', 'resource', 'reason'),
  kprobe_source_watch_events_total: counter('Events received by watches that ended.', 'resource'),
  kprobe_source_bytes_total: counter(
    'Bytes received by lists and by watches that ended.',
    'resource',
    'from',
  ),
  kprobe_source_skipped_total: counter('Events and objects ignored, by reason.', 'resource', 'reason'),
  kprobe_source_repaired_objects_total: counter(
    'Objects corrected by a list because their events were lost.',
    'resource',
  ),
  kprobe_source_list_duration_seconds: histogram(
    'Duration of complete lists.',
    [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    'resource',
  ),
} satisfies Rows<MetricSources>

/** The metrics of every Kubernetes component (component-base): build, features, and API requests. */
const COMPONENT = {
  kubernetes_build_info: readGauge(
    'Build of this program; always 1.',
    ({ build }) => [[buildInfo(build), 1]],
    'major',
    'minor',
    'git_version',
    'git_commit',
    'git_tree_state',
    'build_date',
    'go_version',
    'compiler',
    'platform',
  ),
  kprobe_build_info: readGauge(
    'Build of kprobe; always 1.',
    ({ build }) => [[{ ...build, node_version: process.version }, 1]],
    'version',
    'commit',
    'date',
    'node_version',
  ),
  kubernetes_feature_enabled: readGauge(
    'Feature gates: 1 is on.',
    ({ features }) => features.map(({ name, stage, enabled }) => [{ name, stage }, Number(enabled)]),
    'name',
    'stage',
  ),
  rest_client_requests_total: counter('Requests to the API server by status code.', 'code', 'method', 'host'),
  rest_client_request_duration_seconds: histogram(
    'Time from a request to the API server to the status of its response.',
    [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
    'verb',
    'host',
  ),
} satisfies Rows<MetricSources>

/** The metrics of parts that run with a flag only. */
const PARTS = {
  kprobe_saved_state_served: readGauge(
    'Whether the saved state is served because the API server has not answered since the start: 1 or 0.',
    ({ servedStaleS }) => Number(servedStaleS() !== undefined),
  ),
  kprobe_saved_state_stale_seconds: readGauge(
    'Time since the API server confirmed the saved state that is served; 0 while none is.',
    ({ servedStaleS }) => servedStaleS() ?? 0,
  ),
  kprobe_saved_state_refused_total: counter('Files of a saved state that were ignored, by reason.', 'reason'),
  kprobe_saved_state_saves_total: counter('Writes of the saved state, by outcome.', 'outcome'),
  kprobe_saved_state_bytes: gauge('Size of the saved state that was written last.'),
  kprobe_node_condition_status: gauge('Whether the condition of --node-condition is True: 1 or 0.'),
  kprobe_node_condition_patches_total: counter(
    'Attempts to set the condition of the Node, by outcome.',
    'outcome',
  ),
  kprobe_proof_age_seconds: readGauge(
    'Time since the last proof read the kernel, or since the start; later changes are not proved. 0 without --prove and in modes that the daemon does not prove.',
    ({ proofAgeS }) => proofAgeS() ?? 0,
  ),
  kprobe_proof_classes: gauge('Classes of packets in the last proof.'),
  kprobe_proof_differences: gauge(
    'Addresses with port, node ports and other destinations whose packets the kernel treats differently from what Kubernetes specifies.',
  ),
  kprobe_proof_unknown: gauge(
    'Addresses with port, node ports and other destinations whose packets meet rules of other programs that the proof cannot follow, and may differ.',
  ),
  kprobe_proof_duration_seconds: histogram(
    'Time that proofs ran, pauses not counted.',
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  ),
  kprobe_proof_failures_total: counter('Proofs that failed and were retried.'),
  kprobe_proof_reads_discarded_total: counter(
    'Reads of the kernel discarded because the kernel changed during them.',
  ),
} satisfies Rows<MetricSources>

const UNANSWERED_LABELS = ['namespace', 'service', 'port', 'protocol', 'endpoint'] as const

function* ofUnanswered(counts: UnansweredCounts | undefined, field: 'unanswered' | 'connections') {
  for (const row of counts?.last?.rows ?? []) {
    if (row.isOneWay) continue
    const { protocol, endpoint } = row
    yield [{ ...servicePort(row.service), protocol, endpoint }, row[field]] as const
  }
}

/** Reads the labels from `namespace/name:port`. */
function servicePort(name: string) {
  const [, namespace = '', service = '', port = ''] = /^([^/]*)\/([^:]*):?(.*)$/.exec(name) ?? []
  return { namespace, service, port }
}

/** Services that have a series of their own: those with most packets. */
const REFUSED_MAX = 50

/** Adds up the packets by their labels; those of further Services are in a series without a name. */
function refusedRows(counts: readonly RefusedPackets[]) {
  const named = counts.filter(({ service }) => service !== '').toSorted((a, b) => b.packets - a.packets)
  const further = new Set(named.slice(REFUSED_MAX))
  const sums = new Map<string, readonly [ReturnType<typeof labelsOfRefused>, number]>()
  for (const each of counts) {
    const labels = labelsOfRefused(further.has(each) ? { ...each, service: '' } : each)
    const key = JSON.stringify(labels)
    sums.set(key, [labels, (sums.get(key)?.[1] ?? 0) + each.packets])
  }
  return sums.values()
}

function labelsOfRefused({ family: ip_family, verdict, reason, service }: RefusedPackets) {
  return { verdict, reason, ip_family, ...servicePort(service) }
}

const REFUSED = {
  kprobe_refused_packets_total: readCounter(
    'Packets that rules of kprobe reject or drop, by reason; by Service in iptables mode alone.',
    async ({ refused }) => refusedRows(await refused()),
    'verdict',
    'reason',
    'ip_family',
    'namespace',
    'service',
    'port',
  ),
} satisfies Rows<MetricSources>

const UNANSWERED = {
  kprobe_silent_endpoints: readGauge(
    'Endpoints that left more than half of their connections, and 5 at least, without a reply in the minute before the last reading.',
    ({ unanswered }) => unanswered()?.silent ?? 0,
  ),
  kprobe_endpoint_unanswered_connections: readGauge(
    'Connections without a reply in the minute before the last reading, of the 50 worst endpoints.',
    ({ unanswered }) => ofUnanswered(unanswered(), 'unanswered'),
    ...UNANSWERED_LABELS,
  ),
  kprobe_endpoint_recent_connections: readGauge(
    'All connections with a packet in the minute before the last reading, of the same endpoints.',
    ({ unanswered }) => ofUnanswered(unanswered(), 'connections'),
    ...UNANSWERED_LABELS,
  ),
} satisfies Rows<MetricSources>

export const ROWS = {
  ...WORK,
  ...SOURCE,
  ...COMPONENT,
  ...PROXY,
  ...PARTS,
  ...UNANSWERED,
  ...REFUSED,
} satisfies Rows<MetricSources>

/** The metrics that the daemon writes, by name. */
export type MetricHandles = Handles<typeof ROWS>

function buildInfo({ version, commit, date }: BuildInfo) {
  const [major = '', minor = ''] = version.split('.')
  return {
    major,
    minor,
    git_version: `v${version}`,
    git_commit: commit,
    git_tree_state: '',
    build_date: date,
    go_version: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
  }
}
