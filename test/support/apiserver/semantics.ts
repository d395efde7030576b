import { type Clock, systemClock } from '../../../src/base/clock.ts'
import type { WatchEvent } from '../../../src/source/kube/wire/tables.ts'
import { Access } from './access.ts'
import {
  type Accepted,
  acceptedBy,
  type Encoder,
  JsonEncoder,
  PARTIAL_RESOURCE,
  partialOf,
} from './encoding.ts'
import { LaggingView } from './lagging-view.ts'
import { listPage } from './list.ts'
import { listOptionsOf } from './list-options.ts'
import { answerObject } from './objects.ts'
import { ProtobufEncoder } from './protobuf-encoder.ts'
import { RESOURCES, type Resource, type Route, routeOf } from './resources.ts'
import { selectorOf } from './selectors.ts'
import { ApiFailure, badRequest } from './status.ts'
import { Store } from './store.ts'
import { checkStart, type EventSink, expiry, startWatch } from './watch.ts'

export interface ServerRequest {
  readonly method: string
  /** With the query, encoded. */
  readonly path: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: string
}

export type Reply =
  | {
      readonly kind: 'whole'
      readonly code: number
      readonly headers: Readonly<Record<string, string>>
      readonly body: Uint8Array
    }
  | {
      readonly kind: 'watch'
      readonly headers: Readonly<Record<string, string>>
      readonly encode: (event: WatchEvent) => Uint8Array
      /** It begins with a list: Kubernetes 1.37 compresses it where the client takes gzip (WatchListCompression). */
      readonly compressible: boolean
      readonly start: (sink: EventSink) => () => void
    }

/** How a request is to be answered otherwise than in truth. */
export interface Twist {
  /** The server has not heard of so many of the newest versions. */
  readonly behind?: bigint
  readonly emptyList?: boolean
  /** Pages of nothing between the pages of something. */
  readonly emptyPages?: boolean
  readonly ignoresLimit?: boolean
  readonly withholdsEnd?: boolean
}

export interface SemanticsOptions {
  readonly store?: Store
  readonly access?: Access
  readonly clock?: Clock
  /** Uniform in [0, 1). */
  readonly random?: () => number
  /** Groups the server does not have; core cannot be off. Tests may change it. */
  readonly groupsOff?: Iterable<string>
  /** Feature gate WatchList; on by default, as the server's. */
  readonly watchList?: boolean
  readonly bookmarkEveryMs?: number
  /** A watch from a forgotten version gets HTTP status 410 in place of an event. */
  readonly expiredAsStatus?: boolean
  /** Lists with resourceVersion 0 are paged, too. */
  readonly limitAlways?: boolean
}

const BOOKMARK_EVERY_MS = 60_000
/** A watch that names no end lives this long and up to twice as long. */
const WATCH_MIN_MS = 1_800_000

/** What the API server answers, without any transport. The options can be changed while it runs. */
export class Semantics {
  readonly store: Store
  readonly access: Access
  readonly clock: Clock
  readonly groupsOff: Set<string>
  watchList: boolean
  /** Feature gate of Kubernetes 1.37. */
  watchListCompression = true
  bookmarkEveryMs: number
  expiredAsStatus: boolean
  limitAlways: boolean
  /** Kubernetes 1.30 and older know no field of Services but their names. */
  selectsClusterIps = true
  readonly #random: () => number
  readonly #encoders: readonly Encoder[] = [new JsonEncoder(), new ProtobufEncoder()]

  constructor(options: SemanticsOptions = {}) {
    this.store = options.store ?? new Store()
    this.access = options.access ?? new Access()
    this.clock = options.clock ?? systemClock
    this.groupsOff = new Set(options.groupsOff)
    this.watchList = options.watchList ?? true
    this.bookmarkEveryMs = options.bookmarkEveryMs ?? BOOKMARK_EVERY_MS
    this.expiredAsStatus = options.expiredAsStatus ?? false
    this.limitAlways = options.limitAlways ?? false
    this.#random = options.random ?? Math.random
  }

