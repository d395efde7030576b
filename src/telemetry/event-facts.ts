import { oneLine } from '../base/text.ts'
import { printable, type Refusal } from '../model/refusal.ts'
import type { ServiceKey } from '../model/service.ts'

/** An event for the object that it regards. Equal facts become one series. */
export interface EventFact {
  readonly type: 'Normal' | 'Warning'
  /** `FailedToStartServiceHealthcheck`. */
  readonly reason: string
  readonly action: string
  readonly note: string
  readonly regarding: EventObject
}

export type EventObject =
  | { readonly kind: 'Node'; readonly name: string }
  | { readonly kind: 'Service'; readonly key: ServiceKey }

/** kube-proxy's event when it starts. */
export function starting(nodeName: string): EventFact {
  const regarding: EventObject = { kind: 'Node', name: nodeName }
  return { type: 'Normal', reason: 'Starting', action: 'StartKubeProxy', note: '', regarding }
}

/** kube-proxy's event when it exits because a server cannot listen. */
export function serverFailed(nodeName: string, server: 'healthz' | 'metrics', error: Error): EventFact {
  const reason = server === 'healthz' ? 'FailedToStartProxierHealthcheck' : 'FailedToStartMetricServer'
  const regarding: EventObject = { kind: 'Node', name: nodeName }
  return { type: 'Warning', reason, action: 'StartKubeProxy', note: noteText(error.message), regarding }
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
  const regarding: EventObject = { kind: 'Node', name: nodeName }
  return { type: 'Warning', reason: 'ConntrackTableFull', action: 'TrackConnections', note, regarding }
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

function ofService(key: ServiceKey, reason: string, action: string, note: string): EventFact {
  return { type: 'Warning', reason, action, note: noteText(note), regarding: { kind: 'Service', key } }
}

/** Maximum that the API server accepts. */
const NOTE_LENGTH_MAX = 1024
const ELLIPSIS = '...'

/** Makes one line of ASCII of at most 1 KiB, because the texts come from objects and kernels. */
export function noteText(text: string): string {
  const plain = oneLine(text.slice(0, NOTE_LENGTH_MAX + 1)).replace(/[^\x20-\x7e]/gu, escaped)
  return plain.length <= NOTE_LENGTH_MAX
    ? plain
    : plain.slice(0, NOTE_LENGTH_MAX - ELLIPSIS.length) + ELLIPSIS
}

function escaped(character: string): string {
  return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`
}

/** Formats an object for logs: `Service ns/web`. */
export function regardingText(object: EventObject): string {
  return object.kind === 'Node' ? `Node ${printable(object.name)}` : `Service ${printable(object.key)}`
}
