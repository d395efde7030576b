import { parseDurationMs } from '../base/duration.ts'
import type { Ip } from '../base/ip.ts'
import { readBalance, readFailOver } from './balance.ts'
import {
  type Findings,
  isAbsent,
  isDnsLabel,
  isJson,
  isPort,
  isRefusal,
  type Json,
  labelsOf,
  listField,
  NO_REFUSALS,
  NOT_A_LABEL,
  NOT_A_PORT,
  NOT_A_PROTOCOL,
  objectField,
  plainText,
  protocolOf,
  type Refusal,
  readAddress,
  readIdentity,
  refusalsOf,
  refuse,
  refuseNumber,
  type WatchedIdentity,
} from './fields.ts'
import { isHeadless, readAddresses, readHeadlessAddresses, type ServiceAddresses } from './parse-addresses.ts'
import type { Headless, Service, ServiceDetails, ServicePortSpec, TrafficPolicy } from './service.ts'
import { ValuePool } from './snapshot.ts'

/** Hands a Service to the proxy of that name. */
export const PROXY_NAME_LABEL = 'service.kubernetes.io/service-proxy-name'
export const TCP_DRAIN_ANNOTATION = 'kprobe.io/tcp-drain'
const TCP_DRAIN_MAX_MS = 24 * 3_600_000
export const IPVS_SCHEDULER_ANNOTATION = 'kprobe.io/ipvs-scheduler'
/** Shorter than IP_VS_SCHEDNAME_MAXLEN of linux/ip_vs.h, which counts the NUL. */
const IPVS_SCHEDULER = /^[a-z0-9_-]{1,15}$/
/** The API server's default for sessionAffinity ClientIP. */
const AFFINITY_DEFAULT_S = 10_800
const AFFINITY_MAX_S = 86_400
const NO_ADDRESSES: ServiceAddresses = {
  clusterIps: [],
  externalIps: [],
  loadBalancerIps: [],
  sourceRanges: [],
  writtenRanges: [],
}

/** Reads an object of kind Service; a Refusal means that nothing of it can be used. */
export function parseService(watched: WatchedIdentity, pool = new ValuePool()): Service | Refusal {
  const identity = readIdentity(watched)
  if (isRefusal(identity)) return identity
  const findings: Findings = identity
  const { root, metadata } = identity
  const spec = objectField(findings, root.spec, 'spec')
  const status = objectField(findings, root.status, 'status')
  const type = readType(findings, spec.type)
  const externalTrafficPolicy = readExternalPolicy(findings, spec, type)
  // Nothing of such a Service is proxied, so that nothing of it is worth a complaint.
  const proxyName = readProxyName(labelsOf(identity)[PROXY_NAME_LABEL])
  const headless = readHeadless(spec, proxyName)
  const isIdle = type === 'ExternalName' || (headless === undefined && isHeadless(spec))
  const read = headless === undefined ? readAddresses : readHeadlessAddresses
  const addresses = isIdle ? NO_ADDRESSES : read(findings, spec, status)
  // Without spreads: V8 keeps what follows one outside of the object, and the objects are many.
  return {
    key: identity.key,
    uid: typeof metadata.uid === 'string' ? metadata.uid : '',
    creationTimestamp: readTime(metadata.creationTimestamp),
    type,
    ports: pool.servicePorts(readPorts(findings, spec.ports)),
    clusterIps: addresses.clusterIps,
    externalIps: addresses.externalIps,
    loadBalancerIps: addresses.loadBalancerIps,
    sourceRanges: addresses.sourceRanges,
    writtenRanges: addresses.writtenRanges,
    internalTrafficPolicy: readPolicy(findings, spec.internalTrafficPolicy, 'spec.internalTrafficPolicy'),
    externalTrafficPolicy,
    affinityTimeoutS: readAffinity(findings, spec),
    healthCheckNodePort: readHealthPort(
      findings,
      spec,
      type === 'LoadBalancer' && externalTrafficPolicy === 'Local',
    ),
    tcpDrainMs: readTcpDrain(findings, metadata.annotations),
    ipvsScheduler: readIpvsScheduler(findings, metadata.annotations),
    balance: readBalance(findings, metadata.annotations),
    failsOver: readFailOver(findings, metadata.annotations),
    proxyName,
    headless: isIdle ? undefined : headless,
    refusals: isIdle ? NO_REFUSALS : refusalsOf(findings),
  }
}

/** Any value of the label hands the Service to another proxy, even one that is not text. */
function readProxyName(value: unknown): string | undefined {
  return value === undefined ? undefined : plainText(value)
}

