import { describe, expect, it } from 'vitest'
import { countOffer, countProbe, countSync, setPending } from '../../../src/telemetry/proxy-metrics.ts'
import { createMetrics } from '../../support/metrics.ts'

async function linesOf(metrics: { text(): Promise<string> }): Promise<string[]> {
  return (await metrics.text()).split('\n')
}

/** Everything that can happen, once. */
function busy() {
  const metrics = createMetrics()
  const noLocal = { internal: { IPv4: 1, IPv6: 2 }, external: { IPv4: 3, IPv6: 4 } }
  countOffer(metrics, { services: 2, slices: 3 }, 1_000)
  countSync(metrics, { full: true, durationMs: 3, wallMs: 2_000, noLocal })
  countSync(metrics, { full: false, durationMs: 20_000, wallMs: 2_500, noLocal })
  setPending(metrics, { services: 1, slices: 0 })
  countProbe(metrics, 'healthz', 200)
  countProbe(metrics, 'livez', 503)
  const ip_family = 'IPv6'
  metrics.kubeproxy_sync_proxy_rules_nftables_sync_failures_total.inc({ ip_family })
  metrics.kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total.inc({ ip_family })
  metrics.kubeproxy_network_programming_duration_seconds.observe({ ip_family }, 0.3)
  metrics.kubeproxy_conntrack_reconciler_sync_duration_seconds.observe({ ip_family }, 0.001)
  metrics.kubeproxy_conntrack_reconciler_deleted_entries_total.inc({ ip_family }, 7)
  return metrics
}

/** The labels of the metrics of kube-proxy 1.36 that have other ones than ip_family; test/reference/golden has names and types. */
const LABELS: Readonly<Record<string, readonly string[]>> = {
  sync_proxy_rules_endpoint_changes_pending: [],
  sync_proxy_rules_endpoint_changes_total: [],
  sync_proxy_rules_service_changes_pending: [],
  sync_proxy_rules_service_changes_total: [],
  sync_proxy_rules_no_local_endpoints_total: ['traffic_policy', 'ip_family'],
  proxy_healthz_total: ['code'],
  proxy_livez_total: ['code'],
}

