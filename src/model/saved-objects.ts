import { type Cidr, formatIp } from '../base/ip.ts'
import { isJson } from './fields.ts'
import { sharedConditions } from './parse.ts'
import { type Endpoint, type EndpointSlice, type EndpointTraits, NO_HINTS, type Service } from './service.ts'
import type { Snapshot, SnapshotEvent, ValuePool } from './snapshot.ts'
import { eventIn, readIp, written } from './snapshot-json.ts'

/**
 * The objects of a Snapshot as plain data that outlives this process: without labels, annotations, host names, and what
 * each process finds out itself, its addresses and listeners. The endpoints of the API server stay: before they are known
 * again, no Service may capture them.
 */
export function* savedObjects(snapshot: Snapshot): Generator<unknown> {
  const { services, sliceByKey, serviceCidrs, node, apiEndpoints } = snapshot
  if (apiEndpoints.length > 0) yield { kind: 'ApiEndpoints', apiEndpoints: written(apiEndpoints) }
  if (node !== undefined) yield { kind: 'Node', key: node.name, value: written(node) }
  for (const [key, value] of serviceCidrs.entries()) yield { kind: 'ServiceCIDR', key, value: written(value) }
  for (const [key, value] of services.entries()) yield { kind: 'Service', key, value: written(value) }
  for (const [key, value] of sliceByKey.entries()) yield { kind: 'EndpointSlice', key, value: compact(value) }
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

function compactTraits({ nodeName, conditions, hints }: EndpointTraits): SavedTraits {
  const { ready, serving, terminating } = conditions
  const is = (ready ? 4 : 0) | (serving ? 2 : 0) | (terminating ? 1 : 0)
  const { forZones, forNodes } = hints
  return {
    node: nodeName,
    is,
    ...(forZones.length === 0 ? {} : { zones: forZones }),
    ...(forNodes.length === 0 ? {} : { nodes: forNodes }),
  }
}

/**
 * Reads an object that savedObjects() has given. It equals the parsed one, so that a list that says the same changes
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

const SERVICE_LISTS: readonly (keyof Service)[] = [
  'clusterIps',
  'ports',
  'externalIps',
  'loadBalancerIps',
  'sourceRanges',
  'writtenRanges',
  'refusals',
]
const SLICE_LISTS: readonly (keyof SavedSlice)[] = ['ips', 'traits', 'at', 'ports', 'refusals']

/** Addresses in it are text. */
function isService(value: unknown): value is Service {
  return isJson(value) && SERVICE_LISTS.every(name => Array.isArray(value[name]))
}

function isSlice(value: unknown): value is SavedSlice {
  return isJson(value) && SLICE_LISTS.every(name => Array.isArray(value[name]))
}

/** Every field, as the parser gives them: JSON has no undefined, and a copied object would take more time and memory. */
function serviceIn(saved: Service, pool: ValuePool): Service {
  const service: Service = {
    key: saved.key,
    uid: saved.uid,
    creationTimestamp: saved.creationTimestamp,
    type: saved.type,
    clusterIps: saved.clusterIps.map(readIp),
    ports: pool.servicePorts(saved.ports),
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
    proxyName: saved.proxyName,
    headless: saved.headless,
    refusals: saved.refusals,
  }
  return saved.leftOut === undefined ? service : { ...service, leftOut: saved.leftOut }
}

function cidrIn(saved: Cidr): Cidr {
  return { ...saved, ip: readIp(saved.ip) }
}

function sliceIn(saved: SavedSlice, pool: ValuePool): EndpointSlice {
  const { ips, at, targetNames, targetUids, leftOut } = saved
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
    refusals: saved.refusals,
    ...(targetNames === undefined ? {} : { targetNames }),
    ...(targetUids === undefined ? {} : { targetUids }),
    ...(leftOut === undefined ? {} : { leftOut }),
  }
}

function traitsIn({ node, is, zones = [], nodes = [] }: SavedTraits, pool: ValuePool): EndpointTraits {
  const conditions = { ready: (is & 4) !== 0, serving: (is & 2) !== 0, terminating: (is & 1) !== 0 }
  const forZones = zones.map(name => pool.name(name))
  const forNodes = nodes.map(name => pool.name(name))
  const hints = zones.length + nodes.length === 0 ? NO_HINTS : { forZones, forNodes }
  return pool.traits(pool.name(node), sharedConditions(conditions), hints)
}
