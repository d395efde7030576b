import { createHash, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Cancel, Clock } from '../base/clock.ts'
import { codeOf, errorOf } from '../base/errors.ts'
import { parseIp } from '../base/ip.ts'
import { ConnectionGate, type ConnectionLimits, type Crowd, type OverShare } from '../base/shares.ts'

export interface HttpRequest {
  /** The method, in capitals. */
  readonly method: string
  /** The path without the query: `/healthz`. */
  readonly path: string
  readonly query: URLSearchParams
  /** The headers Host, Authorization and Accept. */
  readonly host?: string | undefined
  /** The address of the client; absent at a unix socket. */
  readonly client?: string | undefined
  readonly authorization?: string | undefined
  readonly accept?: string | undefined
}

export interface HttpAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Pieces are sent as fast as the client reads them. */
  readonly body: string | AsyncIterable<string>
}

export type Handler = (request: HttpRequest) => HttpAnswer | Promise<HttpAnswer>

interface HttpConnectionsOptions {
  readonly clock: Clock
  /** Over all listeners. */
  readonly limits: ConnectionLimits
  /** Lines may end with a bare LF, as in probes written by hand, which Go's server answers. For pages without secrets only. */
  readonly isLenient?: boolean | undefined
  /** Connections exceeded a share; reported once a minute at most. */
  readonly crowded: (crowd: Crowd) => void
  /** A handler threw; the client got a 500. */
  readonly failed: (error: Error) => void
}

/** Answers / with a list of the paths, as kube-apiserver does. */
export function listing(paths: readonly string[]): HttpAnswer {
  return { status: 200, headers: JSON_TYPE, body: `${JSON.stringify({ paths }, undefined, 2)}\n` }
}

/** Maximum time for a request line with its headers, and between two requests. */
const REQUEST_MS = 10_000
/** Maximum time for the client to read an answer. */
const ANSWER_MS = 30_000
const REQUESTS_PER_CONNECTION_MAX = 100

/**
 * Serves HTTP/1 on connections of any number of listeners. Ignores request bodies. A connection ends in bounded time and
 * holds bounded memory, whatever the client does.
 */
export class HttpConnections {
  readonly #options: HttpConnectionsOptions
  readonly #http: Server
  readonly #open = new Map<Socket, Connection>()
  readonly #gate: ConnectionGate<Socket>

  constructor(options: HttpConnectionsOptions) {
    this.#options = options
    this.#gate = new ConnectionGate(options)
    const onRequest = (request: IncomingMessage, response: ServerResponse) =>
      void this.#serve(request, response)
    // 8 KiB and 64 headers: scrapers, probes and the web page send a dozen headers, of which a token is the longest.
    const parsing = { maxHeaderSize: 8 * 1024, insecureHTTPParser: options.isLenient === true }
    this.#http = createServer(parsing, onRequest)
    this.#http.maxHeadersCount = 64
    this.#http.maxRequestsPerSocket = REQUESTS_PER_CONNECTION_MAX
    // Without this, Node would request the announced body.
    this.#http.on('checkContinue', onRequest)
  }

  get open(): number {
    return this.#open.size
  }

  get overShare(): OverShare {
    return this.#gate.overShare
  }

