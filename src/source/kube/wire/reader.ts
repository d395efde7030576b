/*
 * What a list or a watch is once its bytes are read, in either encoding. Objects have the shape and the field
 * names of the API's JSON form, as parseObject of the model takes them; a reader of protobuf fills in only the fields
 * that kprobe uses, and sets apiVersion and kind on every object, which lists omit from their items.
 */

/** An object of the API in its JSON form; unchecked. */
export type ApiObject = { readonly [field: string]: unknown }

/** Takes the bytes of a list as they come. */
export interface ListReader {
  /** Calls onItem for each item that these bytes complete. Throws WireError. */
  push(bytes: Uint8Array): void
  /** The list's own metadata once the last byte was pushed. Throws WireError when the list is truncated. */
  end(): ListMeta
}

export interface ListMeta {
  readonly resourceVersion: string
  /** Token for the next page; empty on the last. */
  readonly continue: string
}

/** Takes the bytes of a watch as they come. */
export interface WatchReader {
  /** The events that these bytes complete. Throws WireError. */
  push(bytes: Uint8Array): readonly WatchEvent[]
  /** Throws WireError when the stream ended within an event. */
  end(): void
}

export interface WatchEvent {
  /** ADDED, MODIFIED, DELETED, BOOKMARK, ERROR; others are the caller's to skip. */
  readonly type: string
  /** The object; a Status for ERROR. */
  readonly object: ApiObject
}

/** Kind of a reader's objects: which fields are read, and what apiVersion and kind items get. */
export type ApiKind = 'Service' | 'EndpointSlice' | 'ServiceCIDR' | 'Node'

export interface ReaderOptions {
  readonly kind: ApiKind
  /** Longest encoded form of one object, or of one event of a watch, bytes; more is a WireError. */
  readonly objectBytesMax: number
  /** Also read the fields that only back ends get: all labels and annotations, target ports, hostnames. */
  readonly details?: boolean
}

export interface ListReaderOptions extends ReaderOptions {
  readonly onItem: (object: ApiObject) => void
}
