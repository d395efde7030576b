import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import type { Socket } from 'node:net'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import { type Answer, answerOf, cutOff, type HttpConnection } from './answer.ts'
import { type Call, HEAD_BYTES_MAX, isWatch, type Outgoing } from './call.ts'
import { exchangeFailure } from './dial.ts'

interface Http1Options {
  /** Connected, with TLS where the server has it. */
  readonly socket: Socket
  readonly authority: string
  readonly clock: Clock
}

/** One request over a socket of its own (RFC 9112), which closes with it. */
export class Http1Connection implements HttpConnection {
  readonly #options: Http1Options

  constructor(options: Http1Options) {
    this.#options = options
    // The request fails of it, too.
    options.socket.on('error', () => undefined)
  }

  async send(outgoing: Outgoing, call: Call): Promise<Answer> {
    const { method, path, headers, body } = outgoing
    const { socket, authority } = this.#options
    if (socket.destroyed) throw cutOff()
    const sent = request({
      createConnection: () => socket,
      method,
      path,
      headers: { host: authority, ...headers },
      maxHeaderSize: HEAD_BYTES_MAX,
    })
    sent.on('error', error => call.fail(exchangeFailure(error)))
    call.onFail(() => sent.destroy())
    sent.end(body)
    return await this.#response(sent, outgoing, call)
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
}
