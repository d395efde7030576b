import { ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { WireError } from '../../../wire/wire-error.ts'
import { encodingOf } from './encodings.ts'
import { objectIn } from './json.ts'
import { openEnvelope } from './protobuf.ts'
import { type ApiObject, isMessage, type Message, textIn } from './reader.ts'
import { STATUS } from './tables.ts'

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
  const details = isMessage(object.details) ? object.details : {}
  return {
    code: numberIn(object.code) ?? 0,
    reason: textIn(object.reason),
    message: textIn(object.message),
    causes: reasonsIn(details.causes),
    retryAfterSeconds: numberIn(details.retryAfterSeconds),
  }
}

function fromProtobuf(bytes: Uint8Array): Message {
  const decoder = new ProtobufDecoder()
  const { type, raw } = openEnvelope(decoder, Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  return decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, { ...type })
}

function numberIn(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined
}

function reasonsIn(causes: unknown): readonly string[] {
  if (!Array.isArray(causes)) return []
  return causes.flatMap(cause => (isMessage(cause) && typeof cause.reason === 'string' ? [cause.reason] : []))
}
