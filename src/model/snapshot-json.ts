import type { Steps } from '../base/clock.ts'
import { type Family, formatCidr, formatIp, parseIp } from '../base/ip.ts'
import { isJson, type Refusal } from './fields.ts'
import type { Backend, Frontend, FrontendKind, Route, ServiceFrontends, WholeAddresses } from './frontend.ts'
import type { ApiEndpoint } from './reserved.ts'
import type { Protocol } from './service.ts'
import { applyEventsInSteps, EMPTY_SNAPSHOT, type Snapshot, type SnapshotEvent } from './snapshot.ts'

/** A Snapshot as plain data for JSON, with addresses as text. Its events are made when they are asked for. */
interface SnapshotJson {
  readonly number: number
  readonly events: Iterable<unknown>
}

/** Labels, annotations and host names stay behind: nothing that reads this asks for them, and they may hold secrets. */
const LEFT_OUT: ReadonlySet<string> = new Set(['details', 'hostnames'])

/** Fields that hold addresses, or lists of them. */
const IP_FIELDS: ReadonlySet<string> = new Set([
  'ip',
  'ips',
  'clusterIps',
  'externalIps',
  'loadBalancerIps',
  'localIps',
])

export function snapshotJson(snapshot: Snapshot): SnapshotJson {
  return { number: snapshot.number, events: eventsOf(snapshot) }
}

function* eventsOf(snapshot: Snapshot): Generator<unknown> {
  const { services, sliceByKey, serviceCidrs, node, localIps, apiEndpoints, listeners } = snapshot
  yield { kind: 'LocalIps', localIps: localIps.map(formatIp) }
  if (apiEndpoints.length > 0) yield { kind: 'ApiEndpoints', apiEndpoints: written(apiEndpoints) }
  if (node !== undefined) yield { kind: 'Node', key: node.name, value: written(node) }
  for (const [key, value] of serviceCidrs.entries()) yield { kind: 'ServiceCIDR', key, value: written(value) }
  for (const [key, value] of services.entries()) yield { kind: 'Service', key, value: written(value) }
  for (const [key, value] of listeners.entries()) yield { kind: 'Listeners', key, value: written(value) }
  for (const [key, value] of sliceByKey.entries()) yield { kind: 'EndpointSlice', key, value: written(value) }
}

function written(value: unknown): unknown {
  return withIps(value, text => formatIp(text))
}

/** The Snapshot that snapshotJson() has written. Throws when the value is something else. */
export function* readSnapshotJson(value: unknown): Steps<Snapshot> {
  const { number, events } = isJson(value) ? value : {}
  if (typeof number !== 'number' || !Array.isArray(events)) throw new Error('not a list of objects')
  const snapshot = yield* applyEventsInSteps(EMPTY_SNAPSHOT, eventsIn(events))
  return { ...snapshot, number }
}

function* eventsIn(list: readonly unknown[]): Generator<SnapshotEvent> {
  for (const each of list) {
    const event = withIps(each, readIp)
    if (isLocalIps(event)) yield { kind: 'LocalIps', value: event.localIps }
    else if (isApiEndpoints(event)) yield { kind: 'ApiEndpoints', value: event.apiEndpoints }
    else if (isEvent(event)) yield event
    else throw new Error(`not an object of a snapshot: ${JSON.stringify(each).slice(0, 100)}`)
  }
}

function readIp(text: string): string {
  const ip = parseIp(text)
  if (ip === undefined) throw new Error(`not an address: ${text.slice(0, 100)}`)
  return ip
}

/** The same value with `change` applied to every address in it. */
function withIps(value: unknown, change: (text: string) => string, field = ''): unknown {
  if (typeof value === 'string') return IP_FIELDS.has(field) ? change(value) : value
  if (Array.isArray(value)) return value.map(item => withIps(item, change, field))
  if (!isJson(value)) return value
  const copy: Record<string, unknown> = {}
  for (const [name, item] of Object.entries(value))
    if (!LEFT_OUT.has(name)) copy[name] = withIps(item, change, name)
  return copy
}

