import { JsonListReader } from './json-list.ts'
import { JsonWatchReader } from './json-watch.ts'
import { encodingOf } from './media-type.ts'
import { ProtobufListReader } from './protobuf-list.ts'
import { ProtobufWatchReader } from './protobuf-watch.ts'
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
