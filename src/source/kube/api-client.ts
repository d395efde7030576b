import { HEADLESS_LABEL } from '../../model/parse.ts'
import { PROXY_NAME_LABEL } from '../../model/parse-service.ts'
import type { KernelState } from '../source.ts'
import type { ApiKind } from './wire/tables.ts'

export interface ApiRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH'
  /** Path and query, encoded, from the server's root: `/api/v1/services?limit=500`. */
  readonly path: string
  /** Media types in order of preference. */
  readonly accept: string
  /** Sent as JSON unless contentType says otherwise. */
  readonly body?: string
  readonly contentType?: string
  /** Longest time until the status arrives, credentials aside, and then between two pieces of the body; milliseconds. */
  readonly idleMs: number
  /** Watches may be silent as long as the connection answers PINGs: idleMs then counts until the status alone. */
  readonly longLived: boolean
  /** The API server itself is to answer, no relay. */
  readonly isDirect?: boolean
  readonly signal: AbortSignal
}

/** Maximum wait that a server may request. */
export const RETRY_AFTER_MS_MAX = 300_000

export interface ApiResponse {
  readonly status: number
  /** Media type in lower case with its parameters: `application/json;stream=watch`. */
  readonly contentType: string
  /** The value of Retry-After, clamped to 0 … 300 s; undefined without a readable header. */
  readonly retryAfterMs: number | undefined
  /**
   * The bytes as they arrive, decompressed. Throws ApiError when the connection is lost before their end. A caller that does
   * not read to the end leaves the loop (`return`), which cancels the stream at the server.
   */
  readonly body: ApiBody
}

export interface ApiBody extends AsyncIterable<Uint8Array> {
  /** Gives the next piece if it has arrived; absent where only the loop gives pieces. */
  arrived?(): Uint8Array | undefined
  /** Leaves what arrives in the kernel, as far as the connection can and for a short time: many pieces then cost one wake. */
  hold?(): void
  /** Ends hold(). Resolves when what has arrived meanwhile is read. */
  resume?(): Promise<void>
}

/** Reads a whole body. Undefined when it is larger. */
export async function collect({ body }: ApiResponse, bytesMax: number): Promise<Buffer | undefined> {
  const pieces: Uint8Array[] = []
  let bytes = 0
  for await (const piece of body) {
    bytes += piece.length
    if (bytes > bytesMax) return undefined
    pieces.push(piece)
  }
  return Buffer.concat(pieces)
}

/**
 * Speaks with one API server over one HTTP/2 connection, or HTTP/1.1 where the server has no other. Credentials,
 * certificates and their rotation, redials and dead-peer detection are its business; retries are the caller's, except
 * for one repetition after a 401 with credentials read anew, and one of a request that the server turned down unseen.
 */
export interface ApiClient {
  /** Rejects with ApiError; any HTTP status is a response. Waits for its turn under the rate limit. */
  send(request: ApiRequest): Promise<ApiResponse>
  /** Base URL, for messages. */
  readonly server: string
  /** The client of relays uses the API server instead of them. Absent for a client without relays. */
  readonly isDirect?: boolean | undefined
  /** Reports what the kernel holds to a relay; absent for a client without relays. */
  report?(state: KernelState): void
  /**
   * SHA-256 of each certificate that vouches for the server, as configured now; none without a configured authority. Throws
   * ApiError 'credentials' when they cannot be read. Absent where there are no certificates.
   */
  authorities?(): Promise<readonly string[]>
  /** Gives when the credentials expire. Throws ApiError 'credentials' when they cannot be read. Absent where there are none. */
  credentialsEnd?(): Promise<CredentialsEnd>
  /** Ends the connection and every request. Idempotent. */
  close(): Promise<void>
}

/** Milliseconds since 1970; undefined where there is no such credential, or where it does not say. */
export interface CredentialsEnd {
  readonly tokenMs: number | undefined
  readonly certificateMs: number | undefined
}

export type ApiErrorKind =
  /** Connection refused, no address for the host, no route. */
  | 'unreachable'
  /** The connection ended before the response did: reset, GOAWAY, a cut stream. */
  | 'lost'
  /** Neither bytes nor an answer to a PING in time. */
  | 'silent'
  /** The server's certificate is not the one that was to be expected. */
  | 'tls'
  /** No usable credentials: a file is missing, a plugin failed. */
  | 'credentials'
  /** Larger than any honest answer, or not HTTP. */
  | 'protocol'
  /** The caller's signal. */
  | 'aborted'

/** A request that got no whole answer. The message names method, path and server, and never a secret. */
export class ApiError extends Error {
  readonly kind: ApiErrorKind

  constructor(kind: ApiErrorKind, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'ApiError'
    this.kind = kind
  }
}

/** A set of objects at the API server that is listed and watched as a whole. */
export interface Resource {
  /** Plural in lower case. */
  readonly name: string
  readonly kind: ApiKind
  /** The path from the server's root. */
  readonly path: string
  /** Empty for none. */
  readonly labelSelector: string
  readonly fieldSelector: string
  /** Old servers have no such thing, and some roles may not read it: the rest works without. */
  readonly optional: boolean
  /** Key of the one object that counts; undefined for all. */
  readonly only: string | undefined
}

interface WatchedOptions {
  readonly nodeName: string
  /** The value of the proxy label; undefined to watch Services without the label. */
  readonly serviceProxyName: string | undefined
}

/**
 * Lists the resources that kube-proxy watches, with its selectors. A named proxy watches headless Services and their
 * slices, too: their external addresses are its own. EndpointSlices are not selected by proxy name: those made by hand
 * need not bear the label of their Service.
 */
export function watchedResources({ nodeName, serviceProxyName }: WatchedOptions): readonly Resource[] {
  const isNamed = serviceProxyName !== undefined
  return [
    {
      ...ALL,
      name: 'services',
      kind: 'Service',
      path: '/api/v1/services',
      labelSelector: isNamed ? `${PROXY_NAME_LABEL}=${serviceProxyName}` : `!${PROXY_NAME_LABEL}`,
      fieldSelector: isNamed ? '' : 'spec.clusterIP!=None',
    },
    {
      ...ALL,
      name: 'endpointslices',
      kind: 'EndpointSlice',
      path: '/apis/discovery.k8s.io/v1/endpointslices',
      labelSelector: isNamed ? '' : `!${HEADLESS_LABEL}`,
    },
    {
      ...ALL,
      name: 'nodes',
      kind: 'Node',
      path: '/api/v1/nodes',
      fieldSelector: `metadata.name=${nodeName}`,
      only: nodeName,
    },
    {
      ...ALL,
      name: 'servicecidrs',
      kind: 'ServiceCIDR',
      path: '/apis/networking.k8s.io/v1/servicecidrs',
      optional: true,
    },
  ]
}

const ALL = { labelSelector: '', fieldSelector: '', optional: false, only: undefined } as const

/** Path and query of a request for the resource: its selectors, then `query`. */
export function requestPath(resource: Resource, query: Readonly<Record<string, string>>): string {
  const { path, labelSelector, fieldSelector } = resource
  const all = { labelSelector, fieldSelector, ...query }
  const parts = Object.entries(all)
    .filter(([, value]) => value !== '')
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
  return parts.length === 0 ? path : `${path}?${parts.join('&')}`
}
