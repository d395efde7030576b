import type { Cancel, Clock } from '../../../src/base/clock.ts'
import type { ApiObject, WatchEvent } from '../../../src/source/kube/wire/tables.ts'
import { isWanted, type ListRequest } from './list.ts'
import { apiVersionOf, type Resource } from './resources.ts'
import type { Selector } from './selectors.ts'
import { type ApiFailure, expired, tooLarge } from './status.ts'
import { type Change, metadataOf, type View } from './store.ts'

export interface EventSink {
  event(event: WatchEvent): void
  /** The watch is over in good order. */
  end(): void
}

interface WatchRequest extends ListRequest {
  readonly resource: Resource
  readonly clock: Clock
  /** 0 for none. */
  readonly bookmarkEveryMs: number
  /** Longest time, when the request names none. */
  readonly timeoutMs: number
  /** The bookmark at the end of the initial events never comes. */
  readonly withholdsEnd?: boolean
}

/** Throws ApiFailure 504 for a version that a streaming list would have to wait for. */
export function checkStart(view: View, { options }: Pick<ListRequest, 'options'>): void {
  const asked = startVersion({ options })
  if (options.sendInitialEvents === true && asked > view.version) throw tooLarge(asked, view.version)
}

function startVersion({ options }: Pick<ListRequest, 'options'>): bigint {
  return BigInt(options.resourceVersion === '' ? '0' : options.resourceVersion)
}

/** 410 when the history that the watch would need is gone; undefined when there is none to need. */
export function expiry(view: View, { options }: ListRequest): ApiFailure | undefined {
  const { resourceVersion, sendInitialEvents } = options
  if (resourceVersion === '' || resourceVersion === '0' || sendInitialEvents === true) return undefined
  const asked = BigInt(resourceVersion)
  return asked < view.compacted
    ? expired(`too old resource version: ${asked} (${view.compacted})`)
    : undefined
}

/** Sends what there is and what comes, until it is over or canceled. */
export function startWatch(view: View, request: WatchRequest, sink: EventSink): Cancel {
  const failure = expiry(view, request)
  if (failure !== undefined) {
    sink.event({ type: 'ERROR', object: failure.status })
    sink.end()
    return () => undefined
  }
  const wanted = isWanted(request)
  const from = startVersion(request)
  const tell = (change: Change | undefined) => {
    // A server that lags behind its client does not tell it again what it knows.
    const isNews = change !== undefined && change.version > from
    const event = isNews ? eventOf(change, wanted) : undefined
    if (event !== undefined) sink.event(event)
  }
  const cancels: Cancel[] = [view.subscribe(request.resource.plural, tell)]
  const stop = () => {
    for (const cancel of cancels.splice(0)) cancel()
  }
  sendStart(view, { request, wanted, sink, tell })
  cancels.push(...timers(view, request, sink, stop))
  return stop
}

interface Start {
  readonly request: WatchRequest
  readonly wanted: Selector
  readonly sink: EventSink
  readonly tell: (change: Change) => void
}

function sendStart(view: View, { request, wanted, sink, tell }: Start): void {
  const { resource, options } = request
  const { resourceVersion, sendInitialEvents } = options
  const anyState = resourceVersion === '' || resourceVersion === '0'
  if (sendInitialEvents ?? anyState) {
    for (const object of view.listAt(resource.plural, view.version))
      if (wanted(object)) sink.event({ type: 'ADDED', object })
    if (sendInitialEvents === true && options.allowBookmarks && request.withholdsEnd !== true)
      sink.event(bookmark(request, view.version, { 'k8s.io/initial-events-end': 'true' }))
  } else if (!anyState)
    for (const change of view.since(resource.plural, BigInt(resourceVersion))) tell(change)
}

function timers(view: View, request: WatchRequest, sink: EventSink, stop: Cancel): readonly Cancel[] {
  const { clock, bookmarkEveryMs, options, timeoutMs } = request
  const totalMs = options.timeoutSeconds === undefined ? timeoutMs : options.timeoutSeconds * 1_000
  const cancelEnd = clock.after(totalMs, () => {
    stop()
    sink.end()
  })
  if (bookmarkEveryMs <= 0 || !options.allowBookmarks) return [cancelEnd]
  let cancelNext: Cancel
  let cancelLast: Cancel = () => undefined
  // The real server sends one 2 s before the end as well.
  if (totalMs < bookmarkEveryMs)
    cancelLast = clock.after(Math.max(0, totalMs - 2_000), () => sink.event(bookmark(request, view.version)))
  const tick = () => {
    cancelNext = clock.after(bookmarkEveryMs, tick)
    sink.event(bookmark(request, view.version))
  }
  cancelNext = clock.after(bookmarkEveryMs, tick)
  return [cancelEnd, () => cancelNext(), () => cancelLast()]
}

function bookmark(
  { resource }: Pick<WatchRequest, 'resource'>,
  version: bigint,
  annotations?: { readonly [key: string]: string },
): WatchEvent {
  const metadata = { resourceVersion: String(version), ...(annotations === undefined ? {} : { annotations }) }
  const object: ApiObject = { kind: resource.kind, apiVersion: apiVersionOf(resource), metadata }
  return { type: 'BOOKMARK', object }
}

/** What a watch with a selector makes of a change: objects come into it and leave it. */
function eventOf({ type, object, previous }: Change, wanted: Selector): WatchEvent | undefined {
  const was = previous !== undefined && wanted(previous)
  const is = type !== 'DELETED' && wanted(object)
  if (is) return { type: was ? 'MODIFIED' : 'ADDED', object }
  if (!was) return undefined
  // The state that was last in it, with the version of the change that took it out.
  const { resourceVersion } = metadataOf(object)
  return { type: 'DELETED', object: { ...previous, metadata: { ...metadataOf(previous), resourceVersion } } }
}
