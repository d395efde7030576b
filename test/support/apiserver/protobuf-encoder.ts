import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import {
  encodeList,
  encodeObject,
  encodeStatus,
  encodeWatchEvent,
  enveloped,
  framed,
  isEncodable,
} from './encode-protobuf.ts'
import { encoded } from './encode-table.ts'
import { WATCH_EVENT } from './encode-tables.ts'
import { type Encoder, type ListMetadata, PROTOBUF_TYPE } from './encoding.ts'
import type { Resource } from './resources.ts'

/** The API's protobuf, for the kinds that it can be written for here. Each object is encoded once as an event. */
export class ProtobufEncoder implements Encoder {
  readonly contentType = PROTOBUF_TYPE
  readonly watchContentType = `${PROTOBUF_TYPE};stream=watch`
  readonly #events = new WeakMap<ApiObject, Map<string, Uint8Array>>()

  has(kind: string): boolean {
    return isEncodable(kind)
  }

  list({ kind }: Resource, items: readonly ApiObject[], metadata: ListMetadata): Uint8Array {
    return encodeList(kind, items, metadata)
  }

  object(object: ApiObject): Uint8Array {
    return encodeObject(object)
  }

  event(type: string, object: ApiObject): Uint8Array {
    const known = this.#events.get(object) ?? new Map<string, Uint8Array>()
    this.#events.set(object, known)
    const bytes = known.get(type) ?? this.#eventOf(type, object)
    known.set(type, bytes)
    return bytes
  }

  status(status: ApiObject): Uint8Array {
    return encodeStatus(status)
  }

  /** What has no protobuf stands in the envelope as JSON, where no reader expects it. */
  #eventOf(type: string, object: ApiObject): Uint8Array {
    if (isEncodable(object.kind)) return encodeWatchEvent(type, object)
    const { apiVersion, kind } = object
    const raw = enveloped({ apiVersion, kind }, Buffer.from(JSON.stringify(object)))
    return framed(encoded(WATCH_EVENT, { type, object: { raw } }))
  }
}
