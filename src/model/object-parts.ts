import { type EndpointSlice, NO_HINTS, type Service } from './service.ts'
import type { SourceEvent } from './snapshot.ts'

/** An event about an object that may be large. */
type CountedEvent = Extract<SourceEvent, { readonly kind: 'Service' | 'EndpointSlice' }>
type CountedObject = Service | EndpointSlice

export function isCounted(event: { readonly kind: string }): event is CountedEvent {
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

/** Counts the memory of a held object, in parts of at most 128 B: a port, an address and an endpoint are one each. */
export function partsOf(object: CountedObject): number {
  const own = 'endpoints' in object ? endpointParts(object) : addressParts(object)
  return Math.ceil(OBJECT_PARTS + object.ports.length + REFUSAL_PARTS * object.refusals.length + own)
}

function addressParts(service: Service): number {
  const { externalIps, loadBalancerIps, sourceRanges, writtenRanges, details } = service
  const ips = externalIps.length + loadBalancerIps.length + sourceRanges.length + writtenRanges.length
  if (details === undefined) return ips
  const { labels, annotations, targetPorts } = details
  return ips + (textLength(labels) + textLength(annotations) + textLength(targetPorts)) / TEXT_LENGTH
}

function endpointParts({ endpoints, targetNames = '', targetUids = '', hostnames }: EndpointSlice): number {
  let text = targetNames.length + textLength(hostnames)
  if (targetUids !== '') text += targetUids.length - (endpoints.length - 1)
  for (let index = 0; index < endpoints.length; index++) {
    const traits = endpoints[index]?.traits
    if (traits === undefined) continue
    text += traits.nodeName.length
    if (traits.hints === NO_HINTS) continue
    for (const name of traits.hints.forZones) text += HINT_LENGTH + name.length
    for (const name of traits.hints.forNodes) text += HINT_LENGTH + name.length
  }
  return endpoints.length + Math.max(0, text - ENDPOINT_TEXT_LENGTH * endpoints.length) / TEXT_LENGTH
}

function textLength(texts: Readonly<Record<string, string | number>> = {}): number {
  let length = 0
  for (const name in texts) length += name.length + String(texts[name]).length
  return length
}
