import {
  constants,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { Socket } from 'node:net'
import type { Cancel, Clock } from '../../base/clock.ts'
import { TIMER_MS_MAX } from '../../base/duration.ts'
import { errorOf, WireError } from '../../base/errors.ts'
import {
  ConnectionGate,
  type Crowd,
  type Origin,
  type OverShare,
  type Owner,
  ownersOf,
  Shares,
} from '../../base/shares.ts'
import { commonNameOf, organizationsOf } from './http-server.ts'
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
  /** Connections at a time. Beyond, clients that hold most lose the longest idle: see Shares. */
  readonly connectionsMax: number
  readonly callsMax: number
  readonly crowded: (crowd: Crowd) => void
  /** Longest message of a client; 4 KiB by default. */
  readonly requestBytesMax?: number
  /** Limits the incomplete messages of all clients together; 64 MiB by default. */
  readonly partialBytesMax?: number
  /** A call whose first message has not come for so long ends; no limit unless given. */
  readonly firstMessageMs?: number
  /** A handler threw something that is no answer. */
  readonly failed: (error: Error) => void
}

const REQUEST_BYTES_MAX = 4 * 1024
/** A client that holds so little is not refused for what others hold. */
const PARTIAL_BYTES_FREE = 4 * 1024
const PARTIAL_BYTES_MAX = 64 * 1024 * 1024
/** A connection without a call, before its first or after its last. */
const IDLE_MS = 30_000
/** Time for clients to read their last messages before the end. */
const GRACE_MS = 2_000
const ANSWER_HEADERS = {
  ':status': 200,
  'content-type': 'application/grpc',
  'grpc-accept-encoding': 'identity',
} as const
/** A message may be compressed then; each says whether it is. */
const GZIP_ANSWER_HEADERS = { ...ANSWER_HEADERS, 'grpc-encoding': 'gzip' } as const

/**
 * gRPC over HTTP/2, as its protocol document has it: length-prefixed messages, the status in trailers. Messages of clients
 * are not compressed; those for clients are where a handler compresses them.
 * Whatever a peer does, it holds a bounded amount of memory.
 */
export class RpcServer {
  readonly #options: RpcServerOptions
  readonly #gate: ConnectionGate<Socket>
  /** Open sockets by the address of the client. */
  readonly #sockets = new Map<string, Socket>()
  readonly #sessions = new Set<ServerHttp2Session>()
  /** The owners of the calls of each session. */
  readonly #owners = new WeakMap<object, readonly Owner[]>()
  readonly #calls = new Set<RpcCall>()
  readonly #callShares: Shares<RpcCall>
  readonly #host: RpcCallHost
  #partialBytes = 0
  #refused = 0
  #accepted = 0
  #isClosing = false

