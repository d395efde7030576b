import { cut, joined, listFor, trimmed } from '../base/compact.ts'
import type { Family, Ip } from '../base/ip.ts'
import { readAddress, whyNotAddress } from './address.ts'
import type { Endpoint, EndpointPort, EndpointSlice } from './endpoint.ts'
import {
  type Identity,
  type IdentityRules,
  isJson,
  isPort,
  type Json,
  labelsOf,
  listField,
  NOT_A_LABEL,
  readIdentity,
  wholeRefusal,
} from './fields.ts'
import { isDnsLabel, type NamePool, pooled } from './names.ts'
import { NOT_A_PORT, NOT_A_PROTOCOL, protocolOf } from './parse-service.ts'
import { type Findings, isRefusal, objectText, type Refusal, refusalsOf, refuse } from './refusal.ts'

const RULES: IdentityRules = { kind: 'EndpointSlice', scope: 'Namespaced', name: 'subdomain' }
const SERVICE_LABEL = 'kubernetes.io/service-name'
const HEADLESS_LABEL = 'service.kubernetes.io/headless'
const TRIGGER_TIME = 'endpoints.kubernetes.io/last-change-trigger-time'
const NO_NAMES: readonly string[] = []
const NO_CONDITIONS: Json = {}

/** Slices of headless Services are nobody's business here: no address leads to them. */
export function isHeadlessSlice(object: unknown): boolean {
  const metadata = isJson(object) ? object.metadata : undefined
  const labels = isJson(metadata) ? metadata.labels : undefined
  return isJson(labels) && labels[HEADLESS_LABEL] !== undefined
}

/**
 * Reads an object of kind EndpointSlice; a Refusal means that nothing of it can be used. `pool` lends one copy of each
 * node and zone name to all slices.
 */
export function parseEndpointSlice(object: unknown, pool?: NamePool): EndpointSlice | Refusal {
  const identity = readIdentity(object, RULES)
  if (isRefusal(identity)) return identity
  const { root } = identity
  const service = labelsOf(identity)[SERVICE_LABEL]
  if (typeof service !== 'string' || !isDnsLabel(service)) {
    const reason = 'not the name of a Service; a slice without one belongs to nobody'
    return wholeRefusal(
      objectText(RULES.kind, identity.key),
      `metadata.labels[${SERVICE_LABEL}]`,
      service,
      reason,
    )
  }
  const family = root.addressType
  if (family !== 'IPv4' && family !== 'IPv6') {
    const reason = 'not a family; IPv4 and IPv6 are accepted'
    return wholeRefusal(objectText(RULES.kind, identity.key), 'addressType', family, reason)
  }
  return {
    key: identity.key,
    service: joined([identity.namespace, service], '/'),
    family,
    triggerTimeMs: readTriggerTime(identity),
    ports: readPorts(identity, root.ports),
    endpoints: readEndpoints({ findings: identity, family, pool }, root.endpoints),
    refusals: refusalsOf(identity),
  }
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
    refuse(
      findings,
      `ports[${index}].name`,
      name,
      'without a name; the unnamed port of a Service is named ""',
    )
  } else if (typeof name !== 'string' || (name !== '' && !isDnsLabel(name))) {
    refuse(findings, `ports[${index}].name`, name, NOT_A_LABEL)
  } else if (protocol === undefined) {
    refuse(findings, `ports[${index}].protocol`, value.protocol, NOT_A_PROTOCOL)
  } else if (!isPort(port)) {
    refuse(findings, `ports[${index}].port`, port, NOT_A_PORT)
  } else return { name, protocol, port }
  return undefined
}

interface Reading {
  readonly findings: Findings
  readonly family: Family
  readonly pool: NamePool | undefined
}

function readEndpoints(reading: Reading, value: unknown): readonly Endpoint[] {
  const list = listField(reading.findings, value, 'endpoints')
  const endpoints = listFor<Endpoint>(list.length)
  let count = 0
  for (let index = 0; index < list.length; index++) {
    const endpoint = readEndpoint(reading, list[index], index)
    if (endpoint !== undefined) endpoints[count++] = endpoint
  }
  return cut(endpoints, count)
}

function readEndpoint(reading: Reading, value: unknown, index: number): Endpoint | undefined {
  if (!isJson(value)) {
    refuse(reading.findings, `endpoints[${index}]`, value, 'not an object')
    return undefined
  }
  const ip = readIp(reading, value.addresses, index)
  if (ip === undefined) return undefined
  const conditions = isJson(value.conditions) ? value.conditions : NO_CONDITIONS
  const { ready, serving, terminating } = conditions
  if (!isCondition(ready) || !isCondition(serving) || !isCondition(terminating)) {
    refuseConditions(reading.findings, conditions, index)
    return undefined
  }
  const { targetRef, hints, nodeName } = value
  return {
    ip,
    targetUid: isJson(targetRef) && typeof targetRef.uid === 'string' ? targetRef.uid : '',
    // An absent condition means "as if nothing was wrong": KEP-1672.
    ready: ready ?? true,
    serving: serving ?? true,
    terminating: terminating ?? false,
    nodeName: typeof nodeName === 'string' ? pooled(reading.pool, nodeName) : '',
    forZones: isJson(hints) ? readHints(reading, hints, 'forZones', index) : NO_NAMES,
    forNodes: isJson(hints) ? readHints(reading, hints, 'forNodes', index) : NO_NAMES,
  }
}

/** Consumers must take the first address only: the API says that they are interchangeable. An empty list is nobody. */
function readIp(reading: Reading, addresses: unknown, index: number): Ip | undefined {
  const { findings, family } = reading
  if (!Array.isArray(addresses)) {
    listField(findings, addresses, `endpoints[${index}].addresses`)
    return undefined
  }
  if (addresses.length === 0) return undefined
  const first: unknown = addresses[0]
  const ip = readAddress(first, family)
  if (ip === undefined)
    refuse(findings, `endpoints[${index}].addresses[0]`, first, whyNotAddress(first, family))
  return ip
}

function isCondition(value: unknown): value is boolean | undefined | null {
  return value === undefined || value === null || typeof value === 'boolean'
}

function refuseConditions(findings: Findings, conditions: Json, index: number): void {
  for (const name of ['ready', 'serving', 'terminating']) {
    const value = conditions[name]
    if (isCondition(value)) continue
    refuse(
      findings,
      `endpoints[${index}].conditions.${name}`,
      value,
      'not a condition; true, false and null are accepted',
    )
  }
}

type HintField = 'forZones' | 'forNodes'

function readHints(reading: Reading, hints: Json, field: HintField, index: number): readonly string[] {
  const value = hints[field]
  if (value === undefined || value === null) return NO_NAMES
  const list = Array.isArray(value)
    ? value
    : listField(reading.findings, value, `endpoints[${index}].hints.${field}`)
  const names: string[] = []
  for (const hint of list) {
    if (isJson(hint) && typeof hint.name === 'string') names.push(pooled(reading.pool, hint.name))
  }
  return trimmed(names)
}
