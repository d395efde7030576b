import type { ApiBody, ApiResponse } from '../source/kube/api-client.ts'
import { compareVersions } from '../source/kube/object-index.ts'
import { UNKNOWN, WATCH_EVENT } from '../source/kube/wire/tables.ts'
import { encodeMessage } from '../wire/protobuf/encoder.ts'
import { bytes, list, type MessageOf, message, table, text } from '../wire/protobuf/table.ts'
import type { discovery } from './schema.ts'
import type { RelayedType } from './types.ts'

type Resource = MessageOf<typeof discovery.Resource>

export function response(status: number, contentType: string, body: ApiBody): ApiResponse {
  return { status, contentType, retryAfterMs: undefined, body }
}

interface Status {
  readonly code: number
  readonly reason: string
  readonly message: string
  readonly details?: { readonly causes: readonly object[] }
}

/** A refusal in the words of the API server. */
export function statusResponse(status: Status): ApiResponse {
  const bytes = Buffer.from(JSON.stringify({ kind: 'Status', apiVersion: 'v1', ...status }))
  return response(status.code, 'application/json', bodyOf(bytes))
}

export function bodyOf(bytes: Buffer): ApiBody {
  return {
    async *[Symbol.asyncIterator]() {
      yield bytes
    },
  }
}

/** The refusal of metadata: a node compares nothing itself. */
export const UNSERVED = statusResponse({
  code: 503,
  reason: 'ServiceUnavailable',
  message: 'ServiceUnavailable',
})
/** The refusal of a list: every relay is older than what the node holds. */
export const TOO_LARGE = statusResponse({
  ...{ code: 504, reason: 'Timeout', message: 'Timeout' },
  details: { causes: [{ reason: 'ResourceVersionTooLarge' }] },
})

/** The body of a watch that ends in good order when we end it. */
export function endingBody(body: ApiBody, isOurs: () => boolean, left: () => void): ApiBody {
  const read = async function* (): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for await (const part of body) yield part
    } catch (error) {
      if (!isOurs()) throw error
    } finally {
      left()
    }
  }
  return {
    [Symbol.asyncIterator]: read,
    ...(body.arrived === undefined ? {} : { arrived: () => body.arrived?.() }),
  }
}

/*
 * The answers of a relay in the API server's format: bodies of lists and watches in protobuf. By that a node reads from a relay
 * as it reads from the API server, and judges both alike.
 */

export const LIST_TYPE = 'application/vnd.kubernetes.protobuf'
export const WATCH_TYPE = 'application/vnd.kubernetes.protobuf;stream=watch'

/** Every body in protobuf begins with `k8s` and a NUL. */
const MAGIC: readonly number[] = [0x6b, 0x38, 0x73, 0]
const META = table({
  name: [1, text],
  namespace: [3, text],
  resourceVersion: [6, text],
  annotations: [12, list(message(table({ key: [1, text], value: [2, text] })))],
})
const BARE = table({ metadata: [1, message(META)] })
const WHOLE_LIST = table({
  metadata: [1, message(table({ resourceVersion: [2, text] }))],
  items: [2, list(bytes)],
})
export const END_OF_LIST: readonly { readonly key: string; readonly value: string }[] = [
  { key: 'k8s.io/initial-events-end', value: 'true' },
]

/** Events of a whole state, in parts: none of them gives the position of the watch. */
export function additions(type: RelayedType, resources: readonly Resource[]): Buffer {
  return Buffer.concat(resources.map(its => event(type, 'ADDED', its.resource?.value)))
}

/**
 * Events of a whole difference. Wherever a reader stops, the version that it has heard last says what it knows: deletions come
 * first, with the version before, then objects in the order of their versions.
 */
export function changes(
  type: RelayedType,
  { resources, removed }: { readonly resources: readonly Resource[]; readonly removed: readonly string[] },
  [before, revision]: readonly [before: string, revision: string],
): Buffer {
  const inOrder = [...resources].sort((a, b) => compareVersions(a.version ?? '', b.version ?? '') ?? 0)
  return Buffer.concat([
    ...removed.map(name => event(type, 'DELETED', bareObject(name, before))),
    ...inOrder.map(its => event(type, 'MODIFIED', its.resource?.value)),
    bookmark(type, revision),
  ])
}

/** Says how far the watch is; with END_OF_LIST, also that the whole state was sent. */
export function bookmark(
  type: RelayedType,
  resourceVersion: string,
  annotations: typeof END_OF_LIST = [],
): Buffer {
  return event(type, 'BOOKMARK', encodeMessage(BARE, { metadata: { resourceVersion, annotations } }))
}

export function wholeList(
  type: RelayedType,
  resources: readonly Resource[],
  resourceVersion: string,
): Buffer {
  const items = resources.flatMap(its => its.resource?.value ?? [])
  return envelope(
    { ...type, kind: `${type.kind}List` },
    encodeMessage(WHOLE_LIST, { metadata: { resourceVersion }, items }),
  )
}

function bareObject(key: string, resourceVersion: string): Buffer {
  const slash = key.indexOf('/')
  const namespace = slash < 0 ? '' : key.slice(0, slash)
  return encodeMessage(BARE, { metadata: { name: key.slice(slash + 1), namespace, resourceVersion } })
}

const LENGTH_BYTES = 4

function event(type: RelayedType, what: string, object: Buffer | undefined): Buffer {
  const raw = envelope(type, object ?? Buffer.alloc(0))
  const frame = encodeMessage(WATCH_EVENT, { type: what, object: { raw } }, LENGTH_BYTES)
  frame.writeUInt32BE(frame.length - LENGTH_BYTES, 0)
  return frame
}

function envelope(
  { apiVersion, kind }: { readonly apiVersion: string; readonly kind: string },
  raw: Buffer,
): Buffer {
  const unknown = encodeMessage(UNKNOWN, { typeMeta: { apiVersion, kind }, raw }, MAGIC.length)
  unknown.set(MAGIC)
  return unknown
}
