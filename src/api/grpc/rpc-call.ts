import { constants, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { Cancel, Clock } from '../../base/clock.ts'
import { errorOf, WireError } from '../../base/errors.ts'
import type { Origin } from '../../base/shares.ts'
import { commonNameOf, organizationsOf } from './http-server.ts'
import {
  type Call,
  type CallHandler,
  DEADLINE_EXCEEDED,
  INTERNAL,
  INVALID_ARGUMENT,
  MessageReader,
  OK,
  RESOURCE_EXHAUSTED,
  RpcError,
} from './rpc.ts'

/** Longest message of a client, unless a handler takes longer ones. */
const REQUEST_BYTES_MAX = 4 * 1024
/** A client that holds so little is not refused for what others hold. */
const PARTIAL_BYTES_FREE = 4 * 1024
/** Time for clients to read their last messages before the end. */
export const GRACE_MS = 2_000
const ANSWER_HEADERS = {
  ':status': 200,
  'content-type': 'application/grpc',
  'grpc-accept-encoding': 'identity',
} as const
/** A message may be compressed then; each says whether it is. */
const GZIP_ANSWER_HEADERS = { ...ANSWER_HEADERS, 'grpc-encoding': 'gzip' } as const

/**
 * A client that has not ended its side gets nothing more for it. What was said before goes out first: some versions of
 * Node.js reset a stream at once.
 */
export function reset(stream: ServerHttp2Stream): void {
  setImmediate(() => stream.close(constants.NGHTTP2_NO_ERROR))
}

/** The part of a server that its thousands of calls share, so that each call is small. */
export interface RpcCallHost {
  readonly clock: Clock
  readonly failed: (error: Error) => void
  readonly firstMessageMs: number | undefined
  /** Counts bytes of messages that are not whole yet; true when those of all calls are too many. */
  readonly held: (change: number) => boolean
}

export class RpcCall implements Call {
  readonly session: object
  readonly acceptsGzip: boolean
  readonly authorization: string | undefined
  readonly #stream: ServerHttp2Stream
  readonly #host: RpcCallHost
  /** Cancels the deadline of the call; once it was refused, the timer of its end. */
  #cancel: Cancel | undefined
  /** Undefined once the first message is there. */
  #cancelFirst: Cancel | undefined
  #handler: CallHandler | undefined
  #trailers: Readonly<Record<string, string>> | undefined
  #heldBytes = 0

  constructor(stream: ServerHttp2Stream, headers: IncomingHttpHeaders, host: RpcCallHost) {
    const { clock, firstMessageMs } = host
    this.#stream = stream
    this.session = stream.session ?? stream
    this.#host = host
    this.authorization = headers.authorization
    this.acceptsGzip = /(^|,) *gzip *(,|$)/.test(String(headers['grpc-accept-encoding'] ?? ''))
    if (firstMessageMs !== undefined)
      this.#cancelFirst = clock.after(firstMessageMs, () =>
        this.end(DEADLINE_EXCEEDED, 'the first message has not come in time'),
      )
    stream.respond(this.acceptsGzip ? GZIP_ANSWER_HEADERS : ANSWER_HEADERS, { waitForTrailers: true })
    stream.on('wantTrailers', () => {
      if (stream.destroyed) return
      stream.sendTrailers({ ...this.#trailers })
      reset(stream)
    })
  }

  get organizations(): readonly string[] {
    return organizationsOf(this.#stream.session?.socket)
  }

  get commonName(): string | undefined {
    return commonNameOf(this.#stream.session?.socket)
  }

  get origin(): Origin | undefined {
    return this.#stream.session?.socket
  }

  serve(handler: CallHandler): void {
    this.#handler = handler
    const reader = new MessageReader(handler.requestBytesMax ?? REQUEST_BYTES_MAX)
    const take = (message: Buffer): void => {
      this.#cancelFirst?.()
      this.#cancelFirst = undefined
      if (this.#trailers === undefined) handler.message(message)
    }
    this.#stream.on('data', (chunk: Buffer) =>
      this.attempt(() => {
        reader.read(chunk, take)
        this.#hold(reader.heldBytes)
      }),
    )
    this.#stream.on('end', () =>
      this.attempt(() => {
        if (reader.isCutOff) throw new RpcError(INTERNAL, 'the last message is truncated')
        handler.ended()
      }),
    )
    this.#stream.on('drain', () => this.attempt(() => handler.drained?.()))
  }

  #hold(bytes: number): void {
    if (bytes === this.#heldBytes) return
    const isFull = this.#host.held(bytes - this.#heldBytes)
    this.#heldBytes = bytes
    if (!isFull || bytes <= PARTIAL_BYTES_FREE) return
    // The bytes are released before the error, so that one refusal makes room for the other clients.
    this.#release()
    throw new RpcError(RESOURCE_EXHAUSTED, 'clients have begun too many long messages')
  }

  #release(): void {
    this.#host.held(-this.#heldBytes)
    this.#heldBytes = 0
  }

  closed(): void {
    this.#cancel?.()
    this.#cancelFirst?.()
    this.#release()
    const handler = this.#handler
    this.#handler = undefined
    this.#trailers ??= {}
    handler?.closed?.()
  }

  /** Its client wants no answer that comes later. */
  endAfter(ms: number): void {
    this.#cancel = this.#host.clock.after(ms, () =>
      this.end(DEADLINE_EXCEEDED, 'the deadline of the client has passed'),
    )
  }

  write(frames: Buffer): boolean {
    if (this.#trailers !== undefined) return false
    return this.#stream.write(frames)
  }

  end(code: number, message = ''): void {
    if (this.#trailers !== undefined) return
    const text = message === '' ? undefined : { 'grpc-message': percentEncoded(message) }
    this.#trailers = { 'grpc-status': String(code), ...text }
    this.#stream.end()
    if (code === OK) return
    // A client with a wrong or late request need not read everything first.
    this.#cancel?.()
    this.#cancel = this.#host.clock.after(GRACE_MS, () => this.#stream.destroy())
  }

  drop(): void {
    this.#stream.session?.destroy()
  }

  attempt(step: () => void): void {
    if (this.#trailers !== undefined) return
    try {
      step()
    } catch (thrown) {
      if (thrown instanceof RpcError) this.end(thrown.code, thrown.message)
      else if (thrown instanceof WireError) this.end(INVALID_ARGUMENT, thrown.message)
      else {
        this.#host.failed(errorOf(thrown))
        this.end(INTERNAL, 'internal server error; see the log of the server')
      }
    }
  }
}

/** Percent-encodes everything but printable ASCII, and the percent sign, as gRPC demands for its messages. */
function percentEncoded(text: string): string {
  return [...Buffer.from(text, 'utf8')]
    .map(byte =>
      byte >= 0x20 && byte <= 0x7e && byte !== 0x25
        ? String.fromCharCode(byte)
        : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`,
    )
    .join('')
}
