import { WireError } from '../../../base/errors.ts'
import { listAt, numberAt, textAt } from '../../../base/plain-data.ts'
import { printable } from '../../../model/fields.ts'
import { JsonListReader, JsonWatchReader, objectIn } from './json-readers.ts'
import { ProtobufListReader, ProtobufWatchReader, statusIn } from './protobuf-readers.ts'
import type { ApiObject, ListReader, ListReaderOptions, ReaderOptions, WatchReader } from './tables.ts'

/**
 * Reads a list from a body of this Content-Type. Items are delivered one by one as their last byte arrives; whether they are
 * all there, end() says. Throws WireError for a type that cannot be read.
 */
export function createListReader(contentType: string, options: ListReaderOptions): ListReader {
  return encodingFor(contentType, options) === 'protobuf'
    ? new ProtobufListReader(options)
    : new JsonListReader(options)
}

export function createWatchReader(contentType: string, options: ReaderOptions): WatchReader {
  return encodingFor(contentType, options) === 'protobuf'
    ? new ProtobufWatchReader(options)
    : new JsonWatchReader(options)
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

type Encoding = 'protobuf' | 'json'

/**
 * Chooses the reader for a Content-Type; parameters count for nothing. Throws WireError for any other type, and for
 * JSON where the bytes of each object are wanted: an answer fails as a whole, not object by object.
 */
function encodingFor(contentType: string, { encoded }: Pick<ReaderOptions, 'encoded'> = {}): Encoding {
  const encoding = knownEncoding(contentType)
  if (encoding === 'protobuf' || (encoding === 'json' && encoded === undefined)) return encoding
  const supported =
    encoded === undefined ? `supported are ${PROTOBUF} and ${JSON_TYPE}` : `needed is ${PROTOBUF}`
  throw new WireError(`the body has the content type ${printable(contentType) || '(none)'}; ${supported}`)
}

function knownEncoding(contentType: string): Encoding | undefined {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  if (type === PROTOBUF) return 'protobuf'
  return type === JSON_TYPE ? 'json' : undefined
}

/**
 * The Accept header for configured content types (clientConnection.contentType, and .acceptContentTypes, which wins when
 * it is not empty). JSON is acceptable unless the latter leaves it out: servers of custom resources have nothing else.
 * What cannot be read, such as CBOR, is not asked for.
 */
export function acceptFor(contentType: string, acceptContentTypes = ''): string {
  const accepted = acceptContentTypes.split(',').filter(type => knownEncoding(type) !== undefined)
  if (accepted.length > 0) return accepted.map(type => type.trim()).join(', ')
  return contentType.trim().toLowerCase() === PROTOBUF ? `${PROTOBUF}, ${JSON_TYPE}` : JSON_TYPE
}

/** Asks the server to leave out managedFields (KEP-5958). Servers before 1.38 ignore parameters that they do not know. */
export function withoutManagedFields(accept: string): string {
  return accept.replace(/[^\s,;]+\/[^\s,;]+/g, '$&;drop=metadata.managedFields')
}

/** The server's error: metav1.Status. */
export interface ApiStatus {
  /** HTTP status; 0 when absent. */
  readonly code: number
  /** The reason for programs: `Expired`, `TooManyRequests`; empty when absent. */
  readonly reason: string
  /** Empty when absent. */
  readonly message: string
  /** The reasons of details.causes: `ResourceVersionTooLarge`. */
  readonly causes: readonly string[]
  readonly retryAfterSeconds: number | undefined
}

/** The Status that an error response has as its body; undefined for any other body. */
export function readStatus(contentType: string, bytes: Uint8Array): ApiStatus | undefined {
  try {
    return statusOf(encodingFor(contentType) === 'protobuf' ? statusIn(bytes) : objectIn(bytes))
  } catch (error) {
    // Proxies and load balancers answer with pages of their own.
    if (error instanceof WireError) return undefined
    throw error
  }
}

/** Reads the Status of an ERROR event of a watch; undefined when the object is none. */
export function statusOf(object: ApiObject): ApiStatus | undefined {
  if (object.kind !== 'Status' || object.apiVersion !== 'v1') return undefined
  const { details } = object
  return {
    code: numberAt(object, 'code') ?? 0,
    reason: textAt(object, 'reason'),
    message: textAt(object, 'message'),
    causes: listAt(details, 'causes').flatMap(cause => textAt(cause, 'reason') || []),
    retryAfterSeconds: numberAt(details, 'retryAfterSeconds'),
  }
}
