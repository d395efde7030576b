import { WireError } from '../../../../../src/base/errors.ts'
import { createListReader, createWatchReader } from '../../../../../src/source/kube/wire/encodings.ts'
import type { ApiKind, ApiObject, ListMeta, WatchEvent } from '../../../../../src/source/kube/wire/tables.ts'
import {
  type EncodedListMeta,
  encodeList,
  encodeWatchEvent,
} from '../../../../support/apiserver/encode-protobuf.ts'
import { KINDS } from '../../../../support/apiserver/encode-tables.ts'

export const PROTOBUF = 'application/vnd.kubernetes.protobuf'
export const JSON_TYPE = 'application/json'
export const TYPES = [PROTOBUF, JSON_TYPE] as const
export type BodyType = (typeof TYPES)[number]

export const OBJECT_BYTES_MAX = 1 << 20

/** Items as a server lists them: without their kind. */
export function listBody(
  type: BodyType,
  kind: ApiKind,
  items: readonly ApiObject[],
  metadata: EncodedListMeta = { resourceVersion: '7' },
): Buffer {
  if (type === PROTOBUF) return encodeList(kind, items, metadata)
  const bare = items.map(({ apiVersion: _apiVersion, kind: _kind, ...rest }) => rest)
  const apiVersion = items[0]?.apiVersion ?? KINDS[kind]?.apiVersion
  return Buffer.from(JSON.stringify({ kind: `${kind}List`, apiVersion, metadata, items: bare }))
}

export function eventBytes(type: BodyType, event: WatchEvent): Buffer {
  return type === PROTOBUF
    ? encodeWatchEvent(event.type, event.object)
    : Buffer.from(`${JSON.stringify(event)}\n`)
}

export interface ReadOptions {
  readonly kind?: ApiKind
  readonly objectBytesMax?: number
  readonly details?: boolean
}

export interface ReadList {
  readonly items: readonly ApiObject[]
  readonly metadata: ListMeta
}

export function readList(
  type: string,
  pieces: Iterable<Uint8Array>,
  { kind = 'Service', objectBytesMax = OBJECT_BYTES_MAX, details = false }: ReadOptions = {},
): ReadList {
  const items: ApiObject[] = []
  const reader = createListReader(type, {
    kind,
    objectBytesMax,
    details,
    onItem: item => items.push(item),
  })
  for (const piece of pieces) reader.push(piece)
  return { items, metadata: reader.end() }
}

export function readWatch(
  type: string,
  pieces: Iterable<Uint8Array>,
  { kind = 'Service', objectBytesMax = OBJECT_BYTES_MAX, details = false }: ReadOptions = {},
): readonly WatchEvent[] {
  const reader = createWatchReader(type, { kind, objectBytesMax, details })
  const events: WatchEvent[] = []
  for (const piece of pieces) events.push(...reader.push(piece))
  reader.end()
  return events
}

/** What `run` gives, or the WireError that it throws; anything else that it throws goes on. */
export function wired<T>(run: () => T): T | WireError {
  try {
    return run()
  } catch (error) {
    if (error instanceof WireError) return error
    throw error
  }
}
