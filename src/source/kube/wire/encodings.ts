import { WireError } from '../../../base/errors.ts'
import { listAt, numberAt, textAt } from '../../../base/plain-data.ts'
import { printable } from '../../../model/fields.ts'
import { ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { JsonListReader, JsonWatchReader, objectIn } from './json.ts'
import { openEnvelope, ProtobufListReader, ProtobufWatchReader } from './protobuf.ts'
import {
  type ApiObject,
  type ListReader,
  type ListReaderOptions,
  type Message,
  type ReaderOptions,
  STATUS,
  type WatchReader,
} from './tables.ts'

/**
 * Reads a list from a body of this Content-Type. Items are delivered one by one as their last byte arrives; whether they are
 * all there, end() says. Throws WireError for a type that cannot be read.
 */
export function createListReader(contentType: string, options: ListReaderOptions): ListReader {
  return encodingOf(contentType) === 'protobuf'
    ? new ProtobufListReader(options)
    : new JsonListReader(options)
}

/** The same for a watch. */
export function createWatchReader(contentType: string, options: ReaderOptions): WatchReader {
  return encodingOf(contentType) === 'protobuf'
    ? new ProtobufWatchReader(options)
    : new JsonWatchReader(options)
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

type Encoding = 'protobuf' | 'json'

/** How a body of this Content-Type is read; parameters count for nothing. Throws WireError for any other type. */
function encodingOf(contentType: string): Encoding {
  const encoding = knownEncoding(contentType)
  if (encoding !== undefined) return encoding
  throw new WireError(
    `the body has the content type ${printable(contentType) || '(none)'}; supported are ${PROTOBUF} and ${JSON_TYPE}`,
  )
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

/** Why a request failed, in the server's words: metav1.Status. */
export interface ApiStatus {
  /** HTTP status; 0 when absent. */
  readonly code: number
  /** The reason for programs: `Expired`, `TooManyRequests`; empty when absent. */
  readonly reason: string
  /** The text for people; empty when absent. */
  readonly message: string
  /** The reasons of details.causes: `ResourceVersionTooLarge`. */
  readonly causes: readonly string[]
  /** How long to wait; undefined when absent. */
  readonly retryAfterSeconds: number | undefined
}

/** The Status that an error response has as its body; undefined for any other body. */
export function readStatus(contentType: string, bytes: Uint8Array): ApiStatus | undefined {
  try {
    return statusOf(encodingOf(contentType) === 'protobuf' ? fromProtobuf(bytes) : objectIn(bytes))
  } catch (error) {
    // Proxies and load balancers answer with pages of their own.
    if (error instanceof WireError) return undefined
    throw error
  }
}

/** The same of an object, as ERROR events of a watch have it; undefined when it is not a Status. */
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

function fromProtobuf(bytes: Uint8Array): Message {
  const decoder = new ProtobufDecoder()
  const { type, raw } = openEnvelope(decoder, Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  return decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, { ...type })
}
