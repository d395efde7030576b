import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError } from '../api-client.ts'
import { type Answer, answerOf, cutOff } from './answer.ts'
import type { Call } from './call.ts'
import { exchangeFailure, KEEP_ALIVE_MS } from './dial.ts'
import {
  endOf,
  HEAD_BYTES_MAX,
  type HttpConnection,
  isWatch,
  type OpenConnection,
  type Outgoing,
} from './pool.ts'

/** One request after the other over one socket (RFC 9112), which closes with a request that is given up. */
export class Http1Connection implements HttpConnection {
  readonly identity: string
  readonly #options: OpenConnection
  readonly #agent: OneSocketAgent
  #call: Call | undefined
  #retired = false
  #ended = false

  constructor(options: OpenConnection) {
    this.#options = options
    this.identity = options.identity
    this.#agent = new OneSocketAgent(options.socket, () => this.#freed())
    // Both events also reach the requests under way.
    options.socket.on('error', () => this.#end(undefined))
    options.socket.once('close', () => this.#end(undefined))
  }

  get retired(): boolean {
    return this.#retired || this.#ended || this.#options.socket.destroyed
  }

  get closed(): boolean {
    return this.#ended
  }

  get room(): number {
    return this.retired || this.#call !== undefined ? 0 : 1
  }

  async send(outgoing: Outgoing, call: Call): Promise<Answer> {
    const { method, path, headers, body } = outgoing
    const sent = request({
      agent: this.#agent,
      method,
      path,
      headers: { host: this.#options.authority, ...headers },
      maxHeaderSize: HEAD_BYTES_MAX,
    })
    this.#call = call
    sent.on('error', error => call.fail(exchangeFailure(error)))
    call.onFail(() => sent.destroy())
    sent.end(body)
    return this.#response(sent, outgoing, call)
  }

  retire(): void {
    this.#retired = true
    if (this.#call === undefined) this.#end(cutOff())
    else this.#options.changed(this)
  }

  probe(): void {
    // A request that failed has taken the socket with it.
  }

  close(): Promise<void> {
    const closed = endOf(this.#options.socket)
    this.#end(cutOff())
    return closed
  }

  #response(sent: ClientRequest, outgoing: Outgoing, call: Call): Promise<Answer> {
    return new Promise(resolve => {
      let answered = false
      sent.once('response', response => {
        answered = true
        resolve(this.#answer(response, outgoing, call))
      })
      sent.once('upgrade', (_response, socket) => {
        call.fail(new ApiError('protocol', 'the server changed the protocol'))
        socket.destroy()
      })
      sent.once('close', () => {
        if (!answered) call.fail(cutOff())
      })
    })
  }

  #answer(response: IncomingMessage, outgoing: Outgoing, call: Call): Answer {
    response.on('error', error => call.fail(exchangeFailure(error)))
    const status = response.statusCode ?? 0
    return answerOf({
      status,
      headers: response.headers,
      stream: response,
      call,
      clock: this.#options.clock,
      idleMs: isWatch(outgoing, status) ? outgoing.watchIdleMs : outgoing.idleMs,
      whole: () => response.complete,
      cancel: () => response.destroy(),
    })
  }

  /** The socket may carry the next request. */
  #freed(): void {
    this.#call = undefined
    if (this.#retired) this.#end(cutOff())
    else this.#options.changed(this)
  }

  #end(reason: ApiError | undefined): void {
    if (this.#ended) return
    this.#ended = true
    if (reason !== undefined) this.#call?.fail(reason)
    this.#agent.destroy()
    this.#options.socket.destroy()
    this.#options.changed(this)
  }
}

/** Node's own keeping of connections, for one that has been made already. */
class OneSocketAgent extends Agent {
  readonly #socket: Socket
  readonly #freed: () => void

  constructor(socket: Socket, freed: () => void) {
    super({ keepAlive: true, keepAliveMsecs: KEEP_ALIVE_MS, maxSockets: 1 })
    this.#socket = socket
    this.#freed = freed
  }

  createConnection(): Socket {
    return this.#socket
  }

  /** Called when a response has been read and the server keeps the connection open. */
  keepSocketAlive(socket: Socket): boolean {
    socket.setKeepAlive(true, KEEP_ALIVE_MS)
    // The agent lists the socket as free once this has returned.
    setImmediate(this.#freed)
    return true
  }
}
