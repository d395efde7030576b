import { type ClientHttp2Session, type ClientHttp2Stream, connect } from 'node:http2'
import { connect as connectSocket } from 'node:net'
import { MessageReader, UNAVAILABLE } from '../api/grpc/rpc.ts'
import { type ApiAddress, formatApiAddress } from '../base/api-address.ts'
import type { Cancel, Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { formatIp } from '../base/ip.ts'

export interface RelayCall {
  /** The client should pause: too many of its messages wait. Absent where nothing waits. */
  readonly isFull?: boolean
  /** A message behind its prefix. */
  send(frame: Buffer): void
  /** The client sends nothing more. */
  finish(): void
  /** No message comes until it is resumed. */
  pause(): void
  resume(): void
  cancel(): void
}

export interface RelayCallHandlers {
  message(bytes: Buffer): void
  /** Always the last word, unless the client has canceled the call. */
  ended(code: number, text: string): void
}

export interface RelayLink {
  call(method: string, handlers: RelayCallHandlers): RelayCall
  close(): void
}

/** The client's credentials for relays, and the authority that it expects: PEM texts. */
export interface RelayTlsPems {
  readonly ca: string
  /** Undefined for a client that shows a token. */
  readonly cert: string | undefined
  readonly key: string | undefined
  /** The name in the certificate of the relay; undefined for its address. */
  readonly servername: string | undefined
}

interface LinkOptions {
  readonly address: ApiAddress
  /** Read anew for each connection. Undefined for one in plain. */
  readonly tls: (() => Promise<RelayTlsPems>) | undefined
  /** Read for each call, because it rotates. No other program can listen: TLS, a unix socket or loopback. */
  readonly token?: (() => Promise<string>) | undefined
  readonly clock: Clock
}

/** A connection, with the headers that identify the client of a call. */
interface Caller {
  readonly session: ClientHttp2Session
  readonly token: string | undefined
}

const CONNECT_MS = 5_000
// A relay sends so much before it is acknowledged: a whole state does not wait for windows in between.
const SETTINGS = { enablePush: false, initialWindowSize: 1024 * 1024 } as const

/** HTTP/2 over TCP, TLS or a unix socket. */
export class Http2Link implements RelayLink {
  readonly #options: LinkOptions
  #session: Promise<ClientHttp2Session> | undefined

  constructor(options: LinkOptions) {
    this.#options = options
  }

  call(method: string, handlers: RelayCallHandlers): RelayCall {
    return new Http2Call(this.#caller(), method, handlers)
  }

  async #caller(): Promise<Caller> {
    const { token } = this.#options
    const [session, text] = await Promise.all([this.#connected(), token?.()])
    return { session, token: text }
  }

  close(): void {
    const session = this.#session
    this.#session = undefined
    session?.then(
      its => its.destroy(),
      () => undefined,
    )
  }

  #connected(): Promise<ClientHttp2Session> {
    if (this.#session !== undefined) return this.#session
    const made = this.#connect()
    this.#session = made
    const forget = (): void => {
      if (this.#session === made) this.#session = undefined
    }
    made.then(session => {
      session.once('close', forget)
      // It ends in good order, and takes no further calls.
      session.once('goaway', forget)
    }, forget)
    return made
  }

  async #connect(): Promise<ClientHttp2Session> {
    const { address, tls, clock } = this.#options
    const pems = await tls?.()
    const session = open(address, pems)
    const late = clock.after(CONNECT_MS, () =>
      session.destroy(new Error(`no connection within ${CONNECT_MS / 1_000} s`)),
    )
    let cause = 'the connection was closed'
    session.on('error', error => {
      cause = error.message
    })
    session.once('close', late)
    await new Promise<void>((resolve, reject) => {
      session.once('connect', () => resolve())
      session.once('close', () => reject(new Error(cause)))
    })
    late()
    // The window of a connection, for the streams of all types together.
    session.setLocalWindowSize(4 * 1024 * 1024)
    watchPulse(session, clock)
    return session
  }
}

function open(address: ApiAddress, pems: RelayTlsPems | undefined): ClientHttp2Session {
  if (address.kind === 'unix')
    return connect('http://localhost', {
      settings: SETTINGS,
      createConnection: () => connectSocket(address.path),
    })
  const ip = formatIp(address.ip)
  const host = address.ip.length === 16 ? `[${ip}]` : ip
  if (pems === undefined) return connect(`http://${host}:${address.port}`, { settings: SETTINGS })
  // NODE_TLS_REJECT_UNAUTHORIZED=0 does not reach so far.
  const { ca, cert, key, servername } = pems
  return connect(`https://${host}:${address.port}`, {
    settings: SETTINGS,
    ca,
    ...(cert === undefined || key === undefined ? {} : { cert, key }),
    ...(servername === undefined ? {} : { servername }),
    minVersion: 'TLSv1.2',
    rejectUnauthorized: true,
  })
}

/** A relay that is stopped, or whose machine is gone, answers no PING. */
function watchPulse(session: ClientHttp2Session, clock: Clock): void {
  let cancel: Cancel
  const beat = (): void => {
    let isAnswered = false
    if (!session.destroyed)
      session.ping(() => {
        isAnswered = true
      })
    // A PING every 15 s, to be answered before the next one: a node changes to another relay within 30 s.
    cancel = clock.after(15_000, () => {
      if (isAnswered) beat()
      else session.destroy(new Error('the relay does not answer a PING'))
    })
  }
  session.once('close', () => cancel())
  beat()
}

class Http2Call implements RelayCall {
  readonly #handlers: RelayCallHandlers
  readonly #waiting: Buffer[] = []
  #stream: ClientHttp2Stream | undefined
  #isFinished = false
  #isPaused = false
  #isOver = false

  constructor(caller: Promise<Caller>, method: string, handlers: RelayCallHandlers) {
    this.#handlers = handlers
    caller
      .then(its => this.#begin(its, method))
      .catch(error => this.#end(UNAVAILABLE, errorOf(error).message))
  }

  send(frame: Buffer): void {
    if (this.#isOver) return
    if (this.#stream === undefined) this.#waiting.push(frame)
    else this.#stream.write(frame)
  }

  get isFull(): boolean {
    return this.#stream?.writableNeedDrain ?? this.#waiting.length > 0
  }

  finish(): void {
    this.#isFinished = true
    this.#stream?.end()
  }

  pause(): void {
    this.#isPaused = true
    this.#stream?.pause()
  }

  resume(): void {
    this.#isPaused = false
    this.#stream?.resume()
  }

  cancel(): void {
    this.#isOver = true
    this.#stream?.close(8)
  }

  #begin({ session, token }: Caller, method: string): void {
    if (this.#isOver) return
    if (session.destroyed || session.closed) {
      this.#end(UNAVAILABLE, 'the connection was closed')
      return
    }
    const stream = session.request({
      ':method': 'POST',
      ':path': method,
      'content-type': 'application/grpc',
      te: 'trailers',
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      'grpc-accept-encoding': 'gzip',
    })
    this.#stream = stream
    // 16 MiB: a response has 256 KiB or one object, and an object of the API server a few MiB.
    const reader = new MessageReader(16 * 1024 * 1024, { readsGzip: true })
    let status: readonly [code: number, text: string] = [UNAVAILABLE, 'the connection was lost']
    const read = (headers: { readonly [name: string]: unknown }): void => {
      const code = headers['grpc-status']
      if (typeof code === 'string') status = [Number(code), decoded(headers['grpc-message'])]
    }
    stream.on('response', read)
    stream.on('trailers', read)
    stream.on('data', (chunk: Buffer) => this.#read(reader, chunk))
    stream.on('error', error => {
      status = [UNAVAILABLE, error.message]
    })
    stream.once('close', () => this.#end(...status))
    for (const frame of this.#waiting.splice(0)) stream.write(frame)
    if (this.#isFinished) stream.end()
    if (this.#isPaused) stream.pause()
  }

  #read(reader: MessageReader, chunk: Buffer): void {
    try {
      reader.read(chunk, bytes => {
        if (!this.#isOver) this.#handlers.message(bytes)
      })
    } catch (error) {
      this.#end(UNAVAILABLE, `not understood: ${errorOf(error).message}`)
      this.#stream?.close(8)
    }
  }

  #end(code: number, text: string): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#handlers.ended(code, text)
  }
}

function decoded(message: unknown): string {
  const text = typeof message === 'string' ? message : ''
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export function relayName(address: ApiAddress): string {
  return `relay ${formatApiAddress(address)}`
}
