import { stepsOver } from '../../base/clock.ts'
import { type Cidr, formatCidr, formatIp, parseIp } from '../../base/ip.ts'
import { isJson } from '../../model/fields.ts'
import type { Backend, Frontend, ServiceFrontends, WholeAddresses } from '../../model/frontend.ts'
import { sharedConditions } from '../../model/parse.ts'
import type { ApiEndpoint } from '../../model/reserved.ts'
import {
  type Endpoint,
  type EndpointSlice,
  type EndpointTraits,
  NO_HINTS,
  type Service,
} from '../../model/service.ts'
import {
  applyEvents,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SnapshotEvent,
  type ValuePool,
} from '../../model/snapshot.ts'

/** Labels, annotations and host names stay behind: no reader of this needs them, and they may hold secrets. */
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

/** A Snapshot as plain data for JSON, with addresses as text. Its events are made when they are asked for. */
export function snapshotJson(snapshot: Snapshot) {
  return { number: snapshot.number, events: eventsOf(snapshot) }
}

function* eventsOf(snapshot: Snapshot): Generator<unknown> {
  yield { kind: 'LocalIps', localIps: snapshot.localIps.map(formatIp) }
  for (const object of objectsOf(snapshot, written)) yield object
  for (const [key, value] of snapshot.listeners.entries())
    yield { kind: 'Listeners', key, value: written(value) }
  for (const [key, value] of snapshot.silent.entries()) yield { kind: 'Silent', key, value: written(value) }
}

function* objectsOf(snapshot: Snapshot, sliceJson: (slice: EndpointSlice) => unknown): Generator<unknown> {
  const { services, sliceByKey, serviceCidrs, node, apiEndpoints } = snapshot
  if (apiEndpoints.length > 0) yield { kind: 'ApiEndpoints', apiEndpoints: written(apiEndpoints) }
  if (node !== undefined) yield { kind: 'Node', key: node.name, value: written(node) }
  for (const [key, value] of serviceCidrs.entries()) yield { kind: 'ServiceCIDR', key, value: written(value) }
  for (const [key, value] of services.entries()) yield { kind: 'Service', key, value: written(value) }
  for (const [key, value] of sliceByKey.entries())
    yield { kind: 'EndpointSlice', key, value: sliceJson(value) }
}

/** Gives plain data for JSON, with addresses as text. */
function written(value: unknown): unknown {
  return withIps(value, text => formatIp(text))
}

/** The Snapshot that snapshotJson() has written. Throws when the value is something else. */
export function readSnapshotJson(value: unknown) {
  const { number, events } = isJson(value) ? value : {}
  if (typeof number !== 'number' || !Array.isArray(events)) throw new Error('not a list of objects')
  const read: SnapshotEvent[] = []
  return stepsOver<unknown, Snapshot>(events, {
    each: event => read.push(eventIn(event)),
    result: () => ({ ...applyEvents(EMPTY_SNAPSHOT, read), number }),
  })
}

/** Reads an event that snapshotJson() has written. Throws when the value is something else. */
function eventIn(json: unknown): SnapshotEvent {
  const event = withIps(json, readIp)
  if (isLocalIps(event)) return { kind: 'LocalIps', value: event.localIps }
  if (isApiEndpoints(event)) return { kind: 'ApiEndpoints', value: event.apiEndpoints }
  if (isEvent(event)) return event
  const text = JSON.stringify(json).slice(0, 100)
  throw new Error(`cannot read an object of another version of kprobe; use that version: ${text}`)
}

/** Reads an address. Throws when the text is none. */
function readIp(text: string): string {
  const ip = parseIp(text)
  if (ip === undefined) throw new Error(`not an address: ${text.slice(0, 100)}`)
  return ip
}

/** Copies the value with `change` applied to every address in it. */
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
  Service: [
    'clusterIps',
    'ports',
    'externalIps',
    'loadBalancerIps',
    'sourceRanges',
    'writtenRanges',
    'refusals',
  ],
  EndpointSlice: ['ports', 'endpoints', 'refusals'],
  Listeners: ['taken'],
  Silent: ['endpoints'],
}

