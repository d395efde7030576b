import { compareVersions } from '../source/kube/object-index.ts'
import { UNKNOWN, WATCH_EVENT } from '../source/kube/wire/tables.ts'
import { encodeMessage } from '../wire/protobuf/encoder.ts'
import { bytes, list, type MessageOf, message, table, text } from '../wire/protobuf/table.ts'
import type { discovery } from './schema.ts'
import type { RelayedType } from './types.ts'

/*
 * What a relay says, in the words of the API server: bodies of lists and watches in protobuf. By that a node reads from a relay
 * as it reads from the API server, and judges both alike.
 */

type Resource = MessageOf<typeof discovery.Resource>

export const LIST_TYPE = 'application/vnd.kubernetes.protobuf'
export const WATCH_TYPE = 'application/vnd.kubernetes.protobuf;stream=watch'

/** What every body in protobuf begins with: `k8s` and a NUL. */
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
const END_OF_LIST: readonly { readonly key: string; readonly value: string }[] = [
  { key: 'k8s.io/initial-events-end', value: 'true' },
]

/** Events of a whole state, in parts: none of them says how far the watch is. */
export function additions(type: RelayedType, resources: readonly Resource[]): Buffer {
  return Buffer.concat(resources.map(its => event(type, 'ADDED', its.resource?.value)))
}

interface Difference {
  readonly resources: readonly Resource[]
  readonly removed: readonly string[]
  /** The revision before, and the one that the difference leads to. */
  readonly before: string
  readonly revision: string
}

/**
 * Events of a whole difference. Wherever a reader stops, the version that it has heard last says what it knows: deletions come
 * first, with the version before, then objects in the order of their versions.
 */
export function changes(type: RelayedType, { resources, removed, before, revision }: Difference): Buffer {
  const inOrder = [...resources].sort((a, b) => compareVersions(a.version ?? '', b.version ?? '') ?? 0)
  return Buffer.concat([
    ...removed.map(name => event(type, 'DELETED', bareObject(name, before))),
    ...inOrder.map(its => event(type, 'MODIFIED', its.resource?.value)),
    bookmark(type, revision),
  ])
}

export function bookmark(type: RelayedType, resourceVersion: string): Buffer {
  return event(type, 'BOOKMARK', encodeMessage(BARE, { metadata: { resourceVersion } }))
}

/** Says that the whole state was sent. */
export function endOfList(type: RelayedType, resourceVersion: string): Buffer {
  return event(
    type,
    'BOOKMARK',
    encodeMessage(BARE, { metadata: { resourceVersion, annotations: END_OF_LIST } }),
  )
}

/** The body of a list. */
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