/** The unnamed proxy ignores headless Services, as kube-proxy does. */
function readHeadless(spec: Json, proxyName: string | undefined): Headless | undefined {
  if (proxyName === undefined || !isHeadless(spec)) return undefined
  return isAbsent(spec.ports) || (Array.isArray(spec.ports) && spec.ports.length === 0) ? 'whole' : 'ports'
}

function readTcpDrain(findings: Findings, annotations: unknown): number | undefined {
  const value = isJson(annotations) ? annotations[TCP_DRAIN_ANNOTATION] : undefined
  if (value === undefined || value === 'leave') return undefined
  if (value === 'cut') return 0
  const ms = typeof value === 'string' ? parseDurationMs(value) : undefined
  if (ms !== undefined && ms >= 0 && ms <= TCP_DRAIN_MAX_MS) return ms
  const reason = 'neither leave, cut nor a duration of at most 24h (30s); using leave'
  refuse(findings, `metadata.annotations[${TCP_DRAIN_ANNOTATION}]`, value, reason)
  return undefined
}

/** Accepts schedulers that the kernel may lack: the plane reports those. */
function readIpvsScheduler(findings: Findings, annotations: unknown): string | undefined {
  const value = isJson(annotations) ? annotations[IPVS_SCHEDULER_ANNOTATION] : undefined
  if (value === undefined) return undefined
  if (typeof value === 'string' && IPVS_SCHEDULER.test(value)) return value
  const reason =
    'not the name of a scheduler; 1 to 15 lower-case letters, digits, hyphens and underscores are accepted; ignored'
  refuse(findings, `metadata.annotations[${IPVS_SCHEDULER_ANNOTATION}]`, value, reason)
  return undefined
}

function readType(findings: Findings, value: unknown): Service['type'] {
  if (isAbsent(value) || value === 'ClusterIP') return 'ClusterIP'
  if (value === 'NodePort' || value === 'LoadBalancer' || value === 'ExternalName') return value
  refuse(findings, 'spec.type', value, 'not a type of Service; using ClusterIP')
  return 'ClusterIP'
}

function readPorts(findings: Findings, value: unknown): readonly ServicePortSpec[] {
  const ports = new Map<string, ServicePortSpec>()
  for (const [index, item] of listField(findings, value, 'spec.ports').entries()) {
    const port = readPort(findings, item, index)
    if (port === undefined) continue
    const key = `${port.name}/${port.protocol}`
    if (!ports.has(key)) ports.set(key, port)
    else {
      const reason = 'the name of an earlier port with the same protocol'
      refuse(findings, `spec.ports[${index}].name`, port.name, reason)
    }
  }
  return [...ports.values()]
}

function readPort(findings: Findings, value: unknown, index: number): ServicePortSpec | undefined {
  if (!isJson(value)) {
    refuse(findings, `spec.ports[${index}]`, value, 'not an object')
    return undefined
  }
  const name = value.name ?? ''
  const protocol = protocolOf(value.protocol)
  if (typeof name !== 'string' || (name !== '' && !isDnsLabel(name))) {
    refuse(findings, `spec.ports[${index}].name`, name, NOT_A_LABEL)
  } else if (protocol === undefined) {
    refuse(findings, `spec.ports[${index}].protocol`, value.protocol, NOT_A_PROTOCOL)
  } else if (!isPort(value.port)) {
    refuseNumber(findings, `spec.ports[${index}].port`, value.port, NOT_A_PORT)
  } else {
    return { name, protocol, port: value.port, nodePort: readNodePort(findings, value.nodePort, index) }
  }
  return undefined
}

/** A bad NodePort costs the port its NodePort only. */
function readNodePort(findings: Findings, value: unknown, index: number): number {
  if (value === undefined || value === null || value === 0) return 0
  if (isPort(value)) return value
  refuseNumber(findings, `spec.ports[${index}].nodePort`, value, NOT_A_PORT)
  return 0
}

function readPolicy(findings: Findings, value: unknown, field: string): TrafficPolicy {
  if (value === 'Local') return 'Local'
  if (!isAbsent(value) && value !== 'Cluster') {
    refuse(findings, field, value, 'not a traffic policy; Cluster and Local are accepted; using Cluster')
  }
  return 'Cluster'
}

