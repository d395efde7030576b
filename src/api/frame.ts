import { encodeMessage, ProtobufEncoder } from '../wire/protobuf/encoder.ts'
import type { MessageOf, Table } from '../wire/protobuf/table.ts'

/** gRPC's prefix of a message: a byte that says "not compressed", and four of length. */
export const PREFIX_BYTES = 5

/** Encodes messages behind their prefixes. */
export class FrameEncoder {
  readonly #encoder = new ProtobufEncoder()

  /** The result is good until the next call. */
  encode<T extends Table>(table: T, message: MessageOf<T>): Buffer {
    return withPrefix(this.#encoder.encode(table, message, PREFIX_BYTES))
  }
}

/** One message behind its prefix, in memory of its own. */
export function framed<T extends Table>(table: T, message: MessageOf<T>): Buffer {
  return withPrefix(encodeMessage(table, message, PREFIX_BYTES))
}

function withPrefix(frame: Buffer): Buffer {
  frame[0] = 0
  frame.writeUInt32BE(frame.length - PREFIX_BYTES, 1)
  return frame
}
