import { microTime, oneLine } from '../base/text.ts'
import type { WrittenEvent } from '../base/written.ts'
import { printable, type Refusal } from '../model/fields.ts'
import { podText } from '../model/pod-names.ts'
import type { ServiceKey } from '../model/service.ts'

/** An event for the object that it regards. Equal facts of a few minutes become one. */
export interface EventFact {
  readonly type: 'Normal' | 'Warning'
  readonly reason: string
  readonly action: string
  readonly note: string
  readonly regarding: EventObject
}

export type EventObject =
  | { readonly kind: 'Node'; readonly name: string }
  | { readonly kind: 'Service'; readonly key: ServiceKey }

export function starting(nodeName: string): EventFact {
  return { ...ofNode(nodeName, 'Starting', 'StartKubeProxy', ''), type: 'Normal' }
}

/** kube-proxy's event when it exits because a server cannot listen. */
export function serverFailed(nodeName: string, server: 'healthz' | 'metrics', error: Error): EventFact {
  const reason = server === 'healthz' ? 'FailedToStartProxierHealthcheck' : 'FailedToStartMetricServer'
  return ofNode(nodeName, reason, 'StartKubeProxy', error.message)
}

/** kube-proxy's event for a health check node port that cannot be opened. */
export function healthCheckFailed(
  nodeName: string,
  failed: { readonly service: ServiceKey; readonly port: number; readonly error: Error },
): EventFact {
  const { service, port, error } = failed
  const what = `node ${nodeName} failed to start healthcheck "${service}" on port ${port}: ${error.message}`
  return ofService(service, 'FailedToStartServiceHealthcheck', 'Listen', what)
}

/** The connection-tracking table is full: the kernel drops new connections of all programs. */
export function conntrackFull(
  nodeName: string,
  table: { readonly entries: number; readonly entriesMax: number },
): EventFact {
  const note = `${table.entries} of ${table.entriesMax} connections are tracked (nf_conntrack_max)`
  return ofNode(nodeName, 'ConntrackTableFull', 'TrackConnections', note)
}

/** A kube-proxy programs the same Services on this node. */
export function kubeProxyBeside(nodeName: string, signs: readonly string[]): EventFact {
  return ofNode(nodeName, 'KubeProxyBeside', 'Program', `kube-proxy beside kprobe: ${signs.join('; ')}`)
}

/** kprobe ignores parts of a Service or of its EndpointSlices. */
export function serviceRefused(service: ServiceKey, refusals: readonly Refusal[]): EventFact {
  const lines = refusals.map(({ object, field, value, reason }) => {
    const of = object === `Service ${printable(service)}` ? '' : `${object}: `
    return `${of}${field} = ${value} ignored: ${reason}`
  })
  return ofService(service, 'ServiceRefused', 'Parse', lines.join('; '))
}

/** The kernel rejects a Service. kprobe retries it and serves all others. */
export function serviceQuarantined(service: ServiceKey, nodeName: string, error: Error): EventFact {
  return ofService(service, 'ServiceQuarantined', 'Program', `node ${nodeName}: ${error.message}`)
}

export function serviceReleased(service: ServiceKey, nodeName: string): EventFact {
  const note = `node ${nodeName}: the kernel accepts it again`
  return { ...ofService(service, 'ServiceReleased', 'Program', note), type: 'Normal' }
}

/** `service` is `namespace/name:port`, `endpoint` `address:port`. */
interface SilentEndpointFacts extends Readonly<Record<'service' | 'endpoint', string>> {
  readonly pod?: string
}

/** An endpoint left more than half of its connections from this node without a reply, in two readings at conntrack. */
export function endpointSilent(nodeName: string, its: SilentEndpointFacts): EventFact {
  const { service, endpoint, pod } = its
  const where = podText(endpoint, pod)
  // Without numbers, which would make a new event of each reading.
  const note = `node ${nodeName}: endpoint ${where} of ${service} leaves most connections without a reply`
  return ofService(service.replace(/:.*$/, ''), 'EndpointSilent', 'TrackConnections', note)
}

/** An endpoint that leaves connections without a reply while others answer gets no new ones from this node for a time. */
export function endpointOut(nodeName: string, its: SilentEndpointFacts): EventFact {
  const { service, endpoint, pod } = its
  const where = podText(endpoint, pod)
  const note = `node ${nodeName}: endpoint ${where} of ${service} leaves connections without a reply while others answer; it gets no new ones from this node for a time`
  return ofService(service.replace(/:.*$/, ''), 'EndpointOut', 'FailOver', note)
}

