import { printable } from '../../../model/refusal.ts'
import type { TypeMeta } from './kinds.ts'
import { isMessage, type Message } from './message.ts'
import type { ProtobufDecoder } from './protobuf-decoder.ts'
import { WireError } from './reader.ts'
import { UNKNOWN } from './tables.ts'

/** What every body in protobuf begins with: `k8s` and a NUL; a runtime.Unknown follows. */
export const MAGIC: readonly number[] = [0x6b, 0x38, 0x73, 0]

export function hasMagic(bytes: Buffer, at = 0): boolean {
  return MAGIC.every((byte, index) => bytes[at + index] === byte)
}

/** An object in its envelope. */
interface Enveloped {
  readonly type: TypeMeta
  /** The object's own bytes. */
  readonly raw: Buffer
}

/** Throws WireError for anything but an object in protobuf. */
export function openEnvelope(decoder: ProtobufDecoder, bytes: Buffer): Enveloped {
  if (!hasMagic(bytes)) throw new WireError('protobuf without its first four bytes, k8s and NUL')
  const unknown = decoder.decode(UNKNOWN, { bytes, start: MAGIC.length, end: bytes.length })
  refuseEncodings(unknown)
  const { raw } = unknown
  return { type: typeOf(unknown), raw: Buffer.isBuffer(raw) ? raw : bytes.subarray(0, 0) }
}

export function typeOf(unknown: Message): TypeMeta {
  return isMessage(unknown.typeMeta) ? unknown.typeMeta : {}
}

/** The API server leaves both empty; anything else is not what our tables read. */
export function refuseEncodings({ contentEncoding, contentType }: Message): void {
  if (contentEncoding !== undefined)
    throw new WireError(`an object in the encoding ${printable(contentEncoding)}; none is expected`)
  if (contentType !== undefined)
    throw new WireError(`an object of the type ${printable(contentType)} within protobuf`)
}
