import { gunzipSync, gzipSync } from 'node:zlib'
import { errorOf } from '../../base/errors.ts'
import type { Origin } from '../../base/shares.ts'
import { decodeMessage } from '../../wire/protobuf/decoder.ts'
import { encodeMessage, ProtobufEncoder } from '../../wire/protobuf/encoder.ts'
import type { MessageOf, Table } from '../../wire/protobuf/table.ts'

/** Status codes of gRPC that are used here. */
export const OK = 0
export const INVALID_ARGUMENT = 3
export const DEADLINE_EXCEEDED = 4
export const NOT_FOUND = 5
export const PERMISSION_DENIED = 7
export const RESOURCE_EXHAUSTED = 8
export const FAILED_PRECONDITION = 9
export const ABORTED = 10
export const OUT_OF_RANGE = 11
export const UNIMPLEMENTED = 12
export const INTERNAL = 13
export const UNAVAILABLE = 14
export const DATA_LOSS = 15
export const UNAUTHENTICATED = 16

/** Ends a call with a status other than OK. */
export class RpcError extends Error {
  readonly code: number

  constructor(code: number, message: string) {
    super(message)
    this.code = code
  }
}

export interface Call {
  /** Organizations (groups) in the certificate of the client; none without TLS. */
  readonly organizations: readonly string[]
  /** Common name in that certificate; absent without TLS. */
  readonly commonName?: string | undefined
  /** The header `authorization` of the client, unchecked. */
  readonly authorization?: string | undefined
  readonly origin?: Origin | undefined
  /** The client reads messages that are compressed; see compressedFrame(). */
  readonly acceptsGzip?: boolean
  /** Messages, each behind its prefix of five bytes. False: the next ones must wait for drained(). */
  write(frames: Buffer): boolean
  /** Ends the call; later words are ignored. */
  end(code: number, message?: string): void
  /** Closes the connection, and with it all calls: nothing that was written stays. */
  drop?(): void
  /** Runs a step of the handler outside its methods: an error ends the call as in one of them. */
  attempt(step: () => void): void
}

/** An exception ends the call: an RpcError with its code, a WireError as INVALID_ARGUMENT, others as INTERNAL. */
export interface CallHandler {
  /** Longest message of the client; 4 KiB by default. */
  readonly requestBytesMax?: number
  message(bytes: Buffer): void
  /** The client sends nothing more. */
  ended(): void
  drained?(): void
  /** Always the last event, whichever side ended the call. */
  closed?(): void
}

export type Method = (call: Call) => CallHandler

/** Methods by path: `/localv1.Sets/Watch`. */
export type Methods = ReadonlyMap<string, Method>

const MS_OF_UNIT: Readonly<Record<string, number>> = {
  H: 3_600_000,
  M: 60_000,
  S: 1_000,
  m: 1,
  u: 1e-3,
  n: 1e-6,
}

/** Milliseconds of the header grpc-timeout; undefined without one. Throws RpcError for what is none. */
export function timeoutMs(header: string | readonly string[] | undefined): number | undefined {
  if (header === undefined) return undefined
  const [, digits, unit] = /^(\d{1,8})([HMSmun])$/.exec(String(header)) ?? []
  const unitMs = unit === undefined ? undefined : MS_OF_UNIT[unit]
  if (unitMs === undefined) throw new RpcError(INTERNAL, 'the header grpc-timeout is malformed')
  return Number(digits) * unitMs
}

/** A method that takes one message and answers with one. */
export function unary<T extends Table, G extends Table>(
  takes: T,
  gives: G,
  answer: (request: MessageOf<T>) => MessageOf<G>,
): Method {
  return takingOne(takes, (call, request) => {
    call.write(framed(gives, answer(request)))
    call.end(OK)
  })
}

/** A method that takes one message. */
export function takingOne<T extends Table>(
  takes: T,
  answer: (call: Call, request: MessageOf<T>) => void,
): Method {
  return call => {
    let request: Buffer | undefined
    return {
      message(bytes) {
        if (request !== undefined) throw new RpcError(INVALID_ARGUMENT, 'this method takes one message')
        request = bytes
      },
      ended() {
        if (request === undefined) throw new RpcError(INVALID_ARGUMENT, 'this method takes one message')
        answer(call, decodeMessage(takes, request))
      },
    }
  }
}

/** Takes messages out of the bytes of a stream, however those are cut. */
export class MessageReader {
  readonly #bytesMax: number
  readonly #readsGzip: boolean
  #rest: Buffer | undefined

  constructor(bytesMax: number, { readsGzip = false }: { readonly readsGzip?: boolean } = {}) {
    this.#bytesMax = bytesMax
    this.#readsGzip = readsGzip
  }

  /** Throws RpcError as soon as a prefix shows a message that is too large, or compressed without agreement. */
  read(chunk: Buffer, take: (message: Buffer) => void): void {
    const bytes = this.#rest === undefined ? chunk : Buffer.concat([this.#rest, chunk])
    let at = 0
    while (bytes.length - at >= PREFIX_BYTES) {
      const length = bytes.readUInt32BE(at + 1)
      const isCompressed = bytes[at] === 1
      if (isCompressed && !this.#readsGzip)
        throw new RpcError(UNIMPLEMENTED, 'compressed messages are not supported')
      if (bytes[at] !== 0 && !isCompressed)
        throw new RpcError(INTERNAL, 'the compression flag of a message is neither 0 nor 1')
      if (length > this.#bytesMax)
        throw new RpcError(
          RESOURCE_EXHAUSTED,
          `a message of ${length} bytes is too long; the limit is ${this.#bytesMax}`,
        )
      const end = at + PREFIX_BYTES + length
      if (bytes.length < end) break
      const message = bytes.subarray(at + PREFIX_BYTES, end)
      take(isCompressed ? this.#decompressed(message) : message)
      at = end
    }
    this.#rest = at < bytes.length ? bytes.subarray(at) : undefined
  }

  #decompressed(message: Buffer): Buffer {
    try {
      return gunzipSync(message, { maxOutputLength: this.#bytesMax })
    } catch (thrown) {
      throw new RpcError(INTERNAL, `a compressed message cannot be read: ${errorOf(thrown).message}`)
    }
  }

  get isCutOff(): boolean {
    return this.#rest !== undefined
  }

  /** Bytes of a message that is not whole yet. */
  get heldBytes(): number {
    return this.#rest?.length ?? 0
  }
}

/** gRPC's prefix of a message: a byte for compression, and four of length. */
const PREFIX_BYTES = 5

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

/** Compresses a frame for clients that accept gzip. The fastest level is enough: objects of one kind are alike. */
export function compressedFrame(frame: Buffer): Buffer {
  const message = gzipSync(frame.subarray(PREFIX_BYTES), { level: 1 })
  const compressed = withPrefix(Buffer.concat([Buffer.alloc(PREFIX_BYTES), message]))
  compressed[0] = 1
  return compressed
}

function withPrefix(frame: Buffer): Buffer {
  frame[0] = 0
  frame.writeUInt32BE(frame.length - PREFIX_BYTES, 1)
  return frame
}
