import { gzipSync } from 'node:zlib'
import type { Cancel } from '../../../src/base/clock.ts'
import type { WatchEvent } from '../../../src/source/kube/wire/tables.ts'
import { routeOf } from './resources.ts'
import { type ServerRequest, type Twist, verbOf } from './semantics.ts'

/** Where in a response: before its head, after so many bytes of its body, or after so many events of a watch. */
export type Moment = 'before' | { readonly bytes: number } | { readonly events: number }

/** What becomes of a response at a moment. */
export type Ending =
  /** In good order: a list is cut short, a watch is closed as always; before the head, no answer comes at all. */
  | 'end'
  /** The connection is lost with all that is on it. */
  | 'reset'
  /** The connection stays and nothing is heard on it any more, no answer to a PING either. */
  | 'stall'
  /** RST_STREAM with INTERNAL_ERROR; HTTP/1.1 has no other way than `reset`. */
  | 'rst-stream'

export type Fault =
  | { readonly kind: 'ending'; readonly ending: Ending; readonly at: Moment }
  /** The session takes no new streams; those it has go on. With a code other than 0 they end, too. */
  | { readonly kind: 'goaway'; readonly code?: number; readonly at: Moment }
  /** A Status, or a page of a proxy when `html`. */
  | {
      readonly kind: 'status'
      readonly code: number
      readonly reason?: string
      readonly retryAfter?: string
      readonly html?: boolean
    }
  | {
      readonly kind: 'answer'
      readonly headers: Readonly<Record<string, string>>
      readonly body: () => Uint8Array
    }
  | { readonly kind: 'delay'; readonly ms: number }
  | { readonly kind: 'slow'; readonly bytesPerSecond: number }
  /** Bytes that nobody meant, in the middle of the others. */
  | { readonly kind: 'bytes'; readonly at: Exclude<Moment, 'before'>; readonly bytes: () => Uint8Array }
  /** An event that is none of the store's: an ERROR, a Table, an unknown type. */
  | { readonly kind: 'event'; readonly after: number; readonly event: WatchEvent }
  | { readonly kind: 'lose'; readonly which: EventMatch }
  | { readonly kind: 'duplicate'; readonly which: EventMatch }
  /** Groups of so many events arrive backwards. */
  | { readonly kind: 'reverse'; readonly group: number }
  | ({ readonly kind: 'twist' } & Twist)

type EventMatch = (event: WatchEvent, index: number) => boolean

/** A request as rules look at it; empty texts for what is no resource. */
interface Seen {
  readonly resource: string
  /** list, watch, get, create or patch. */
  readonly verb: string
}

export function seenOf({ method, path }: ServerRequest): Seen {
  const { pathname, searchParams } = new URL(path, 'http://server')
  const route = routeOf(pathname)
  if (route.kind === 'plain') return { resource: '', verb: '' }
  return { resource: route.plural, verb: verbOf(method, route, searchParams) }
}

export interface FaultRule {
  readonly resource?: string
  readonly verb?: string
  /** Requests that get it; all by default. */
  readonly times?: number
  readonly faults: readonly Fault[]
}

/** What goes wrong, request by request. The rules that match add up. */
export class FaultScript {
  readonly #rules = new Set<{ readonly rule: FaultRule; seen: number }>()

  /** Holds until the result is called. */
  add(rule: FaultRule): Cancel {
    const entry = { rule, seen: 0 }
    this.#rules.add(entry)
    return () => this.#rules.delete(entry)
  }

  clear(): void {
    this.#rules.clear()
  }

  faultsFor(seen: Seen): readonly Fault[] {
    const found: Fault[] = []
    for (const entry of this.#rules) {
      const { resource, verb, times = Number.POSITIVE_INFINITY, faults } = entry.rule
      const matches =
        (resource === undefined || resource === seen.resource) && (verb === undefined || verb === seen.verb)
      if (!matches) continue
      if (entry.seen++ < times) found.push(...faults)
    }
    return found
  }
}

export function errorEvent(code: number, reason: string): WatchEvent {
  const status = { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure' }
  return { type: 'ERROR', object: { ...status, message: reason, reason, code } }
}

export const EXPIRED_EVENT: Readonly<WatchEvent> = errorEvent(410, 'Expired')

/** What a server answers that was asked for a table, or believes so. */
export function tableObject(): WatchEvent['object'] {
  return {
    kind: 'Table',
    apiVersion: 'meta.k8s.io/v1',
    metadata: { resourceVersion: '1' },
    columnDefinitions: [{ name: 'Name', type: 'string' }],
    rows: [{ cells: ['web'], object: { kind: 'PartialObjectMetadata', metadata: { name: 'web' } } }],
  }
}

export const BAD_UTF8: Readonly<Uint8Array> = Uint8Array.of(0xc3, 0x28, 0xff, 0xfe)
export const NULS: Readonly<Uint8Array> = new Uint8Array(16)

/** A line without an end. */
export function longLine(bytes: number): Uint8Array {
  return new Uint8Array(bytes).fill(0x61)
}

/** Small on the wire, `bytes` long when unpacked: the beginning of a list and then blanks. */
export function gzipBomb(bytes: number): Fault {
  const body = () => gzipSync(Buffer.alloc(bytes, ' '), { level: 9 })
  return { kind: 'answer', headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' }, body }
}
