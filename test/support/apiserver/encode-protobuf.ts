import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { encoded } from './encode-table.ts'
import { KINDS, type KindTable, listTable, UNKNOWN, WATCH_EVENT } from './encode-tables.ts'

/*
 * The API's protobuf from objects in the JSON form, byte for byte as Go's serializers write it.
 */

export interface EncodedListMeta {
  readonly resourceVersion?: string
  readonly continue?: string
  readonly remainingItemCount?: number
}

const MAGIC: Readonly<Buffer> = Buffer.from('k8s\0', 'latin1')

/** Whether objects of this kind can be written. */
export function isEncodable(kind: unknown): boolean {
  return typeof kind === 'string' && Object.hasOwn(KINDS, kind)
}

/** The body of a list; `kind` is that of its items, whose apiVersion is the first one's. */
export function encodeList(kind: string, items: readonly ApiObject[], metadata: EncodedListMeta): Buffer {
  const { table, apiVersion } = tableOf(kind)
  const type = { apiVersion: items[0]?.apiVersion ?? apiVersion, kind: `${kind}List` }
  return enveloped(type, encoded(listTable(table), { metadata, items }))
}

export function encodeObject(object: ApiObject): Buffer {
  const { table, apiVersion } = tableOf(object.kind)
  return enveloped({ apiVersion: object.apiVersion ?? apiVersion, kind: object.kind }, encoded(table, object))
}

export function encodeStatus(status: ApiObject): Buffer {
  return encodeObject({ ...status, apiVersion: 'v1', kind: 'Status' })
}

/** One frame of a watch: its length, then the event without an envelope, then the object in one. */
export function encodeWatchEvent(type: string, object: ApiObject): Buffer {
  return framed(encoded(WATCH_EVENT, { type, object: { raw: encodeObject(object) } }))
}

/** What stands around every object, whatever is in it. */
export function enveloped(typeMeta: ApiObject, raw: Uint8Array): Buffer {
  return Buffer.concat([MAGIC, encoded(UNKNOWN, { typeMeta, raw })])
}

export function framed(bytes: Uint8Array): Buffer {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(bytes.length)
  return Buffer.concat([length, bytes])
}

function tableOf(kind: unknown): KindTable {
  const table = typeof kind === 'string' && Object.hasOwn(KINDS, kind) ? KINDS[kind] : undefined
  if (table === undefined) throw new Error(`objects of kind ${String(kind)} cannot be written as protobuf`)
  return table
}
