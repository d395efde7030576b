import { release } from 'node:os'
import type { BuildInfo } from '../base/build-info.ts'
import { FAMILIES, formatCidr, formatIp } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { Config, DetectLocal } from '../config/config.ts'
import { forwardsAny } from '../config/modes.ts'
import { endpointCount, type FrontendTable } from '../model/frontend.ts'
import { familiesAtLocalhost } from '../model/node-context.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { findMode } from '../modes/registry.ts'
import type { SourceStatus } from '../source/source.ts'
import type { HealthAnswer } from '../telemetry/health.ts'
import type { ActiveMode } from './active-mode.ts'
import type { Origins, Sync } from './io.ts'

/** Logs version, configuration and node: the first lines of every log. */
export function logStart(
  log: Log,
  config: Config,
  { build, origins }: { build: BuildInfo; origins: Origins },
): void {
  const { source, serviceProxyName, nodePortAddresses, backend, detectLocal } = config
  log.info(
    {
      version: build.version,
      ...(build.commit === '' ? {} : { commit: build.commit }),
      mode: config.proxyMode,
      modeFrom: origins.mode,
      ...(backend === 'netlink' ? {} : { backend }),
      node: config.nodeName,
      nodeFrom: origins.nodeName,
      source: sourceText(source),
      ...(serviceProxyName === undefined ? {} : { serviceProxyName }),
      kernel: release(),
      ...detectFacts(detectLocal),
      nodePortAddresses: [
        ...(nodePortAddresses.primary ? ['primary'] : []),
        ...nodePortAddresses.cidrs.map(formatCidr),
      ],
    },
    'kprobe starting',
  )
  const unserved = whyNotAtLocalhost(config)
  if (unserved !== undefined) log.warn(`node ports are not served at localhost: ${unserved}`)
  if (detectLocal.kind === 'ClusterCIDR' && detectLocal.cidrs.length === 0) log.warn(NO_CLUSTER_CIDR)
}

function whyNotAtLocalhost(config: Config): string | undefined {
  if (familiesAtLocalhost(config.nodePortAddresses).length === 0) return undefined
  const { title, whyNotAtLocalhost: why } = findMode(config.proxyMode)
  return why === undefined ? `${title} mode cannot serve them there` : why(config)
}

const NO_CLUSTER_CIDR =
  'no cluster CIDR specified: clients outside the cluster that use a ClusterIP are not masqueraded, and pods count as clients outside; set --cluster-cidr or --detect-local-mode'

function detectFacts(detect: DetectLocal): Readonly<Record<string, unknown>> {
  switch (detect.kind) {
    case 'ClusterCIDR':
      return { detectLocalMode: detect.kind, clusterCIDR: detect.cidrs.map(formatCidr) }
    case 'NodeCIDR':
      return { detectLocalMode: detect.kind }
    case 'BridgeInterface':
      return { detectLocalMode: detect.kind, bridgeInterface: detect.name }
    case 'InterfaceNamePrefix':
      return { detectLocalMode: detect.kind, interfaceNamePrefix: detect.prefix }
  }
}

export function logFirstSync(
  log: Log,
  { table, quarantined, written }: Pick<Sync, 'table' | 'quarantined' | 'written'>,
  config: Config,
): void {
  const { nodePorts, node } = table
  const places = FAMILIES.map(family => {
    const its = nodePorts[family]
    return [family, its.kind === 'all' ? 'all' : its.ips.map(formatIp)]
  })
  log.info(
    {
      ...totalsOf(table, quarantined),
      quarantined: quarantined.length,
      nodeIPs: node.ips.map(formatIp),
      nodePorts: Object.fromEntries(places),
      changes: written.changes,
      bytes: written.bytes,
      durationMs: Math.round(written.durationMs),
    },
    'first sync complete',
  )
  const advice = findMode(config.proxyMode).advice?.(config, table.services.size)
  if (advice !== undefined) log.info(advice)
}

interface Totals {
  readonly services: number
  readonly frontends: number
  readonly endpoints: number
}

export function totalsOf(table: FrontendTable, quarantined: readonly ServiceKey[]): Totals {
  const left = new Set(quarantined)
  let services = 0
  let frontends = 0
  let endpoints = 0
  for (const { service, ports } of table.services.values()) {
    if (left.has(service)) continue
    services++
    for (const port of ports) {
      frontends += port.frontends.length
      endpoints += endpointCount(port)
    }
  }
  return { services, frontends, endpoints }
}

export interface Ending {
  readonly code: number
  readonly why: string
}

export function reasonOf({ reason }: AbortSignal): string {
  return typeof reason === 'string' ? reason : 'stopped'
}

/** Logs why the process ends, and what becomes of the rules; `isSynced`: the kernel has held a whole state of this process. */
export function logEnd(
  log: Log,
  config: Config,
  end: { readonly why: string; readonly isSynced: boolean },
): void {
  const { why, isSynced } = end
  const stay = isSynced
    ? 'rules stay in the kernel'
    : 'no sync was complete: the kernel keeps the rules that it has'
  const relayed = isSynced && forwardsAny(config) ? 'connections that this process relays end; ' : ''
  log.info(`exiting: ${why}; ${config.backend === 'netlink' ? relayed + stay : 'nothing was written'}`)
}

export function logMetrics(log: Log, text: string): void {
  for (const line of text.split('\n')) {
    const [, metric, labels, value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
    if (metric === undefined) continue
    const facts = labels === undefined ? {} : { labels: labels.replaceAll('"', '') }
    log.trace({ metric, ...facts, value: rounded(Number(value)) }, 'metric at exit')
  }
}

/** Rounds to a millionth: times in seconds have noise beyond that. */
function rounded(value: number): number {
  return Number(value.toFixed(6))
}

function nodeState(node: Snapshot['node'], source: SourceStatus | undefined): string {
  if (node !== undefined) return node.deleted === true ? 'deleted' : 'found'
  return source === undefined || source.missing.length > 0 ? 'not read yet' : 'not found'
}

interface StateFacts {
  readonly activeMode: Pick<ActiveMode, 'mode' | 'status'> | undefined
  readonly source: SourceStatus | undefined
  readonly snapshot: Snapshot
  readonly health: HealthAnswer
  readonly nowMs: number
}

export function logState(log: Log, { activeMode, source, snapshot, health, nowMs }: StateFacts): void {
  const { node } = snapshot
  const status = activeMode?.status
  const quarantined = status?.quarantined.map(({ service }) => service) ?? []
  const heardMs = source?.heardMs
  log.info(
    {
      mode: activeMode?.mode,
      ...(status?.table === undefined ? { services: 0 } : totalsOf(status.table, quarantined)),
      snapshot: snapshot.number,
      synced: status?.syncedNumber,
      quarantined: quarantined.length,
      error: status?.error?.message,
      node: nodeState(node, source),
      healthz: health.code,
      reason: health.body.reason,
      staleS: health.body.staleSeconds,
      missing: source?.missing,
      trouble: source?.trouble,
      silentMs: heardMs === undefined ? undefined : Math.round(nowMs - heardMs),
    },
    'state',
  )
}

/** `kube`, `file:PATH` or `relay:ADDRESS,...`. */
export function sourceText(source: Config['source']): string {
  if (source.kind === 'file') return `file:${source.path}`
  return source.relay === undefined ? source.kind : `relay:${source.relay.addresses.join(',')}`
}
