import { joined, mapDefined, trimmed } from '../base/collections.ts'
import { compareIps, type Family, type Ip } from '../base/ip.ts'
import {
  type Findings,
  identityOf,
  isDnsLabel,
  isDnsSubdomain,
  isJson,
  isPort,
  isRefusal,
  type Json,
  labelsOf,
  listField,
  NOT_A_LABEL,
  NOT_A_PORT,
  NOT_A_PROTOCOL,
  objectText,
  printable,
  protocolOf,
  type Refusal,
  readAddress,
  readIdentity,
  refusalsOf,
  refuse,
  refuseNumber,
  type WatchedIdentity,
  type WatchedKind,
  wholeRefusal,
  whyNotAddress,
} from './fields.ts'
import { parseNode, parseServiceCidr } from './parse-node.ts'
import { parseService, readHostnames, readServiceDetails } from './parse-service.ts'
import {
  type Endpoint,
  type EndpointConditions,
  type EndpointHints,
  type EndpointPort,
  type EndpointSlice,
  NO_HINTS,
  type ServiceKey,
} from './service.ts'
import { type SourceEvent, ValuePool } from './snapshot.ts'

export interface ParseOptions {
  /** Keep the slices of headless Services: a named proxy may serve these. */
  readonly headlessSlices?: boolean
  /** Keep the fields that only back ends get (ServiceDetails, hostnames). */
  readonly details?: boolean
}

/**
 * Reads one whole object (with apiVersion and kind) of unknown origin. A Refusal means that nothing of it can be used:
 * an earlier version of it (see watchedIdentity) is then to be deleted. Undefined means a kind that kprobe does not watch.
 * An object that is watched but of no interest (a slice of a headless Service) gives the event that deletes it.
 */
export function parseObject(
  object: unknown,
  pool = new ValuePool(),
  options: ParseOptions = {},
): SourceEvent | Refusal | undefined {
  const identity = watchedIdentity(object)
  if (identity !== undefined) return parseIdentified(identity, pool, options)
  return isJson(object) ? undefined : wholeRefusal('object', '', object, 'not an object')
}

/** Makes a parser for objects whose identity was read already. */
export function parserOf(pool = new ValuePool(), options: ParseOptions = {}) {
  return (identity: WatchedIdentity): SourceEvent | Refusal => parseIdentified(identity, pool, options)
}

function parseIdentified(
  identity: WatchedIdentity,
  pool: ValuePool,
  { headlessSlices = false, details = false }: ParseOptions,
): SourceEvent | Refusal {
  const { kind, key, root } = identity
  if (!isReadVersion(kind, root.apiVersion)) {
    const reason = 'not a supported version; kprobe reads v1'
    return wholeRefusal(`${kind} ${printable(key)}`, 'apiVersion', root.apiVersion, reason)
  }
  switch (kind) {
    case 'Service': {
      const value = parseService(identity, pool)
      if (isRefusal(value)) return value
      return { kind, key, value: details ? { ...value, details: readServiceDetails(root) } : value }
    }
    case 'EndpointSlice': {
      if (!headlessSlices && isHeadlessSlice(identity)) return { kind, key, value: undefined }
      const value = parseEndpointSlice(identity, pool)
      if (isRefusal(value)) return value
      const hostnames = details ? readHostnames(root) : undefined
      return { kind, key, value: hostnames === undefined ? value : { ...value, hostnames } }
    }
    case 'Node': {
      const value = parseNode(identity)
      return isRefusal(value) ? value : { kind, key, value }
    }
    case 'ServiceCIDR': {
      const value = parseServiceCidr(identity)
      return isRefusal(value) ? value : { kind, key, value }
    }
  }
}

/** Kind and key of an object of a watched kind, whatever else is wrong with it. */
export function watchedIdentity(object: unknown): WatchedIdentity | undefined {
  const kind = isJson(object) ? watchedKind(object) : undefined
  return isJson(object) && kind !== undefined ? identityOf(kind, object) : undefined
}

/** Finds the kind by kind and group: other groups also have a kind Service. */
function watchedKind({ kind, apiVersion }: Json): WatchedKind | undefined {
  if (typeof apiVersion !== 'string') return undefined
  switch (kind) {
    // Constants of ours, which compare by identity: not the text of the object.
    case 'Service':
      return apiVersion.indexOf('/') <= 0 ? 'Service' : undefined
    case 'EndpointSlice':
      return apiVersion.startsWith('discovery.k8s.io/') ? 'EndpointSlice' : undefined
    case 'Node':
      return apiVersion.indexOf('/') <= 0 ? 'Node' : undefined
    case 'ServiceCIDR':
      return apiVersion.startsWith('networking.k8s.io/') ? 'ServiceCIDR' : undefined
    default:
      return undefined
  }
}

/** EndpointSlices before v1 have other fields; ServiceCIDRs were the same in beta. */
function isReadVersion(kind: WatchedKind, apiVersion: unknown): boolean {
  if (kind === 'EndpointSlice') return apiVersion === 'discovery.k8s.io/v1'
  if (kind === 'ServiceCIDR')
    return apiVersion === 'networking.k8s.io/v1' || apiVersion === 'networking.k8s.io/v1beta1'
  return apiVersion === 'v1'
}

export const SERVICE_LABEL = 'kubernetes.io/service-name'
export const HEADLESS_LABEL = 'service.kubernetes.io/headless'
export const TRIGGER_TIME = 'endpoints.kubernetes.io/last-change-trigger-time'

/** The unnamed proxy skips slices of headless Services: no address leads to them. */
function isHeadlessSlice(watched: WatchedIdentity): boolean {
  return labelsOf(watched)[HEADLESS_LABEL] !== undefined
}

