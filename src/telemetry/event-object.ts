import type { EventFact, EventObject } from './event-facts.ts'
import { microTime } from './rfc3339.ts'

/** One write to events.k8s.io/v1. */
export type EventWrite =
  | { readonly method: 'POST'; readonly path: string; readonly body: object }
  /** A JSON merge patch. */
  | { readonly method: 'PATCH'; readonly path: string; readonly body: object }

export interface EventIdentity {
  readonly namespace: string
  readonly name: string
}

export interface EventReporter {
  readonly controller: string
  /** At most 128 characters. */
  readonly instance: string
}

const NAME_LENGTH_MAX = 253
const DIGITS_MAX = 20

/** Makes a unique name of the time in nanoseconds, as kube-proxy does; `count` distinguishes events of one moment. */
export function identityOf(object: EventObject, wallMs: number, count: number): EventIdentity {
  const slash = object.kind === 'Service' ? object.key.indexOf('/') : -1
  const full = object.kind === 'Service' ? object.key.slice(slash + 1) : object.name
  const nanoseconds = BigInt(Math.trunc(wallMs)) * 1_000_000n + BigInt(count % 1_000_000)
  const name = `${full.slice(0, NAME_LENGTH_MAX - DIGITS_MAX)}.${nanoseconds.toString(16)}`
  return { namespace: object.kind === 'Service' ? object.key.slice(0, slash) : 'default', name }
}

/** Makes the write of a new event, or of a whole series whose event the API server has deleted. */
export function creation(
  fact: EventFact,
  identity: EventIdentity,
  at: {
    readonly reporter: EventReporter
    /** The UID of the object that the event regards; `kubectl describe` selects events by it. Empty when unknown. */
    readonly uid: string
    readonly firstWallMs: number
    readonly series: EventSeries | undefined
  },
): EventWrite {
  const { type, reason, action, note, regarding } = fact
  const { reporter, uid, firstWallMs, series } = at
  const body = {
    apiVersion: 'events.k8s.io/v1',
    kind: 'Event',
    metadata: { name: identity.name, namespace: identity.namespace },
    eventTime: microTime(firstWallMs),
    ...(series === undefined ? {} : { series: seriesOf(series) }),
    reportingController: reporter.controller,
    reportingInstance: reporter.instance,
    action,
    reason,
    regarding: referenceOf(regarding, uid),
    note,
    type,
  }
  return { method: 'POST', path: collection(identity), body }
}

export interface EventSeries {
  /** At least 2. */
  readonly count: number
  readonly lastWallMs: number
}

/** Makes the write of a repeated event: its count and last time. */
export function repetition(identity: EventIdentity, series: EventSeries): EventWrite {
  const path = `${collection(identity)}/${encodeURIComponent(identity.name)}`
  return { method: 'PATCH', path, body: { series: seriesOf(series) } }
}

function seriesOf({ count, lastWallMs }: EventSeries): object {
  return { count, lastObservedTime: microTime(lastWallMs) }
}

function collection({ namespace }: EventIdentity): string {
  return `/apis/events.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/events`
}

function referenceOf(object: EventObject, uid: string): object {
  const known = uid === '' ? {} : { uid }
  if (object.kind === 'Node') return { apiVersion: 'v1', kind: 'Node', name: object.name, ...known }
  const slash = object.key.indexOf('/')
  const [namespace, name] = [object.key.slice(0, slash), object.key.slice(slash + 1)]
  return { apiVersion: 'v1', kind: 'Service', namespace, name, ...known }
}