function isEvent(event: unknown): event is SnapshotEvent {
  if (!isJson(event) || typeof event.kind !== 'string' || typeof event.key !== 'string') return false
  const { kind, value } = event
  if (kind === 'ServiceCIDR') return Array.isArray(value)
  return hasLists(value, LISTS[kind])
}

function hasLists(value: unknown, lists: readonly string[] | undefined): boolean {
  return lists !== undefined && isJson(value) && lists.every(name => Array.isArray(value[name]))
}

/**
 * Gives the frontends of a Service as the daemon's /state sends them, with addresses as text. Equal values give equal
 * JSON. Absent: `wholes` unless external addresses are served as a whole, the default `scheduler`, `balance` where shares are
 * equal and random, a `weight` of 1, the `ip` of a NodePort, and `sourceRanges` where every client may connect.
 */
export function serviceJson({ service, ports, refusals, wholes }: ServiceFrontends) {
  return {
    service,
    ports: ports.map(port => ({
      name: port.displayName,
      family: port.family,
      protocol: port.protocol,
      affinitySeconds: port.affinityTimeoutS,
      ...(port.scheduler === undefined ? {} : { scheduler: port.scheduler }),
      ...(port.balance === undefined ? {} : { balance: port.balance.policy }),
      frontends: port.frontends.map(frontendJson),
      cluster: port.cluster.map(backendJson),
      local: port.local.map(backendJson),
    })),
    ...(wholes === undefined ? {} : { wholes: wholes.map(wholeJson) }),
    refusals,
  }
}

function frontendJson({ kind, ip, port, route, sourceRanges }: Frontend) {
  return {
    kind,
    ...(ip === undefined ? {} : { ip: formatIp(ip) }),
    port,
    route,
    ...(sourceRanges === undefined ? {} : { sourceRanges: sourceRanges.map(formatCidr) }),
  }
}

function wholeJson({ ips, route, cluster, local }: WholeAddresses) {
  return {
    ips: ips.map(formatIp),
    route,
    cluster: cluster.map(backendJson),
    local: local.map(backendJson),
  }
}

function backendJson({ ip, port, local, weight }: Backend) {
  return { ip: formatIp(ip), port, local, ...(weight === undefined ? {} : { weight }) }
}

/**
 * The objects of a Snapshot as plain data that outlives this process: without labels, annotations, host names, and what
 * each process finds out itself, its addresses, listeners and silent endpoints. The endpoints of the API server stay: before they are known
 * again, no Service may capture them.
 */
export function savedObjects(snapshot: Snapshot): Iterable<unknown> {
  return objectsOf(snapshot, compact)
}

/** A slice whose endpoints are addresses, and for each the number of its traits in a list: a third of the size. */
interface SavedSlice extends Omit<EndpointSlice, 'endpoints' | 'hostnames'> {
  readonly ips: readonly string[]
  readonly traits: readonly SavedTraits[]
  readonly at: readonly number[]
}

/** Conditions as the bits 4 (ready), 2 (serving) and 1 (terminating). */
interface SavedTraits {
  readonly node: string
  readonly zone?: string
  readonly is: number
  readonly zones?: readonly string[]
  readonly nodes?: readonly string[]
}

function compact({ endpoints, hostnames: _, ...slice }: EndpointSlice): SavedSlice {
  const numbers = new Map<EndpointTraits, number>()
  const at = endpoints.map(({ traits }) => {
    const number = numbers.get(traits) ?? numbers.size
    numbers.set(traits, number)
    return number
  })
  const ips = endpoints.map(({ ip }) => formatIp(ip))
  return { ...slice, ips, traits: [...numbers.keys()].map(compactTraits), at }
}

function compactTraits({ nodeName, zone, conditions, hints }: EndpointTraits): SavedTraits {
  const { ready, serving, terminating } = conditions
  const is = (ready ? 4 : 0) | (serving ? 2 : 0) | (terminating ? 1 : 0)
  const { forZones, forNodes } = hints
  return {
    node: nodeName,
    ...(zone === undefined ? {} : { zone }),
    is,
    ...(forZones.length === 0 ? {} : { zones: forZones }),
    ...(forNodes.length === 0 ? {} : { nodes: forNodes }),
  }
}