function readExternalPolicy(findings: Findings, spec: Json, type: Service['type']): TrafficPolicy {
  const policy = readPolicy(findings, spec.externalTrafficPolicy, 'spec.externalTrafficPolicy')
  const hasExternalIps = Array.isArray(spec.externalIPs) && spec.externalIPs.length > 0
  return type === 'NodePort' || type === 'LoadBalancer' || hasExternalIps ? policy : 'Cluster'
}

function readAffinity(findings: Findings, spec: Json): number {
  const affinity = spec.sessionAffinity
  if (affinity !== 'ClientIP') {
    const reason = 'not an affinity; None and ClientIP are accepted; using None'
    if (!isAbsent(affinity) && affinity !== 'None') refuse(findings, 'spec.sessionAffinity', affinity, reason)
    return 0
  }
  const config = objectField(findings, spec.sessionAffinityConfig, 'spec.sessionAffinityConfig')
  const clientIp = objectField(findings, config.clientIP, 'spec.sessionAffinityConfig.clientIP')
  const seconds = clientIp.timeoutSeconds
  if (seconds === undefined || seconds === null) return AFFINITY_DEFAULT_S
  if (typeof seconds === 'number' && Number.isInteger(seconds) && seconds >= 1 && seconds <= AFFINITY_MAX_S)
    return seconds
  const reason = `not a timeout; 1 to ${AFFINITY_MAX_S} seconds are accepted; using ${AFFINITY_DEFAULT_S}`
  refuseNumber(findings, 'spec.sessionAffinityConfig.clientIP.timeoutSeconds', seconds, reason)
  return AFFINITY_DEFAULT_S
}

function readHealthPort(findings: Findings, spec: Json, isUsed: boolean): number {
  const port = spec.healthCheckNodePort
  if (!isUsed || port === undefined || port === null || port === 0) return 0
  if (isPort(port)) return port
  refuseNumber(findings, 'spec.healthCheckNodePort', port, NOT_A_PORT)
  return 0
}

/** Metadata times as the API server writes them, which compare as text; what a file writes otherwise is converted. */
function readTime(value: unknown): string {
  if (typeof value !== 'string') return ''
  if (API_TIME.test(value)) return value
  const ms = Date.parse(value)
  const text = Number.isNaN(ms) ? '' : `${new Date(ms).toISOString().slice(0, 19)}Z`
  // Years beyond four digits get a sign, which sorts before every other year.
  return API_TIME.test(text) ? text : ''
}

const API_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/

/** Reads the details of a Service that parseService() has read. Invalid details cause no refusal. */
export function readServiceDetails(root: Json): ServiceDetails {
  const metadata = isJson(root.metadata) ? root.metadata : NOTHING
  const spec = isJson(root.spec) ? root.spec : NOTHING
  return {
    labels: textsOf(metadata.labels),
    annotations: textsOf(metadata.annotations),
    targetPorts: targetPortsOf(spec.ports),
  }
}

/** Reads the hostnames of a slice's endpoints, by address. Undefined without any. */
export function readHostnames({ endpoints }: Json): Readonly<Record<Ip, string>> | undefined {
  if (!Array.isArray(endpoints)) return undefined
  const names: Record<Ip, string> = {}
  for (const endpoint of endpoints) {
    if (!isJson(endpoint) || !Array.isArray(endpoint.addresses)) continue
    const { addresses, hostname } = endpoint
    const ip = readAddress(addresses[0])
    if (typeof hostname !== 'string' || hostname === '' || ip === undefined) continue
    names[ip] ??= hostname
  }
  return Object.keys(names).length === 0 ? undefined : names
}

const NOTHING: Json = {}

function textsOf(value: unknown): Readonly<Record<string, string>> {
  if (!isJson(value)) return {}
  const texts: Record<string, string> = {}
  for (const [key, text] of Object.entries(value)) if (typeof text === 'string') texts[key] = text
  return texts
}

function targetPortsOf(value: unknown): Readonly<Record<string, number | string>> {
  const targets: Record<string, number | string> = {}
  if (!Array.isArray(value)) return targets
  for (const port of value) {
    if (!isJson(port)) continue
    const { name, protocol, targetPort } = port
    const key = targetKey(typeof name === 'string' ? name : '', typeof protocol === 'string' ? protocol : '')
    const isName = typeof targetPort === 'string' && targetPort !== ''
    if (key in targets || !(isName || (isPort(targetPort) && targetPort !== port.port))) continue
    targets[key] = targetPort
  }
  return targets
}

/** A key of ServiceDetails.targetPorts. */
export function targetKey(name: string, protocol: string): string {
  return `${name}/${protocol || 'TCP'}`
}
