import {
  constants,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { Cancel, Clock } from '../../base/clock.ts'
import { TIMER_MS_MAX } from '../../base/duration.ts'
import { errorOf } from '../../base/thrown.ts'
import { MalformedMessage } from './protobuf.ts'
import {
  type Call,
  type CallHandler,
  DEADLINE_EXCEEDED,
  INTERNAL,
  INVALID_ARGUMENT,
  MessageReader,
  type Methods,
  OK,
  RESOURCE_EXHAUSTED,
  RpcError,
  timeoutMs,
  UNAVAILABLE,
  UNIMPLEMENTED,
} from './rpc.ts'

export interface RpcServerOptions {
  /** Listens nowhere yet. */
  readonly http: Http2Server
  readonly methods: Methods
  readonly clock: Clock
  /** At a time; further connections are closed, further calls are refused. */
  readonly connectionsMax: number
  readonly callsMax: number
  /** A handler threw something that is no answer. */
  readonly failed: (error: Error) => void
}

const REQUEST_BYTES_MAX = 4 * 1024
/** A connection without a call, before its first or after its last. */
const IDLE_MS = 30_000
/** For clients to read what they were sent before the end. */
const GRACE_MS = 2_000
const ANSWER_HEADERS = {
  ':status': 200,
  'content-type': 'application/grpc',
  'grpc-accept-encoding': 'identity',
} as const

/**
 * gRPC over HTTP/2, as its protocol document has it: length-prefixed messages, the status in trailers. No compression.
 * Whatever a peer does, it holds a bounded amount of memory.
 */
export class RpcServer {
  readonly #options: RpcServerOptions
  readonly #sessions = new Set<ServerHttp2Session>()
  readonly #calls = new Set<RpcCall>()
  #refused = 0
  #isClosing = false

  constructor(options: RpcServerOptions) {
    this.#options = options
    const { http } = options
    http.on('drop', () => this.#refused++)
    http.on('session', session => this.#accept(session))
    http.on('stream', (stream, headers) => this.#begin(stream, headers))
  }

  get counts(): { readonly connections: number; readonly calls: number; readonly refused: number } {
    return { connections: this.#sessions.size, calls: this.#calls.size, refused: this.#refused }
  }

  /** Ends every call with UNAVAILABLE, and what is still open after 2 s without asking. Idempotent. */
  async close(): Promise<void> {
    this.#isClosing = true
    const { http } = this.#options
    if (http.listening) http.close()
    const closed = [...this.#sessions].map(session => new Promise(resolve => session.once('close', resolve)))
    for (const call of this.#calls) call.end(UNAVAILABLE, 'the server is stopping')
    for (const session of this.#sessions) session.close()
    const cancel: Cancel = this.#options.clock.after(GRACE_MS, () => {
      for (const session of this.#sessions) session.destroy()
    })
    await Promise.all(closed)
    cancel()
  }

  #accept(session: ServerHttp2Session): void {
    // What a peer does wrong ends its session; that is all there is to say.
    session.on('error', () => undefined)
    if (this.#isClosing || this.#sessions.size >= this.#options.connectionsMax) {
      this.#refused++
      session.destroy()
      return
    }
    this.#sessions.add(session)
    // Not the session's own timeout, which begins anew at each read and each write, at a cost. And it is not only asked
    // to close: a peer that broke the protocol is not heard any more.
    const idle = (): Cancel => this.#options.clock.after(IDLE_MS, () => session.destroy())
    let calls = 0
    let cancel = idle()
    session.once('close', () => {
      cancel()
      this.#sessions.delete(session)
    })
    session.on('stream', (stream: ServerHttp2Stream) => {
      cancel()
      calls++
      stream.once('close', () => {
        calls--
        if (calls === 0) cancel = idle()
      })
    })
  }

  #begin(stream: ServerHttp2Stream, headers: IncomingHttpHeaders): void {
    stream.on('error', () => undefined)
    if (stream.destroyed) return
    if (
      headers[':method'] !== 'POST' ||
      !/^application\/grpc(\+proto)?(;|$)/.test(headers['content-type'] ?? '')
    ) {
      this.#refused++
      stream.respond({ ':status': headers[':method'] === 'POST' ? 415 : 405 }, { endStream: true })
      reset(stream)
      return
    }
    const { clock, failed } = this.#options
    let cancel: Cancel | undefined
    // Whoever did something wrong, or came too late, need not read everything first.
    const refused = (): void => {
      cancel?.()
      cancel = clock.after(GRACE_MS, () => stream.destroy())
    }
    const call = new RpcCall(stream, { failed, refused })
    this.#calls.add(call)
    stream.once('close', () => {
      cancel?.()
      this.#calls.delete(call)
      call.closed()
    })
    call.attempt(() => {
      const ms = timeoutMs(headers['grpc-timeout'])
      if (ms !== undefined && ms <= TIMER_MS_MAX)
        cancel = clock.after(ms, () => call.end(DEADLINE_EXCEEDED, 'the time that the client gave is over'))
      call.serve(this.#handlerOf(call, headers))
    })
  }

  #handlerOf(call: RpcCall, headers: IncomingHttpHeaders): CallHandler {
    if (this.#isClosing) throw new RpcError(UNAVAILABLE, 'the server is stopping')
    if (this.#calls.size > this.#options.callsMax) {
      this.#refused++
      throw new RpcError(RESOURCE_EXHAUSTED, `${this.#options.callsMax} calls are open already`)
    }
    const path = headers[':path'] ?? ''
    const method = this.#options.methods.get(path)
    if (method === undefined) throw new RpcError(UNIMPLEMENTED, `there is no method ${path.slice(0, 200)}`)
    return method(call)
  }
}

/**
 * A client that has not ended its side gets nothing more for it. What was said before goes out first: some versions of
 * Node.js reset a stream at once.
 */
function reset(stream: ServerHttp2Stream): void {
  setImmediate(() => stream.close(constants.NGHTTP2_NO_ERROR))
}

interface RpcCallOptions {
  readonly failed: (error: Error) => void
  /** It has ended with another status than OK. */
  readonly refused: () => void
}

class RpcCall implements Call {
  readonly #stream: ServerHttp2Stream
  readonly #options: RpcCallOptions
  #handler: CallHandler | undefined
  #trailers: Readonly<Record<string, string>> | undefined

  constructor(stream: ServerHttp2Stream, options: RpcCallOptions) {
    this.#stream = stream
    this.#options = options
    stream.respond(ANSWER_HEADERS, { waitForTrailers: true })
    stream.once('wantTrailers', () => {
      if (stream.destroyed) return
      stream.sendTrailers({ ...this.#trailers })
      reset(stream)
    })
  }

  serve(handler: CallHandler): void {
    this.#handler = handler
    const reader = new MessageReader(REQUEST_BYTES_MAX)
    const take = (message: Buffer): void => {
      if (this.#trailers === undefined) handler.message(message)
    }
    this.#stream.on('data', (chunk: Buffer) => this.attempt(() => reader.read(chunk, take)))
    this.#stream.once('end', () =>
      this.attempt(() => {
        if (reader.isCutOff) throw new RpcError(INTERNAL, 'the last message is cut off')
        handler.ended()
      }),
    )
    this.#stream.on('drain', () => this.attempt(() => handler.drained?.()))
  }

  closed(): void {
    const handler = this.#handler
    this.#handler = undefined
    this.#trailers ??= {}
    handler?.closed?.()
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
    if (code !== OK) this.#options.refused()
  }

  attempt(step: () => void): void {
    if (this.#trailers !== undefined) return
    try {
      step()
    } catch (thrown) {
      if (thrown instanceof RpcError) this.end(thrown.code, thrown.message)
      else if (thrown instanceof MalformedMessage) this.end(INVALID_ARGUMENT, thrown.message)
      else {
        this.#options.failed(errorOf(thrown))
        this.end(INTERNAL, 'an error of the server, which its log names')
      }
    }
  }
}

/** What is not printable ASCII, and the percent sign, as gRPC wants its messages. */
function percentEncoded(text: string): string {
  return [...Buffer.from(text, 'utf8')]
    .map(byte =>
      byte >= 0x20 && byte <= 0x7e && byte !== 0x25
        ? String.fromCharCode(byte)
        : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`,
    )
    .join('')
}
