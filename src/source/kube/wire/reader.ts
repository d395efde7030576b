import { printable } from '../../../model/fields.ts'
import { WireError } from '../../../wire/wire-error.ts'

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

/** An object of the API while it is being read. */
export interface Message {
  [field: string]: unknown
}

export function isMessage(value: unknown): value is Message {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function textIn(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/**
 * Reads the list's own metadata. A list that does not say its version, or says in another type than text where it goes on,
 * may be a part of one: throws WireError.
 */
export function listMetaIn({ metadata }: Message): ListMeta {
  const { resourceVersion, continue: token } = isMessage(metadata) ? metadata : {}
  if (textIn(resourceVersion) === '') throw new WireError('a list without a resource version')
  if (token !== undefined && token !== null && typeof token !== 'string')
    throw new WireError('the continue token of the list is not a string')
  return { resourceVersion: textIn(resourceVersion), continue: textIn(token) }
}

/** apiVersions in which a kind has the fields that are read; the first is what objects without one get. */
const API_VERSIONS: Readonly<Record<ApiKind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  ServiceCIDR: ['networking.k8s.io/v1', 'networking.k8s.io/v1beta1'],
  Node: ['v1'],
}

/** What says of which type an object is; unchecked. */
export interface TypeMeta {
  readonly apiVersion?: unknown
  readonly kind?: unknown
}

export function defaultVersion(kind: ApiKind): string {
  return API_VERSIONS[kind][0]
}

export function isOfKind(type: TypeMeta, kind: ApiKind): boolean {
  return type.kind === kind && API_VERSIONS[kind].some(version => version === type.apiVersion)
}

/** The apiVersion of a list's items. Throws WireError when it is not a list of this kind. */
export function versionOfList({ apiVersion, kind: listKind }: TypeMeta, kind: ApiKind): string {
  const version = API_VERSIONS[kind].find(version => version === apiVersion)
  if (version !== undefined && listKind === `${kind}List`) return version
  throw new WireError(
    `a body of kind ${printable(listKind)} in ${printable(apiVersion)} where a ${kind}List belongs`,
  )
}

/** The object itself, with the type that it should have where it says none: items of lists do not. */
export function withType(object: Message, kind: ApiKind, apiVersion = defaultVersion(kind)): Message {
  object.apiVersion ??= apiVersion
  object.kind ??= kind
  return object
}

/**
 * Bytes that arrive in pieces: each piece is looked at where it lies, and only what it leaves unfinished is copied.
 * The caller bounds the rest; memory of a large rest is released once the rest is consumed.
 */
export class Rest {
  #store: Buffer = EMPTY
  #start = 0
  #end = 0
  #isStored = false

  /** What was left, and this piece. Valid until the next call. */
  with(piece: Uint8Array): Buffer {
    this.#isStored = this.#end > this.#start
    if (!this.#isStored) return Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    this.#reserve(piece.length)
    this.#store.set(piece, this.#end)
    this.#end += piece.length
    return this.#store.subarray(this.#start, this.#end)
  }

  /** Keeps `bytes`, the result of with(), but for its first `done` bytes. */
  leave(bytes: Buffer, done: number): void {
    if (this.#isStored) {
      this.#start += done
      if (this.#start === this.#end && this.#store.length > KEPT_MAX) this.#store = EMPTY
    } else if (done < bytes.length) {
      this.#start = 0
      this.#end = 0
      this.#reserve(bytes.length - done)
      this.#end = bytes.copy(this.#store, 0, done)
    }
  }

  /** Bytes that are left. */
  get length(): number {
    return this.#end - this.#start
  }

  #reserve(count: number): void {
    if (this.#end + count <= this.#store.length) return
    const { length } = this
    const room = length + count
    const store = room <= this.#store.length / 2 ? this.#store : Buffer.allocUnsafeSlow(2 * room)
    this.#store.copy(store, 0, this.#start, this.#end)
    this.#store = store
    this.#start = 0
    this.#end = length
  }
}

const EMPTY: Readonly<Buffer> = Buffer.alloc(0)
/** Room that is kept although nothing is left. */
const KEPT_MAX = 256 * 1024
