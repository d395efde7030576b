import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  constants,
  type IncomingHttpHeaders,
  type IncomingHttpStatusHeader,
  type OutgoingHttpHeaders,
  sensitiveHeaders,
} from 'node:http2'
import type { Socket } from 'node:net'
import type { Clock } from '../../../base/clock.ts'
import type { ApiError } from '../api-client.ts'
import { type Answer, answerOf, cutOff, type HttpConnection, Pulse, silence } from './answer.ts'
import { type Call, HEAD_BYTES_MAX, isWatch, type Outgoing } from './call.ts'
import { arrival, exchangeFailure, TurnedDown } from './dial.ts'
import { SocketTap } from './socket-tap.ts'

/**
 * Lists arrive without waiting for window updates, and in pieces small enough that one is dealt with before the event loop
 * has to turn: with 4 MiB a list of 10,000 slices took 14 MiB more, was no faster, and held the loop for twice as long.
 */
const STREAM_WINDOW_BYTES = 512 * 1024
const CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
/** Codes by which a server rejects unprocessed requests; the next stream of this connection would fail as well. */
const TURNED_DOWN: readonly (number | undefined)[] = [
  constants.NGHTTP2_REFUSED_STREAM,
  constants.NGHTTP2_ENHANCE_YOUR_CALM,
]

interface Http2Options {
  /** Connected, with TLS where the server has it. */
  readonly socket: Socket
  readonly authority: string
  readonly clock: Clock
  /** Ends the opening, with an ApiError as its reason. */
  readonly signal: AbortSignal
}

/** Begins to speak HTTP/2 (RFC 9113) and resolves when the server's SETTINGS have arrived. */
export async function openHttp2(options: Http2Options): Promise<Http2Connection> {
  const { socket, authority } = options
  const session = connect(`https://${authority}`, {
    createConnection: () => socket,
    settings: {
      enablePush: false,
      initialWindowSize: STREAM_WINDOW_BYTES,
      maxHeaderListSize: HEAD_BYTES_MAX,
    },
    maxHeaderListPairs: 200,
    // Megabytes, as Node counts them; what the windows allow must fit.
    maxSessionMemory: 64,
  })
  await settle(session, options)
  return new Http2Connection(session, options)
}

async function settle(session: ClientHttp2Session, { socket, signal }: Http2Options): Promise<void> {
  // GOAWAY may come in one piece with the SETTINGS: its error then follows when nothing waits for the SETTINGS any more.
  session.on('error', () => undefined)
  try {
    await arrival(session, 'remoteSettings', { signal, closed: cutOff() })
    session.setLocalWindowSize(CONNECTION_WINDOW_BYTES)
  } catch (error) {
    session.destroy()
    socket.destroy()
    throw signal.aborted ? signal.reason : exchangeFailure(error)
  }
}

/** Requests are streams of one session. GOAWAY retires it, and so does a stream turned down; RST_STREAM fails one request alone. */
export class Http2Connection implements HttpConnection {
  readonly #session: ClientHttp2Session
  readonly #options: Http2Options
  readonly #pulse: Pulse
  readonly #tap: SocketTap
  readonly #streams = new Map<ClientHttp2Stream, Call>()
  #retired = false
  #ended = false

  constructor(session: ClientHttp2Session, options: Http2Options) {
    this.#session = session
    this.#options = options
    this.#tap = new SocketTap(options)
    this.#pulse = new Pulse({
      clock: options.clock,
      ping: answered => this.#ping(answered),
      dead: () => this.#end(silence()),
    })
    session.on('error', error => this.#end(exchangeFailure(error)))
    session.on('close', () => this.#end(cutOff()))
    session.on('goaway', () => this.retire())
    // Node may end the session without an error when the socket goes under it.
    options.socket.once('close', () => this.#end(cutOff()))
  }

  /** Tests whether it takes one more request now. */
  get hasRoom(): boolean {
    // Streams go before their session reports its end.
    if (this.#retired || this.#ended || this.#session.closed || this.#session.destroyed) return false
    const { maxConcurrentStreams = Number.POSITIVE_INFINITY } = this.#session.remoteSettings
    return this.#streams.size < maxConcurrentStreams
  }

  async send(outgoing: Outgoing, call: Call): Promise<Answer> {
    const stream = this.#begin(outgoing)
    this.#streams.set(stream, call)
    stream.on('error', error => call.fail(streamFailure(stream, error)))
    call.onFail(() => stream.close(constants.NGHTTP2_CANCEL))
    if (outgoing.body !== undefined) stream.end(outgoing.body)
    return new Promise(resolve => {
      let answered = false
      stream.once('response', headers => {
        answered = true
        resolve(this.#answer(stream, headers, { outgoing, call }))
      })
      stream.once('close', () => {
        if (!answered) call.fail(cutOff())
        this.#streams.delete(stream)
        if (!answered && TURNED_DOWN.includes(stream.rstCode)) this.#retired = true
        this.#freed()
      })
    })
  }

  /** Takes no new requests and closes after the last one. */
  retire(): void {
    this.#retired = true
    this.#freed()
  }

  probe(): void {
    this.#pulse.probe()
  }

  #begin(outgoing: Outgoing): ClientHttp2Stream {
    try {
      return this.#session.request(this.#head(outgoing), { endStream: outgoing.body === undefined })
    } catch (error) {
      throw exchangeFailure(error)
    }
  }

  #head({ method, path, headers }: Outgoing): OutgoingHttpHeaders {
    return {
      ':method': method,
      ':path': path,
      ':authority': this.#options.authority,
      // Never in a compression table (RFC 7541, 7.1).
      [sensitiveHeaders]: ['authorization'],
      ...headers,
    }
  }

  #answer(
    stream: ClientHttp2Stream,
    headers: IncomingHttpHeaders & IncomingHttpStatusHeader,
    { outgoing, call }: { readonly outgoing: Outgoing; readonly call: Call },
  ): Answer {
    this.#pulse.heard()
    const status = headers[':status'] ?? 0
    return answerOf({
      status,
      headers,
      stream,
      call,
      clock: this.#options.clock,
      idleMs: isWatch(outgoing, status) ? undefined : outgoing.idleMs,
      // To Node, a stream that was canceled or lost its socket has ended well: only the code differs. One that is reset
      // with NO_ERROR in its middle, which no server does on purpose, is found by its reader or not at all: Node does not
      // compare with content-length.
      whole: () => stream.rstCode === constants.NGHTTP2_NO_ERROR,
      cancel: () => stream.close(constants.NGHTTP2_CANCEL),
      pulse: this.#pulse,
      tap: this.#tap.tap(),
    })
  }

  #ping(answered: () => void): void {
    // The session is ending, and its error is reported elsewhere.
    this.#session.ping(error => {
      if (error === null) answered()
    })
  }

  #freed(): void {
    if (this.#retired && this.#streams.size === 0) this.#end(cutOff())
  }

  #end(reason: ApiError): void {
    if (this.#ended) return
    this.#ended = true
    this.#pulse.stop()
    this.#tap.end()
    for (const call of this.#streams.values()) call.fail(reason)
    this.#session.destroy()
    // A session that was closing would wait for a peer that may be gone.
    this.#options.socket.destroy()
  }
}

function streamFailure({ rstCode }: ClientHttp2Stream, error: unknown): ApiError {
  if (rstCode !== constants.NGHTTP2_REFUSED_STREAM) return exchangeFailure(error)
  return new TurnedDown('lost', 'the server rejected the request unprocessed', { cause: error })
}
