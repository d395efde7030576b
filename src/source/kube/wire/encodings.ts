import { printable } from '../../../model/fields.ts'
import { WireError } from '../../../wire/wire-error.ts'
import { JsonListReader, JsonWatchReader } from './json.ts'
import { ProtobufListReader, ProtobufWatchReader } from './protobuf.ts'
import type { ListReader, ListReaderOptions, ReaderOptions, WatchReader } from './reader.ts'

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
export function encodingOf(contentType: string): Encoding {
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