function isLocalIps(event: unknown): event is { readonly localIps: readonly string[] } {
  return isJson(event) && event.kind === 'LocalIps' && Array.isArray(event.localIps)
}

function isApiEndpoints(event: unknown): event is { readonly apiEndpoints: readonly ApiEndpoint[] } {
  return isJson(event) && event.kind === 'ApiEndpoints' && Array.isArray(event.apiEndpoints)
}

/** The lists that each kind of object must have; the daemon has parsed everything in them. */
const LISTS: Readonly<Record<string, readonly string[]>> = {
  Node: ['ips', 'podCidrs'],
  Service: ['clusterIps', 'ports', 'externalIps', 'loadBalancerIps', 'sourceRanges', 'refusals'],
  EndpointSlice: ['ports', 'endpoints', 'refusals'],
  Listeners: ['taken'],
}

function isEvent(event: unknown): event is SnapshotEvent {
  if (!isJson(event) || typeof event.kind !== 'string' || typeof event.key !== 'string') return false
  const { kind, value } = event
  if (kind === 'ServiceCIDR') return Array.isArray(value)
  const lists = LISTS[kind]
  return lists !== undefined && isJson(value) && lists.every(name => Array.isArray(value[name]))
}

/* What a Service asks of this node, as the daemon's /state sends it. Equal values give equal JSON. */

interface ServiceJson {
  readonly service: string
  readonly ports: readonly PortJson[]
  /** Absent unless external addresses are served as a whole. */
  readonly wholes?: readonly WholeJson[]
  readonly refusals: readonly Refusal[]
}

interface PortJson {
  /** `namespace/name:port`, or `namespace/name` when the port has no name. */
  readonly name: string
  readonly family: Family
  readonly protocol: Protocol
  readonly affinitySeconds: number
  /** Absent for the default one. */
  readonly scheduler?: string
  readonly frontends: readonly FrontendJson[]
  readonly cluster: readonly BackendJson[]
  readonly local: readonly BackendJson[]
}

interface FrontendJson {
  readonly kind: FrontendKind
  /** Absent for a NodePort. */
  readonly ip?: string
  readonly port: number
  readonly route: Route
  /** Absent when every client may connect. */
  readonly sourceRanges?: readonly string[]
}

interface BackendJson {
  readonly ip: string
  readonly port: number
  readonly local: boolean
}

interface WholeJson {
  readonly ips: readonly string[]
  readonly route: Route
  readonly cluster: readonly BackendJson[]
  readonly local: readonly BackendJson[]
}

export function serviceJson({ service, ports, refusals, wholes }: ServiceFrontends): ServiceJson {
  return {
    service,
    ports: ports.map(port => ({
      name: port.displayName,
      family: port.family,
      protocol: port.protocol,
      affinitySeconds: port.affinityTimeoutS,
      ...(port.scheduler === undefined ? {} : { scheduler: port.scheduler }),
      frontends: port.frontends.map(frontendJson),
      cluster: port.cluster.map(backendJson),
      local: port.local.map(backendJson),
    })),
    ...(wholes === undefined ? {} : { wholes: wholes.map(wholeJson) }),
    refusals,
  }
}

function frontendJson({ kind, ip, port, route, sourceRanges }: Frontend): FrontendJson {
  return {
    kind,
    ...(ip === undefined ? {} : { ip: formatIp(ip) }),
    port,
    route,
    ...(sourceRanges === undefined ? {} : { sourceRanges: sourceRanges.map(formatCidr) }),
  }
}

function wholeJson({ ips, route, cluster, local }: WholeAddresses): WholeJson {
  return {
    ips: ips.map(formatIp),
    route,
    cluster: cluster.map(backendJson),
    local: local.map(backendJson),
  }
}

function backendJson({ ip, port, local }: Backend): BackendJson {
  return { ip: formatIp(ip), port, local }
}