/**
 * Reads an object that savedObjects() has given. It equals the parsed one, so that an equal list changes
 * nothing, and shares values with others. Throws when the value is something else.
 */
export function savedEvent(json: unknown, pool: ValuePool): SnapshotEvent {
  const { kind, key, value } = isJson(json) ? json : {}
  if (kind !== 'Service' && kind !== 'EndpointSlice') return eventIn(json)
  if (typeof key !== 'string') throw new Error(`a ${kind} without a key`)
  if (kind === 'Service' && isService(value)) return { kind, key, value: serviceIn(value, pool) }
  if (kind === 'EndpointSlice' && isSlice(value)) return { kind, key, value: sliceIn(value, pool) }
  throw new Error(`not a ${kind}: ${key}`)
}

const SLICE_LISTS: readonly (keyof SavedSlice)[] = ['ips', 'traits', 'at', 'ports', 'refusals']

/** Addresses in it are text. */
function isService(value: unknown): value is Service {
  return hasLists(value, LISTS.Service)
}

function isSlice(value: unknown): value is SavedSlice {
  return hasLists(value, SLICE_LISTS)
}

/** Every field, as the parser gives them: JSON has no undefined, and a copied object would take more time and memory. */
function serviceIn(saved: Service, pool: ValuePool): Service {
  return {
    key: saved.key,
    uid: saved.uid,
    creationTimestamp: saved.creationTimestamp,
    type: saved.type,
    ports: pool.servicePorts(saved.ports),
    clusterIps: saved.clusterIps.map(readIp),
    externalIps: saved.externalIps.map(readIp),
    loadBalancerIps: saved.loadBalancerIps.map(readIp),
    sourceRanges: saved.sourceRanges.map(cidrIn),
    writtenRanges: saved.writtenRanges.map(cidrIn),
    internalTrafficPolicy: saved.internalTrafficPolicy,
    externalTrafficPolicy: saved.externalTrafficPolicy,
    affinityTimeoutS: saved.affinityTimeoutS,
    healthCheckNodePort: saved.healthCheckNodePort,
    tcpDrainMs: saved.tcpDrainMs,
    ipvsScheduler: saved.ipvsScheduler,
    balance: saved.balance && { policy: saved.balance.policy, weights: saved.balance.weights },
    failsOver: saved.failsOver,
    proxyName: saved.proxyName,
    headless: saved.headless,
    refusals: saved.refusals,
  }
}

function cidrIn(saved: Cidr): Cidr {
  return { ...saved, ip: readIp(saved.ip) }
}

function sliceIn(saved: SavedSlice, pool: ValuePool): EndpointSlice {
  const { ips, at, targetNames, targetUids } = saved
  const traits = saved.traits.map(each => traitsIn(each, pool))
  const endpoints = ips.map((text, index): Endpoint => {
    const its = traits[at[index] ?? -1]
    if (its === undefined) throw new Error('an endpoint without traits')
    return { ip: readIp(text), traits: its }
  })
  return {
    key: saved.key,
    service: saved.service,
    family: saved.family,
    triggerTimeMs: saved.triggerTimeMs,
    ports: pool.endpointPorts(saved.ports),
    endpoints,
    targetNames,
    targetUids,
    refusals: saved.refusals,
  }
}

function traitsIn(
  { node, zone = '', is, zones = [], nodes = [] }: SavedTraits,
  pool: ValuePool,
): EndpointTraits {
  const conditions = { ready: (is & 4) !== 0, serving: (is & 2) !== 0, terminating: (is & 1) !== 0 }
  const forZones = zones.map(name => pool.name(name))
  const forNodes = nodes.map(name => pool.name(name))
  const hints = zones.length + nodes.length === 0 ? NO_HINTS : { forZones, forNodes }
  return pool.traits(pool.name(node), sharedConditions(conditions), hints, zone)
}
