import type { EndpointSlice } from './endpoint.ts'
import { objectText, type Refusal } from './refusal.ts'
import type { Service } from './service.ts'
import type { SourceEvent } from './snapshot.ts'

/** An event about an object that may be large. */
export type CountedEvent = Extract<SourceEvent, { readonly kind: 'Service' | 'EndpointSlice' }>
export type CountedObject = Service | EndpointSlice

export function isCounted(event: SourceEvent): event is CountedEvent {
  return event.kind === 'Service' || event.kind === 'EndpointSlice'
}

/** Parts of an object besides its ports, addresses and endpoints. */
export const OBJECT_PARTS = 4
const REFUSAL_PARTS = 2
/** Text that counts as one part. */
const TEXT_LENGTH = 128
/** Text of an endpoint that its own part covers, of its node, and the UID and name of its pod. */
const ENDPOINT_TEXT_LENGTH = 32
/** A hint, beside its name. */
const HINT_LENGTH = 32
/** Parts of an object that is left out: its names and the refusal. */
const STUB_PARTS = 8

/** Counts the memory of a held object, in parts of at most 128 B: a port, an address and an endpoint are one each. */
export function partsOf(object: CountedObject): number {
  if (object.leftOut !== undefined) return STUB_PARTS
  const own = 'endpoints' in object ? endpointParts(object) : addressParts(object)
  return Math.ceil(OBJECT_PARTS + object.ports.length + REFUSAL_PARTS * object.refusals.length + own)
}

/** Counts the parts of the whole object, also when it is left out. */
export function wholePartsOf(object: CountedObject): number {
  return object.leftOut ?? partsOf(object)
}

/** Tests whether an object of so many parts takes less memory when it is left out. */
export function isReducible(parts: number): boolean {
  return parts > STUB_PARTS
}

function addressParts(service: Service): number {
  const { externalIps, loadBalancerIps, sourceRanges, writtenRanges, details } = service
  const ips = externalIps.length + loadBalancerIps.length + sourceRanges.length + writtenRanges.length
  if (details === undefined) return ips
  const { labels, annotations, targetPorts } = details
  return ips + (textLength(labels) + textLength(annotations) + textLength(targetPorts)) / TEXT_LENGTH
}

function endpointParts({ endpoints, targetNames = '', hostnames = {} }: EndpointSlice): number {
  let text = targetNames.length + textLength(hostnames)
  for (let index = 0; index < endpoints.length; index++) {
    const endpoint = endpoints[index]
    if (endpoint === undefined) continue
    text += endpoint.targetUid.length + endpoint.nodeName.length
    for (const name of endpoint.hints.forZones) text += HINT_LENGTH + name.length
    for (const name of endpoint.hints.forNodes) text += HINT_LENGTH + name.length
  }
  return endpoints.length + Math.max(0, text - ENDPOINT_TEXT_LENGTH * endpoints.length) / TEXT_LENGTH
}

function textLength(texts: Readonly<Record<string, string | number>>): number {
  let length = 0
  for (const name in texts) length += name.length + String(texts[name]).length
  return length
}

/**
 * Reduces the object of an event to its stub: a Service keeps its ClusterIPs, which reject, and a slice has no endpoints.
 * `partsMax` is for the text of the refusal.
 */
export function leavingOut(event: CountedEvent, partsMax: number): CountedEvent {
  const { kind, key, value } = event
  if (value === undefined || !isReducible(partsOf(value))) return event
  const leftOut = partsOf(value)
  if (kind === 'EndpointSlice') {
    const { targetNames: _names, hostnames: _hostnames, ...slice } = value
    const { ports, endpoints } = slice
    const reason = `holds ${leftOut} parts (${ports.length} ports, ${endpoints.length} endpoints), ${over(partsMax)}; no endpoint of it is used; ${ADVICE}`
    const refusal = {
      object: objectText(kind, key),
      field: 'endpoints',
      value: `${endpoints.length}`,
      reason,
    }
    return { kind, key, value: { ...slice, ports: [], endpoints: [], refusals: [refusal], leftOut } }
  }
  const { details: _details, ...service } = value
  const { ports, clusterIps, externalIps, loadBalancerIps } = service
  const addresses = clusterIps.length + externalIps.length + loadBalancerIps.length
  const reason = `holds ${leftOut} parts (${ports.length} ports, ${addresses} addresses), ${over(partsMax)}; no port of it is served; ${ADVICE}`
  const refusal = { object: objectText(kind, key), field: 'spec.ports', value: `${ports.length}`, reason }
  const stub = { ...rejecting(service, [refusal]), sourceRanges: [], writtenRanges: [], leftOut }
  return { kind, key, value: stub }
}

/** Names no figures of other objects, so that the text changes only with the object. */
function over(partsMax: number): string {
  return (
    'more than fits into the share of its namespace: the namespaces that hold most divide ' +
    `${Math.floor(partsMax)} parts (ports, addresses, endpoints) equally, the smallest objects first`
  )
}

const ADVICE = 'give it fewer of them, or the process a higher memory limit'

/** Reduces a Service to its ClusterIPs: connections to them are rejected, and no other Service gets them. */
export function rejecting(service: Service, refusals: readonly Refusal[]): Service {
  return {
    ...service,
    ports: [],
    externalIps: [],
    loadBalancerIps: [],
    healthCheckNodePort: 0,
    headless: undefined,
    refusals,
  }
}
