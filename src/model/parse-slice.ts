import { cut, joined, listFor } from '../base/compact.ts'
import type { EndpointPort, EndpointSlice } from './endpoint.ts'
import {
  type Identity,
  isJson,
  isPort,
  labelsOf,
  listField,
  NOT_A_LABEL,
  NOT_A_PORT,
  NOT_A_PROTOCOL,
  protocolOf,
  readIdentity,
  type WatchedIdentity,
  wholeRefusal,
} from './fields.ts'
import { isDnsLabel, type NamePool } from './names.ts'
import { readEndpoints } from './parse-endpoint.ts'
import {
  type Findings,
  isRefusal,
  objectText,
  type Refusal,
  refusalsOf,
  refuse,
  refuseNumber,
} from './refusal.ts'

const SERVICE_LABEL = 'kubernetes.io/service-name'
const HEADLESS_LABEL = 'service.kubernetes.io/headless'
const TRIGGER_TIME = 'endpoints.kubernetes.io/last-change-trigger-time'

/** The unnamed proxy skips slices of headless Services: no address leads to them. */
export function isHeadlessSlice(watched: WatchedIdentity): boolean {
  return labelsOf(watched)[HEADLESS_LABEL] !== undefined
}

/**
 * Reads an object of kind EndpointSlice; a Refusal means that nothing of it can be used. `pool` lends one copy of each
 * node and zone name to all slices.
 */
export function parseEndpointSlice(watched: WatchedIdentity, pool?: NamePool): EndpointSlice | Refusal {
  const identity = readIdentity(watched)
  if (isRefusal(identity)) return identity
  const { root } = identity
  const service = labelsOf(identity)[SERVICE_LABEL]
  if (typeof service !== 'string' || !isDnsLabel(service)) {
    const reason = 'not the name of a Service; the slice is ignored'
    const object = objectText(identity.kind, identity.key)
    return wholeRefusal(object, `metadata.labels[${SERVICE_LABEL}]`, service, reason)
  }
  const family = root.addressType
  if (family !== 'IPv4' && family !== 'IPv6') {
    const reason = 'not a family; IPv4 and IPv6 are accepted'
    const refusal = wholeRefusal(objectText(identity.kind, identity.key), 'addressType', family, reason)
    return { ...refusal, service: `${identity.namespace}/${service}` }
  }
  const ports = readPorts(identity, root.ports)
  const { endpoints, targetNames } = readEndpoints({ findings: identity, family, pool }, root.endpoints)
  const slice: EndpointSlice = {
    key: identity.key,
    service: joined([identity.namespace, service], '/'),
    family,
    triggerTimeMs: readTriggerTime(identity),
    ports,
    endpoints,
    refusals: refusalsOf(identity),
  }
  return targetNames === undefined ? slice : { ...slice, targetNames }
}

function readTriggerTime(identity: Identity): number {
  const annotations = identity.metadata.annotations
  const time = isJson(annotations) ? annotations[TRIGGER_TIME] : undefined
  const ms = typeof time === 'string' ? Date.parse(time) : 0
  return Number.isNaN(ms) ? 0 : ms
}

function readPorts(findings: Findings, value: unknown): readonly EndpointPort[] {
  const list = listField(findings, value, 'ports')
  const ports = listFor<EndpointPort>(list.length)
  let count = 0
  for (let index = 0; index < list.length; index++) {
    const port = readPort(findings, list[index], index)
    if (port !== undefined) ports[count++] = port
  }
  return cut(ports, count)
}

function readPort(findings: Findings, value: unknown, index: number): EndpointPort | undefined {
  if (!isJson(value)) {
    refuse(findings, `ports[${index}]`, value, 'not an object')
    return undefined
  }
  const { name, port } = value
  const protocol = protocolOf(value.protocol)
  if (name === undefined || name === null) {
    refuse(findings, `ports[${index}].name`, name, 'missing; name: "" means the unnamed port of a Service')
  } else if (typeof name !== 'string' || (name !== '' && !isDnsLabel(name))) {
    refuse(findings, `ports[${index}].name`, name, NOT_A_LABEL)
  } else if (protocol === undefined) {
    refuse(findings, `ports[${index}].protocol`, value.protocol, NOT_A_PROTOCOL)
  } else if (!isPort(port)) {
    refuseNumber(findings, `ports[${index}].port`, port, NOT_A_PORT)
  } else return { name, protocol, port }
  return undefined
}