/** Reads the Service of an EndpointSlice; undefined where the slice names none. */
export function sliceServiceOf(watched: WatchedIdentity): ServiceKey | undefined {
  const service = labelsOf(watched)[SERVICE_LABEL]
  const { key } = watched
  return typeof service === 'string' ? key.slice(0, key.indexOf('/') + 1) + service : undefined
}

/** Reads an object of kind EndpointSlice; a Refusal means that nothing of it can be used. */
export function parseEndpointSlice(
  watched: WatchedIdentity,
  pool = new ValuePool(),
): EndpointSlice | Refusal {
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
  const ports = pool.endpointPorts(readPorts(identity, root.ports))
  const { endpoints, names, uids } = readEndpoints({ findings: identity, family, pool }, root.endpoints)
  const triggerTimeMs = readTriggerTime(identity)
  return {
    key: identity.key,
    service: joined([identity.namespace, service], '/'),
    family,
    triggerTimeMs,
    ports,
    endpoints,
    targetNames: names.some(isGiven) ? joined(names, ',') : undefined,
    targetUids: uids.some(isGiven) ? joined(uids, ',') : undefined,
    refusals: refusalsOf(identity),
  }
}

/** Wall-clock milliseconds of the change that an EndpointSlice was written for; 0 if it names none. */
export function readTriggerTime({ metadata }: Pick<WatchedIdentity, 'metadata'>): number {
  const { annotations } = metadata
  const time = isJson(annotations) ? annotations[TRIGGER_TIME] : undefined
  const ms = typeof time === 'string' ? Date.parse(time) : 0
  return Number.isNaN(ms) ? 0 : ms
}

function readPorts(findings: Findings, value: unknown): readonly EndpointPort[] {
  const list = listField(findings, value, 'ports')
  return trimmed(mapDefined(list, (item, index) => readPort(findings, item, index)))
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

interface EndpointReading {
  readonly findings: Findings
  readonly family: Family
  readonly pool: ValuePool
}

/** The endpoints of a slice, sorted by address, with the names and UIDs of their pods. */
function readEndpoints(reading: EndpointReading, value: unknown) {
  const list = listField(reading.findings, value, 'endpoints')
  const read = mapDefined(list, (item, index) => readEndpoint(reading, item, index))
  read.sort((a, b) => compareIps(a.endpoint.ip, b.endpoint.ip))
  return {
    endpoints: read.map(({ endpoint }) => endpoint),
    names: read.map(({ name }) => name),
    uids: read.map(({ uid }) => uid),
  }
}

function isGiven(text: string): boolean {
  return text !== ''
}

interface ReadEndpoint {
  readonly endpoint: Endpoint
  /** The name of the pod; empty for what cannot be one. */
  readonly name: string
  /** The UID of the pod: any text, but commas are escaped. */
  readonly uid: string
}

function readEndpoint(reading: EndpointReading, value: unknown, index: number): ReadEndpoint | undefined {
  if (!isJson(value)) {
    refuse(reading.findings, `endpoints[${index}]`, value, 'not an object')
    return undefined
  }
  const ip = readIp(reading, value.addresses, index)
  if (ip === undefined) return undefined
  const conditions = readConditions(reading.findings, value.conditions, index)
  if (conditions === undefined) return undefined
  const { hints, nodeName, zone } = value
  const traits = reading.pool.traits(
    typeof nodeName === 'string' ? nodeName : '',
    conditions,
    isJson(hints) ? readHints(reading, hints, index) : NO_HINTS,
    typeof zone === 'string' ? zone : '',
  )
  const { kind, name, uid } = isJson(value.targetRef) ? value.targetRef : {}
  // Objects in files may omit the kind, which is empty in protobuf then.
  const isPod = kind === undefined || kind === '' || kind === 'Pod'
  return {
    endpoint: { ip, traits },
    name: isPod && typeof name === 'string' && isDnsSubdomain(name) ? name : '',
    uid: typeof uid === 'string' ? escaped(uid) : '',
  }
}

function escaped(uid: string): string {
  return /[%,]/.test(uid) ? uid.replaceAll('%', '%25').replaceAll(',', '%2C') : uid
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
    return CONDITIONS[conditionBits(ready, serving, terminating)]
  refuseConditions(findings, value, index)
  return undefined
}

function conditionBits(ready: Condition, serving: Condition, terminating: Condition): number {
  return (ready === false ? 0 : 4) | (serving === false ? 0 : 2) | (terminating === true ? 1 : 0)
}

/** The object that all endpoints with these conditions share. */
export function sharedConditions(conditions: EndpointConditions): EndpointConditions {
  const { ready, serving, terminating } = conditions
  return CONDITIONS[conditionBits(ready, serving, terminating)] ?? conditions
}

type Condition = boolean | undefined | null

function isCondition(value: unknown): value is Condition {
  return typeof value === 'boolean' || value === undefined || value === null
}

function refuseConditions(findings: Findings, conditions: Json, index: number): void {
  for (const name of ['ready', 'serving', 'terminating']) {
    const value = conditions[name]
    const reason = 'not a condition; true, false and null are accepted'
    if (!isCondition(value)) refuse(findings, `endpoints[${index}].conditions.${name}`, value, reason)
  }
}

function readHints(reading: EndpointReading, hints: Json, index: number): EndpointHints {
  const { findings, pool } = reading
  const [forZones = [], forNodes = []] = (['forZones', 'forNodes'] as const).map(kind => {
    const list = listField(findings, hints[kind], `endpoints[${index}].hints.${kind}`)
    return list.flatMap(hint => (isJson(hint) && typeof hint.name === 'string' ? [pool.name(hint.name)] : []))
  })
  return forZones.length + forNodes.length === 0 ? NO_HINTS : { forZones, forNodes }
}