describe("kube-proxy's metrics", () => {
  it('have their labels', async () => {
    const lines = await linesOf(busy())
    const metrics = lines.flatMap(line => /^# TYPE kubeproxy_(\S+) (\S+)/.exec(line)?.slice(1, 3) ?? [])
    expect(metrics).toHaveLength(2 * 17)
    for (let at = 0; at < metrics.length; at += 2) {
      const [name = '', type] = metrics.slice(at)
      const series = `kubeproxy_${name}${type === 'histogram' ? '_count' : ''}`
      const line = lines.find(its => its.startsWith(series)) ?? ''
      expect(
        [...line.matchAll(/(\w+)="/g)].map(([, label]) => label),
        name,
      ).toEqual(LABELS[name] ?? ['ip_family'])
    }
  })

  it('has unlabeled series from the start, and labeled ones from their first value', async () => {
    const lines = await linesOf(createMetrics())
    const values = lines.filter(line => line.startsWith('kubeproxy_'))
    expect(values.sort()).toEqual([
      'kubeproxy_sync_proxy_rules_endpoint_changes_pending 0',
      'kubeproxy_sync_proxy_rules_endpoint_changes_total 0',
      'kubeproxy_sync_proxy_rules_service_changes_pending 0',
      'kubeproxy_sync_proxy_rules_service_changes_total 0',
    ])
  })

  it('has their buckets', async () => {
    const lines = await linesOf(busy())
    const bounds = (name: string, family: string) =>
      lines
        .filter(line => line.startsWith(`kubeproxy_${name}_bucket{`) && line.includes(family))
        .map(line => /le="([^"]+)"/.exec(line)?.[1])
    const sync = bounds('sync_proxy_rules_duration_seconds', 'IPv4')
    expect(sync).toEqual(
      '0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf'.split(
        ' ',
      ),
    )
    const programming = bounds('network_programming_duration_seconds', 'IPv6')
    expect(programming).toHaveLength(82)
    for (const bound of ['0', '0.25', '0.5', '1', '59', '60', '115', '120', '300', '+Inf'])
      expect(programming).toContain(bound)
    expect(programming).not.toContain('61')
  })

  it('counts one pass for each configured family', async () => {
    const both = await linesOf(busy())
    for (const line of [
      'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2',
      'kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 20.003',
      'kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1',
      'kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1',
      'kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1',
      'kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 2.5',
      'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1',
      'kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="internal",ip_family="IPv6"} 2',
      'kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="external",ip_family="IPv4"} 3',
      'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 7',
      'kubeproxy_network_programming_duration_seconds_bucket{le="0.5",ip_family="IPv6"} 1',
    ])
      expect(both).toContain(line)
  })
})

describe('metrics of every component', () => {
  it('has build, features, process and requests', async () => {
    const metrics = createMetrics({
      build: { version: '1.2.3', commit: 'abc', date: '2026-11-21T10:00:00Z' },
      features: [
        { name: 'AllowServiceExternalIPs', stage: '', enabled: true },
        { name: 'NewThing', stage: 'ALPHA', enabled: false },
      ],
    })
    metrics.apiRequest({ method: 'GET', host: '10.0.0.1:6443', status: 200, durationMs: 30 })
    metrics.apiRequest({ method: 'GET', host: '10.0.0.1:6443', status: undefined, durationMs: 30 })
    const lines = await linesOf(metrics)
    for (const line of [
      'kubernetes_feature_enabled{name="AllowServiceExternalIPs",stage=""} 1',
      'kubernetes_feature_enabled{name="NewThing",stage="ALPHA"} 0',
      'rest_client_requests_total{code="200",method="GET",host="10.0.0.1:6443"} 1',
      'rest_client_requests_total{code="<error>",method="GET",host="10.0.0.1:6443"} 1',
      'rest_client_request_duration_seconds_count{verb="GET",host="10.0.0.1:6443"} 2',
    ])
      expect(lines).toContain(line)
    expect(lines.find(line => line.startsWith('kubernetes_build_info{'))).toMatch(
      /^kubernetes_build_info\{major="1",minor="2",git_version="v1.2.3",git_commit="abc",git_tree_state="",build_date="2026-11-21T10:00:00Z",go_version="",compiler="node v[^"]+",platform="linux\/\w+"\} 1$/,
    )
    expect(lines.find(line => line.startsWith('kprobe_build_info{'))).toMatch(
      /^kprobe_build_info\{version="1.2.3",commit="abc",date="2026-11-21T10:00:00Z",node_version="v[^"]+"\} 1$/,
    )
    for (const name of [
      'resident_memory_bytes',
      'open_fds',
      'max_fds',
      'virtual_memory_bytes',
      'start_time_seconds',
    ])
      expect(Number(lines.find(line => line.startsWith(`process_${name} `))?.split(' ')[1])).toBeGreaterThan(
        0,
      )
  })

  it('counts processor time up, and not twice', async () => {
    const metrics = createMetrics()
    const spent = async () =>
      Number(
        (await linesOf(metrics)).find(line => line.startsWith('process_cpu_seconds_total '))?.split(' ')[1],
      )
    await spent()
    const first = await spent()
    expect(first).toBeGreaterThan(0)
    for (let at = 0; at < 2e6; at++) Math.sqrt(at)
    const { user, system } = process.cpuUsage()
    const second = await spent()
    expect(second).toBeGreaterThan(first)
    expect(second - (user + system) / 1e6).toBeLessThan(1)
  })
})

describe('our own metrics', () => {
  it('count the observations of a source', async () => {
    const metrics = createMetrics({ staleS: () => 12.5 })
    metrics.observed({
      kind: 'listed',
      resource: 'services',
      reason: 'start',
      objects: 3,
      bytes: 100,
      durationMs: 20,
    })
    metrics.observed({ kind: 'watch-ended', resource: 'services', reason: 'timeout', events: 4, bytes: 50 })
    metrics.observed({ kind: 'skipped', resource: 'endpointslices', reason: 'older' })
    metrics.observed({ kind: 'repaired', resource: 'endpointslices', objects: 2 })
    const lines = await linesOf(metrics)
    for (const line of [
      'kprobe_source_stale_seconds 12.5',
      'kprobe_source_lists_total{resource="services",reason="start"} 1',
      'kprobe_source_watch_ends_total{resource="services",reason="timeout"} 1',
      'kprobe_source_watch_events_total{resource="services"} 4',
      'kprobe_source_bytes_total{resource="services",from="list"} 100',
      'kprobe_source_bytes_total{resource="services",from="watch"} 50',
      'kprobe_source_skipped_total{resource="endpointslices",reason="older"} 1',
      'kprobe_source_repaired_objects_total{resource="endpointslices"} 2',
    ])
      expect(lines).toContain(line)
  })

  it('ask servers and events at each scrape', async () => {
    let ready = false
    const metrics = createMetrics({
      servers: () => ({
        ready,
        healthChecks: { listening: 3, failed: 1 },
        overShare: [
          { server: 'healthz', evicted: 4, refused: 1 },
          { server: 'health_check_node_ports', evicted: 10, refused: 0 },
        ],
        events: { taken: 7, refused: 1, dropped: 2, waiting: 4 },
      }),
    })
    expect(await linesOf(metrics)).toContain('kprobe_ready 0')
    ready = true
    const lines = await linesOf(metrics)
    for (const line of [
      'kprobe_ready 1',
      'kprobe_health_check_listeners 3',
      'kprobe_health_check_listeners_failed 1',
      'kprobe_http_connections_refused 15',
      'kprobe_connections_over_share_total{server="healthz",outcome="evicted"} 4',
      'kprobe_connections_over_share_total{server="healthz",outcome="refused"} 1',
      'kprobe_connections_over_share_total{server="health_check_node_ports",outcome="evicted"} 10',
      'kprobe_events_waiting 4',
      'kprobe_events_taken_total 7',
      'kprobe_events_lost_total 3',
    ])
      expect(lines).toContain(line)
  })
})

it('keeps two sets of metrics apart', async () => {
  createMetrics().kprobe_commits_total.inc()
  expect(await createMetrics().text()).toContain('kprobe_commits_total 0')
})

describe('refused packets', () => {
  it('have a series for the 50 Services with most of them, and one for the others', async () => {
    const counts = Array.from({ length: 60 }, (_, n) => ({
      family: 'IPv4',
      verdict: 'reject',
      reason: 'no-endpoints',
      service: `ns/web-${n}:http`,
      packets: n + 1,
    }))
    const metrics = createMetrics({ refused: async () => counts })
    const lines = (await metrics.text())
      .split('\n')
      .filter(line => /^kprobe_refused_packets_total\{/.test(line))
    expect(lines).toHaveLength(51)
    const labels = 'verdict="reject",reason="no-endpoints",ip_family="IPv4"'
    expect(lines).toContain(
      `kprobe_refused_packets_total{${labels},namespace="ns",service="web-59",port="http"} 60`,
    )
    // 1 + 2 + ... + 10
    expect(lines).toContain(`kprobe_refused_packets_total{${labels},namespace="",service="",port=""} 55`)
  })
})

const TABLE = { entries: 7, entriesMax: 100, insertFailed: 40, dropped: 2, droppedEarly: 0 }

it('reports the usage of the table, and the losses since the start', async () => {
  const metrics = createMetrics()
  metrics.conntrackTable(TABLE)
  metrics.conntrackTable({ ...TABLE, insertFailed: 43, dropped: 1 })
  const lines = (await metrics.text())
    .split('\n')
    .filter(line => /^kprobe_conntrack_(?:entries|lost)/.test(line))
  expect(lines.sort()).toEqual([
    'kprobe_conntrack_entries 7',
    'kprobe_conntrack_entries_limit 100',
    'kprobe_conntrack_lost_total{reason="dropped"} 1',
    'kprobe_conntrack_lost_total{reason="dropped_early"} 0',
    'kprobe_conntrack_lost_total{reason="insert_failed"} 3',
  ])
})
