import { cut, joined, listFor, trimmed } from '../base/compact.ts'
import type { Family, Ip } from '../base/ip.ts'
import { readAddress, whyNotAddress } from './address.ts'
import {
  type Endpoint,
  type EndpointConditions,
  type EndpointHints,
  type EndpointSlice,
  NO_HINTS,
} from './endpoint.ts'
import { isJson, type Json, listField } from './fields.ts'
import { isDnsSubdomain, type NamePool, pooled } from './names.ts'
import { type Findings, refuse } from './refusal.ts'

interface EndpointReading {
  readonly findings: Findings
  readonly family: Family
  readonly pool: NamePool | undefined
}

/** What a slice says of its endpoints (EndpointSlice). */
type ReadEndpoints = Pick<EndpointSlice, 'endpoints'> & { readonly targetNames: string | undefined }

/** The endpoints of a slice, sorted by address, with the names of their pods. */
export function readEndpoints(reading: EndpointReading, value: unknown): ReadEndpoints {
  const list = listField(reading.findings, value, 'endpoints')
  const endpoints = listFor<Endpoint>(list.length)
  const names = listFor<string>(list.length)
  let count = 0
  let isSorted = true
  let isNamed = false
  let last = ''
  for (let index = 0; index < list.length; index++) {
    const endpoint = readEndpoint(reading, list[index], index)
    if (endpoint === undefined) continue
    const name = targetNameOf(list[index])
    isNamed ||= name !== ''
    names[count] = name
    endpoints[count++] = endpoint
    isSorted &&= last <= endpoint.ip
    last = endpoint.ip
  }
  const read = cut(endpoints, count)
  const inOrder = isSorted ? read : read.toSorted(byIp)
  const known = cut(names, count)
  const namesInOrder = isSorted || !isNamed ? known : namesOfSorted(inOrder, read, known)
  return { endpoints: inOrder, targetNames: isNamed ? joined(namesInOrder, ',') : undefined }
}

function namesOfSorted(
  sorted: readonly Endpoint[],
  read: readonly Endpoint[],
  names: readonly string[],
): readonly string[] {
  const byEndpoint = new Map(read.map((endpoint, index) => [endpoint, names[index] ?? '']))
  return sorted.map(endpoint => byEndpoint.get(endpoint) ?? '')
}

/** Empty for what cannot be the name of a pod. */
function targetNameOf(value: unknown): string {
  const targetRef = isJson(value) ? value.targetRef : undefined
  const name = isJson(targetRef) ? targetRef.name : undefined
  return typeof name === 'string' && isDnsSubdomain(name) ? name : ''
}

/** Compares endpoints of one family, whose addresses compare as text. */
function byIp(a: Endpoint, b: Endpoint): number {
  return a.ip < b.ip ? -1 : a.ip > b.ip ? 1 : 0
}

function readEndpoint(reading: EndpointReading, value: unknown, index: number): Endpoint | undefined {
  if (!isJson(value)) {
    refuse(reading.findings, `endpoints[${index}]`, value, 'not an object')
    return undefined
  }
  const ip = readIp(reading, value.addresses, index)
  if (ip === undefined) return undefined
  const conditions = readConditions(reading.findings, value.conditions, index)
  if (conditions === undefined) return undefined
  const { targetRef, hints, nodeName } = value
  return {
    ip,
    targetUid: isJson(targetRef) && typeof targetRef.uid === 'string' ? targetRef.uid : '',
    nodeName: typeof nodeName === 'string' ? pooled(reading.pool, nodeName) : '',
    conditions,
    hints: isJson(hints) ? readHints(reading, hints, index) : NO_HINTS,
  }
}

/** Consumers must take the first address only: the API says that they are interchangeable. An empty list has none. */
function readIp(reading: EndpointReading, addresses: unknown, index: number): Ip | undefined {
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

/** The conditions, indexed by ready, serving and terminating as the bits 4, 2 and 1. */
const CONDITIONS: readonly EndpointConditions[] = [0, 1, 2, 3, 4, 5, 6, 7].map(bits => ({
  ready: (bits & 4) !== 0,
  serving: (bits & 2) !== 0,
  terminating: (bits & 1) !== 0,
}))

/** An absent condition means "as if nothing was wrong": KEP-1672. */
function readConditions(findings: Findings, value: unknown, index: number): EndpointConditions | undefined {
  if (!isJson(value)) return CONDITIONS[6]
  const { ready, serving, terminating } = value
  if (isCondition(ready) && isCondition(serving) && isCondition(terminating))
    return CONDITIONS[
      (ready === false ? 0 : 4) | (serving === false ? 0 : 2) | (terminating === true ? 1 : 0)
    ]
  refuseConditions(findings, value, index)
  return undefined
}

function isCondition(value: unknown): value is boolean | undefined | null {
  return typeof value === 'boolean' || value === undefined || value === null
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

function readHints(reading: EndpointReading, hints: Json, index: number): EndpointHints {
  const { findings, pool } = reading
  const forZones =
    namesOf(pool, hints.forZones) ??
    refuseNames(findings, hints.forZones, `endpoints[${index}].hints.forZones`)
  const forNodes =
    namesOf(pool, hints.forNodes) ??
    refuseNames(findings, hints.forNodes, `endpoints[${index}].hints.forNodes`)
  return forZones.length + forNodes.length === 0 ? NO_HINTS : { forZones, forNodes }
}

const NO_NAMES: readonly string[] = []

/** Undefined for what is not a list. */
function namesOf(pool: NamePool | undefined, value: unknown): readonly string[] | undefined {
  if (value === undefined || value === null) return NO_NAMES
  if (!Array.isArray(value)) return undefined
  const names: string[] = []
  for (const hint of value)
    if (isJson(hint) && typeof hint.name === 'string') names.push(pooled(pool, hint.name))
  return trimmed(names)
}

function refuseNames(findings: Findings, value: unknown, field: string): readonly string[] {
  listField(findings, value, field)
  return NO_NAMES
}