/** A packet whose fate in the kernel differs from that of Kubernetes' rules. */
interface PacketDifference {
  /** The service port with its address, or the kind of address. */
  readonly name: string
  readonly packet: string
  readonly expected: string
  readonly kernel: string
  readonly rule: string | undefined
}

/** A proof found the first packet with another fate than Kubernetes specifies (--prove). */
export function packetsDiffer(nodeName: string, its: PacketDifference): EventFact {
  const { name, packet, expected, kernel, rule } = its
  const by = rule === undefined ? '' : `; decided by ${rule}`
  const note = `node ${nodeName}: ${name}: ${packet}: Kubernetes: ${expected}; the kernel: ${kernel}${by}`
  return { ...ofNode(nodeName, 'PacketsDiffer', 'Prove', note), ...about(its) }
}

/** The differences that began with this one are over. */
export function packetsAsWanted(nodeName: string, its: PacketDifference): EventFact {
  const note = `node ${nodeName}: the kernel treats every packet as Kubernetes specifies again`
  return { ...ofNode(nodeName, 'PacketsAsWanted', 'Prove', note), type: 'Normal', ...about(its) }
}

/** Gives the Service of a service port; nothing for packets to no Service. */
function about({ name }: PacketDifference): Partial<Pick<EventFact, 'regarding'>> {
  const [, key] = /^([^\s/:]+\/[^\s/:]+)(?::\S*)? at /.exec(name) ?? []
  return key === undefined ? {} : { regarding: { kind: 'Service', key } }
}

function ofService(key: ServiceKey, reason: string, action: string, note: string): EventFact {
  return { type: 'Warning', reason, action, note: noteText(note), regarding: { kind: 'Service', key } }
}

function ofNode(name: string, reason: string, action: string, note: string): EventFact {
  return { type: 'Warning', reason, action, note: noteText(note), regarding: { kind: 'Node', name } }
}

/** Maximum that the API server accepts. */
const NOTE_LENGTH_MAX = 1024

/** Makes one line of ASCII of at most 1 KiB, because the texts come from objects and kernels. */
export function noteText(text: string): string {
  const plain = oneLine(text.slice(0, NOTE_LENGTH_MAX + 1)).replace(/[^\x20-\x7e]/gu, escaped)
  return plain.length <= NOTE_LENGTH_MAX ? plain : `${plain.slice(0, NOTE_LENGTH_MAX - 3)}...`
}

function escaped(character: string): string {
  return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`
}

export function regardingText(object: EventObject): string {
  return object.kind === 'Node' ? `Node ${printable(object.name)}` : `Service ${printable(object.key)}`
}

/** An event as kprobe posts it. */
export interface EventWrite {
  readonly path: string
  readonly body: object
}

export interface EventIdentity {
  readonly namespace: string
  readonly name: string
}

/** Makes a unique name of the time in nanoseconds, as kube-proxy does; `count` distinguishes events of one moment. */
export function identityOf(object: EventObject, wallMs: number, count: number): EventIdentity {
  const slash = object.kind === 'Service' ? object.key.indexOf('/') : -1
  const full = object.kind === 'Service' ? object.key.slice(slash + 1) : object.name
  const nanoseconds = BigInt(Math.trunc(wallMs)) * 1_000_000n + BigInt(count % 1_000_000)
  // A name has 253 letters at most.
  const name = `${full.slice(0, 233)}.${nanoseconds.toString(16)}`
  return { namespace: object.kind === 'Service' ? object.key.slice(0, slash) : 'default', name }
}

export function creation(
  { type, reason, action, note, regarding }: EventFact,
  {
    identity: { namespace, name },
    instance,
    uid,
    wallMs,
  }: {
    readonly identity: EventIdentity
    /** `kube-proxy-NODE`. */
    readonly instance: string
    /** The UID of the object that the event regards; `kubectl describe` selects events by it. Empty when unknown. */
    readonly uid: string
    readonly wallMs: number
  },
): EventWrite {
  const body: WrittenEvent = {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: { name, namespace },
    eventTime: microTime(wallMs),
    reportingController: 'kube-proxy',
    reportingInstance: instance,
    action,
    reason,
    regarding: referenceOf(regarding, uid),
    note,
    type,
  }
  return { path: `/apis/events.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/events`, body }
}

function referenceOf(object: EventObject, uid: string): NonNullable<WrittenEvent['regarding']> {
  const known = uid === '' ? {} : { uid }
  if (object.kind === 'Node') return { apiVersion: 'v1', kind: 'Node', name: object.name, ...known }
  const slash = object.key.indexOf('/')
  const [namespace, name] = [object.key.slice(0, slash), object.key.slice(slash + 1)]
  return { apiVersion: 'v1', kind: 'Service', namespace, name, ...known }
}