  constructor(options: RpcServerOptions) {
    this.#options = options
    const { http, clock, connectionsMax, callsMax, crowded } = options
    this.#gate = new ConnectionGate({ clock, limits: { connections: connectionsMax }, crowded })
    this.#callShares = new Shares(callsMax)
    this.#host = {
      clock,
      failed: options.failed,
      requestBytesMax: options.requestBytesMax ?? REQUEST_BYTES_MAX,
      firstMessageMs: options.firstMessageMs,
      held: change => this.#held(change),
    }
    http.on('session', session => this.#accept(session))
    http.on('stream', (stream, headers) => this.#begin(stream, headers))
  }

  get counts(): { readonly connections: number; readonly calls: number; readonly refused: number } {
    const { evicted, refused } = this.#gate.overShare
    return {
      connections: this.#sessions.size,
      calls: this.#calls.size,
      refused: this.#refused + evicted + refused,
    }
  }

  get overShare(): OverShare {
    return this.#gate.overShare
  }

  /** Serves a connection, or refuses it when the server is full of busy ones. */
  take(socket: Socket): void {
    if (this.#isClosing) socket.destroy()
    if (this.#isClosing || !this.#gate.admit(socket)) return
    const peer = peerOf(socket)
    this.#sockets.set(peer, socket)
    socket.once('close', () => {
      if (this.#sockets.get(peer) === socket) this.#sockets.delete(peer)
    })
    this.#options.http.emit('connection', socket)
  }

  /** Ends every call with UNAVAILABLE, and what is still open after 2 s without asking. Idempotent. */
  async close(): Promise<void> {
    this.#isClosing = true
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
    // An error of the peer ends its session, and is not reported.
    session.on('error', ignore)
    const socket = this.#sockets.get(peerOf(session.socket))
    if (socket === undefined || this.#isClosing) {
      session.destroy()
      return
    }
    this.#sessions.add(session)
    this.#owners.set(session, [...ownersOf(socket), { name: `connection ${++this.#accepted}` }])
    const { clock } = this.#options
    // The session's own timeout would restart at each read and write, at a cost. And close() would wait for a peer that
    // is no longer read after an error of the protocol.
    const idle = (): Cancel => clock.after(IDLE_MS, () => session.destroy())
    let cancel = idle()
    let calls = 0
    session.on('close', () => {
      cancel()
      this.#sessions.delete(session)
    })
    session.on('stream', (stream: ServerHttp2Stream) => {
      cancel()
      calls++
      this.#gate.mark(socket, 'busy')
      stream.on('close', () => {
        if (--calls > 0) return
        this.#gate.mark(socket, 'idle')
        cancel = idle()
      })
    })
    // gRPC has no clients that only listen: a closed half means that the client has gone.
    session.socket.on('end', () => socket.destroy())
  }

  #begin(stream: ServerHttp2Stream, headers: IncomingHttpHeaders): void {
    stream.on('error', ignore)
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
    const call = new RpcCall(stream, headers, this.#host)
    this.#calls.add(call)
    stream.on('close', () => {
      this.#calls.delete(call)
      this.#callShares.leave(call)
      call.closed()
    })
    this.#serve(call, headers)
  }

  /** Apart from #begin(): what its listener lives in would keep the headers for as long as the call. */
  #serve(call: RpcCall, headers: IncomingHttpHeaders): void {
    call.attempt(() => {
      const ms = timeoutMs(headers['grpc-timeout'])
      if (ms !== undefined && ms <= TIMER_MS_MAX) call.endAfter(ms)
      call.serve(this.#handlerOf(call, headers))
    })
  }

  /** True: there is no room for more. */
  #held(change: number): boolean {
    this.#partialBytes += change
    return this.#partialBytes > (this.#options.partialBytesMax ?? PARTIAL_BYTES_MAX)
  }

  #handlerOf(call: RpcCall, headers: IncomingHttpHeaders): CallHandler {
    if (this.#isClosing) throw new RpcError(UNAVAILABLE, 'the server is stopping')
    this.#admit(call)
    const path = headers[':path'] ?? ''
    const method = this.#options.methods.get(path)
    if (method === undefined) throw new RpcError(UNIMPLEMENTED, `unknown method ${path.slice(0, 200)}`)
    return method(call)
  }

  /** Admits a call. Beyond the limit, a call of the client that has most ends, or the new one is refused. */
  #admit(call: RpcCall): void {
    const owners = this.#owners.get(call.session)
    if (owners === undefined) return
    const admission = this.#callShares.admit(call, owners)
    if (admission.kind !== 'accepted') this.#refused++
    if (admission.kind === 'refused')
      throw new RpcError(RESOURCE_EXHAUSTED, `${this.#options.callsMax} calls are already open`)
    if (admission.kind === 'evicted')
      admission.victim.end(RESOURCE_EXHAUSTED, 'too many calls, and other clients have fewer')
    this.#callShares.mark(call, 'busy')
  }
}

/** Names a TCP connection. Those of a unix socket have no name: there, a session is made as soon as it is accepted. */
function peerOf({ remoteAddress, remotePort }: Pick<Socket, 'remoteAddress' | 'remotePort'>): string {
  return `${remoteAddress ?? ''} ${remotePort ?? ''}`
}

/**
 * A client that has not ended its side gets nothing more for it. What was said before goes out first: some versions of
 * Node.js reset a stream at once.
 */
function reset(stream: ServerHttp2Stream): void {
  setImmediate(() => stream.close(constants.NGHTTP2_NO_ERROR))
}

/** The part of a server that its thousands of calls share, so that each call is small. */
interface RpcCallHost {
  readonly clock: Clock
  readonly failed: (error: Error) => void
  readonly requestBytesMax: number
  readonly firstMessageMs: number | undefined
  /** Counts bytes of messages that are not whole yet; true when those of all calls are too many. */
  readonly held: (change: number) => boolean
}

function ignore(): void {
  // An error of the peer ends its session or stream, and is not reported.
}

class RpcCall implements Call {
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
    const reader = new MessageReader(handler.requestBytesMax ?? this.#host.requestBytesMax)
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