  /** `service` names the listener's Service, if the limits have a share for each Service. */
  accept(socket: Socket, handle: Handler, service?: string): void {
    if (!this.#gate.admit(socket, service)) return
    this.#open.set(socket, { handle, deadline: undefined, requests: 0 })
    socket.once('close', () => this.#forget(socket))
    this.#within(socket, REQUEST_MS)
    if (this.#options.isLenient !== true) {
      this.#http.emit('connection', socket)
      return
    }
    socket.on('error', () => socket.destroy())
    socket.once('readable', () => {
      const first: unknown = socket.read()
      if (first instanceof Uint8Array) socket.unshift(withLineEnd(first))
      this.#http.emit('connection', socket)
    })
  }

  /** Ends every connection, even during an answer. */
  close(): void {
    for (const socket of [...this.#open.keys()]) socket.destroy()
  }

  #forget(socket: Socket): void {
    const connection = this.#open.get(socket)
    if (connection === undefined) return
    connection.deadline?.()
    this.#open.delete(socket)
  }

  /** Ends the connection after this time, unless a later call extends it. */
  #within(socket: Socket, limitMs: number): void {
    const connection = this.#open.get(socket)
    if (connection === undefined) return
    connection.deadline?.()
    connection.deadline = this.#options.clock.after(limitMs, () => socket.destroy())
  }

  /** Marks the connection as idle in either case: a client that does not read its answer must not keep others out. */
  #turn(socket: Socket, limitMs: number): void {
    this.#gate.mark(socket, 'idle')
    this.#within(socket, limitMs)
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { socket } = request
    const connection = this.#open.get(socket)
    if (connection === undefined) return
    this.#turn(socket, ANSWER_MS)
    response.once('finish', () => this.#turn(socket, REQUEST_MS))
    // Beyond its maximum, Node answers 503 for ever unless the last answer ends the connection.
    const isLast = ++connection.requests >= REQUESTS_PER_CONNECTION_MAX
    if (isLast || announcesBody(request)) response.setHeader('Connection', 'close')
    try {
      const read = readRequest(request)
      await send(response, read === undefined ? BAD_REQUEST : await connection.handle(read))
    } catch (thrown) {
      this.#options.failed(errorOf(thrown))
      if (response.headersSent) socket.destroy()
      else await send(response, INTERNAL_ERROR)
    }
  }
}

interface Connection {
  readonly handle: Handler
  deadline: Cancel | undefined
  requests: number
}

/** Headers of kube-proxy's plain answers. */
export const PLAIN = {
  'Content-Type': 'text/plain; charset=utf-8',
  'X-Content-Type-Options': 'nosniff',
} as const
export const JSON_TYPE = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' } as const

export const NOT_FOUND: HttpAnswer = { status: 404, headers: PLAIN, body: '404 page not found\n' }
const BAD_REQUEST: HttpAnswer = { status: 400, headers: PLAIN, body: '400 bad request\n' }
const INTERNAL_ERROR: HttpAnswer = { status: 500, headers: PLAIN, body: '500 internal server error\n' }
const WRONG_METHOD: HttpAnswer = {
  status: 405,
  headers: { ...PLAIN, Allow: 'GET, HEAD' },
  body: '405 method not allowed\n',
}

/** Restricts a handler to GET and HEAD; other methods get a 405. */
export function readOnly(handle: Handler): Handler {
  return request => (request.method === 'GET' || request.method === 'HEAD' ? handle(request) : WRONG_METHOD)
}

const [LF, CR] = [0x0a, 0x0d]

/** Ends the first line with CR LF: after a bare LF, the parser of Node waits for a header where none follows. */
function withLineEnd(bytes: Uint8Array): Uint8Array {
  const at = bytes.indexOf(LF)
  if (at <= 0 || bytes[at - 1] === CR) return bytes
  return Buffer.concat([bytes.subarray(0, at), Buffer.from([CR]), bytes.subarray(at)])
}

function announcesBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
}

/** A request to a proxy (RFC 9112, absolute-form) names the host before the path, and its header Host counts for nothing. */
const TARGET = /^(?:https?:\/\/([^/?#]+))?(?=[/?]|$)([^?]*)(?:\?(.*))?$/is

function readRequest({ method, url = '', headers, socket }: IncomingMessage): HttpRequest | undefined {
  const [, authority, path = '', query = ''] = TARGET.exec(url) ?? []
  if (method === undefined || (path === '' && authority === undefined)) return undefined
  const { host, authorization, accept } = headers
  return {
    method,
    path: path === '' ? '/' : path,
    query: new URLSearchParams(query),
    host: authority ?? host,
    authorization,
    accept,
    client: socket.remoteAddress,
  }
}

async function send(response: ServerResponse, { status, headers, body }: HttpAnswer): Promise<void> {
  if (typeof body === 'string') {
    response.writeHead(status, { ...headers, 'Content-Length': Buffer.byteLength(body) })
    response.end(body)
    return
  }
  response.writeHead(status, headers)
  if (response.req.method === 'HEAD') {
    response.end()
    return
  }
  await pipeline(Readable.from(body), response).catch(error => {
    // The client has gone.
    if (!codeOf(error).startsWith('ERR_STREAM_')) throw error
  })
}

/**
 * Tests whether a Host header names this server: by an address, as `localhost`, or by one of `names`. A page of another
 * site that has its own name resolve to this server (DNS rebinding) sends that name.
 */
export function isOwnHost(host: string | undefined, names: readonly string[]): boolean {
  const [, bracketed, plain = ''] = /^(?:\[([^\]]*)\]|([^:[\]]*))(?::\d{1,5})?$/.exec(host ?? '') ?? []
  if (bracketed !== undefined) return parseIp(bracketed)?.length === 16
  const name = plain.toLowerCase()
  return name !== '' && (parseIp(name) !== undefined || name === 'localhost' || names.includes(name))
}

/** Answers a request under the name of another site. */
export function misdirected(host: string | undefined): HttpAnswer {
  const body = `421 misdirected request: ${JSON.stringify(host ?? '')} is not this daemon; use its address, localhost or the name of its Node\n`
  return { status: 421, headers: PLAIN, body }
}

/** Tests whether an Authorization header has the token: as a bearer token, or as the password of any user. */
export function hasToken(authorization: string | undefined, token: string): boolean {
  const [, scheme = '', value = ''] = /^(bearer|basic) +(\S+)$/i.exec(authorization ?? '') ?? []
  const given =
    scheme.toLowerCase() === 'basic'
      ? Buffer.from(value, 'base64')
          .toString('utf8')
          .replace(/^[^:]*:/, '')
      : value
  return token !== '' && timingSafeEqual(digest(given), digest(token))
}

/** Equal lengths: the time of the comparison reveals nothing about the token. */
function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