  handle(request: ServerRequest, twist: Twist = {}): Reply {
    const url = new URL(request.path, 'http://server')
    try {
      const route = routeOf(url.pathname)
      const user = this.access.userOf(request.headers.authorization)
      if (route.kind === 'plain') return NOT_FOUND
      const verb = verbOf(request.method, route, url.searchParams)
      const { group, plural, subresource, namespace } = route
      const resourceName = subresource === undefined ? plural : `${plural}/${subresource}`
      this.access.check(user, { verb, group, resource: resourceName, namespace })
      const resource = this.#resourceOf(route)
      if (resource === undefined) return NOT_FOUND
      const accepted = acceptedBy(request.headers.accept ?? '', this.#encoders, resource.kind)
      const asked: Asked = { request, route, resource, accepted, query: url.searchParams, twist }
      if (verb === 'list') return this.#list(asked)
      if (verb === 'watch') return this.#watch(asked)
      return this.#object(asked)
    } catch (error) {
      if (!(error instanceof ApiFailure)) throw error
      return this.failed(error, request.headers.accept ?? '')
    }
  }

  /** A Status in the encoding asked for. */
  failed({ code, status, retryAfter }: ApiFailure, accept: string): Reply {
    const { encoder } = code === 406 ? { encoder: new JsonEncoder() } : acceptedBy(accept, this.#encoders)
    const headers = {
      'content-type': encoder.contentType,
      ...(retryAfter === undefined ? {} : { 'retry-after': retryAfter }),
    }
    return { kind: 'whole', code, headers, body: encoder.status(status) }
  }

  #resourceOf({ group, version, plural }: Extract<Route, { kind: 'resource' }>): Resource | undefined {
    if (this.groupsOff.has(group)) return undefined
    return RESOURCES.find(each => each.group === group && each.version === version && each.plural === plural)
  }

  #view({ behind }: Twist) {
    return behind === undefined ? this.store : new LaggingView(this.store, behind)
  }

  #listRequest({ route, resource, query, twist }: Asked) {
    const options = listOptionsOf(query, this.watchList)
    const { namespace, name } = route
    if (!this.selectsClusterIps && options.fieldSelector.startsWith('spec.clusterIP'))
      throw badRequest('field label not supported: spec.clusterIP')
    const byName = name === undefined ? '' : `metadata.name=${name}`
    const fields = [options.fieldSelector, byName].filter(part => part !== '').join()
    const selector = selectorOf(options.labelSelector, fields)
    const limited = twist.ignoresLimit === true ? { ...options, limit: 0 } : options
    return {
      plural: resource.plural,
      namespace,
      options: limited,
      selector,
      limitAlways: this.limitAlways,
      emptyPages: twist.emptyPages === true,
    }
  }

  #list(asked: Asked): Reply {
    const { resource, accepted, twist } = asked
    const { encoder, partial } = accepted
    const request = this.#listRequest(asked)
    const page = listPage(this.#view(twist), request)
    const none = twist.emptyList === true
    const items = none ? [] : partial ? page.items.map(partialOf) : page.items
    const metadata = none ? { resourceVersion: page.metadata.resourceVersion } : page.metadata
    const body = encoder.list(partial ? PARTIAL_RESOURCE : resource, items, metadata)
    return { kind: 'whole', code: 200, headers: { 'content-type': encoder.contentType }, body }
  }

  #watch(asked: Asked): Reply {
    const { resource, accepted, twist } = asked
    const { encoder, partial } = accepted
    const request = this.#listRequest(asked)
    const view = this.#view(twist)
    checkStart(view, request)
    const old = this.expiredAsStatus ? expiry(view, request) : undefined
    if (old !== undefined) throw old
    const { clock, bookmarkEveryMs } = this
    const timeoutMs = WATCH_MIN_MS * (1 + this.#random())
    const { withholdsEnd = false } = twist
    const watched = { ...request, resource, clock, bookmarkEveryMs, timeoutMs, withholdsEnd }
    return {
      kind: 'watch',
      headers: { 'content-type': encoder.watchContentType },
      compressible: this.watchListCompression && request.options.sendInitialEvents === true,
      encode: ({ type, object }) =>
        encoder.event(type, partial && object.kind === resource.kind ? partialOf(object) : object),
      start: sink => startWatch(view, watched, sink),
    }
  }

  #object({ request, route, resource, accepted }: Asked): Reply {
    const { method, body, headers } = request
    const { namespace, name, subresource } = route
    const contentType = headers['content-type'] ?? ''
    const asked = { method, resource, namespace, name, subresource, body, contentType }
    const { code, object } = answerObject(this.store, asked)
    const { encoder, partial } = accepted
    const answer = encoder.object(partial ? partialOf(object) : object)
    return { kind: 'whole', code, headers: { 'content-type': encoder.contentType }, body: answer }
  }
}

interface Asked {
  readonly request: ServerRequest
  readonly route: Extract<Route, { kind: 'resource' }>
  readonly resource: Resource
  readonly accepted: Accepted
  readonly query: URLSearchParams
  readonly twist: Twist
}

/** The verb as rules name it. */
export function verbOf(
  method: string,
  { name }: { readonly name: string | undefined },
  query: URLSearchParams,
): string {
  switch (method) {
    case 'GET':
      if (/^(true|1)$/.test(query.get('watch') ?? '')) return 'watch'
      return name === undefined ? 'list' : 'get'
    case 'POST':
      return 'create'
    case 'PATCH':
      return 'patch'
    default:
      return method.toLowerCase()
  }
}

/** What no handler is registered for gets text and no Status. */
const NOT_FOUND: Reply = {
  kind: 'whole',
  code: 404,
  headers: { 'content-type': 'text/plain; charset=utf-8' },
  body: Buffer.from('404 page not found\n'),
}
