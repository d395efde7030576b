import type { Http2Server, IncomingHttpHeaders, ServerHttp2Session, ServerHttp2Stream } from 'node:http2'
import type { Socket } from 'node:net'
import type { Cancel, Clock } from '../../base/clock.ts'
import { TIMER_MS_MAX } from '../../base/duration.ts'
import {
  ConnectionGate,
  type Crowd,
  type OverShare,
  type Owner,
  ownersOf,
  Shares,
} from '../../base/shares.ts'
import {
  type Call,
  type Method,
  type Methods,
  RESOURCE_EXHAUSTED,
  RpcError,
  timeoutMs,
  UNAVAILABLE,
  UNIMPLEMENTED,
} from './rpc.ts'
import { GRACE_MS, RpcCall, type RpcCallHost, reset } from './rpc-call.ts'

export interface RpcServerOptions {
  /** Listens nowhere yet. */
  readonly http: Http2Server
  readonly methods: Methods
  /**
   * Decides about a call before its method sees it; undefined for one that needs no decision. Until then its bytes wait at
   * the client, beyond one window of HTTP/2.
   */
  readonly admit?: (call: Call, path: string) => Promise<RpcError | undefined> | undefined
  readonly clock: Clock
  /** Connections at a time, 2,048 by default. Beyond, clients that hold most lose the longest idle: see Shares. */
  readonly connectionsMax?: number
  /** Calls at a time, 4,096 by default. */
  readonly callsMax?: number
  readonly crowded?: (crowd: Crowd) => void
  /** Limits the incomplete messages of all clients together; 64 MiB by default. */
  readonly partialBytesMax?: number
  /** A call whose first message has not come for so long ends; no limit unless given. */
  readonly firstMessageMs?: number
  /** A handler threw something that is no answer. */
  readonly failed: (error: Error) => void
}

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
  readonly #callsMax: number
  readonly #callShares: Shares<RpcCall>
  readonly #host: RpcCallHost
  #partialBytes = 0
  #refused = 0
  #accepted = 0
  #isClosing = false

  constructor(options: RpcServerOptions) {
    this.#options = options
    const { http, clock, connectionsMax = 2_048, crowded = () => undefined } = options
    this.#gate = new ConnectionGate({ clock, limits: { connections: connectionsMax }, crowded })
    this.#callsMax = options.callsMax ?? 4_096
    this.#callShares = new Shares(this.#callsMax)
    this.#host = {
      clock,
      failed: options.failed,
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
    // A connection without a call ends after 30 s. The session's own timeout would restart at each read and write, at a
    // cost. And close() would wait for a peer that is no longer read after an error of the protocol.
    const idle = (): Cancel => clock.after(30_000, () => session.destroy())
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
      const path = headers[':path'] ?? ''
      const method = this.#methodAt(path, call)
      const answer = this.#options.admit?.(call, path)
      if (answer === undefined) call.serve(method(call))
      else
        void answer.then(refusal =>
          call.attempt(() => {
            if (refusal !== undefined) throw refusal
            call.serve(method(call))
          }),
        )
    })
  }

  /** True: there is no room for more. */
  #held(change: number): boolean {
    this.#partialBytes += change
    return this.#partialBytes > (this.#options.partialBytesMax ?? 64 * 1024 * 1024)
  }

  #methodAt(path: string, call: RpcCall): Method {
    if (this.#isClosing) throw new RpcError(UNAVAILABLE, 'the server is stopping')
    this.#admit(call)
    const method = this.#options.methods.get(path)
    if (method === undefined) throw new RpcError(UNIMPLEMENTED, `unknown method ${path.slice(0, 200)}`)
    return method
  }

  /** Admits a call. Beyond the limit, a call of the client that has most ends, or the new one is refused. */
  #admit(call: RpcCall): void {
    const owners = this.#owners.get(call.session)
    if (owners === undefined) return
    const admission = this.#callShares.admit(call, owners)
    if (admission.kind !== 'accepted') this.#refused++
    if (admission.kind === 'refused')
      throw new RpcError(RESOURCE_EXHAUSTED, `${this.#callsMax} calls are already open`)
    if (admission.kind === 'evicted')
      admission.victim.end(RESOURCE_EXHAUSTED, 'too many calls, and other clients have fewer')
    this.#callShares.mark(call, 'busy')
  }
}

/** Names a TCP connection. Those of a unix socket have no name: there, a session is made as soon as it is accepted. */
function peerOf({ remoteAddress, remotePort }: Pick<Socket, 'remoteAddress' | 'remotePort'>): string {
  return `${remoteAddress ?? ''} ${remotePort ?? ''}`
}

function ignore(): void {
  // An error of the peer ends its session or stream, and is not reported.
}
