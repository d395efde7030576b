import type { ServerResponse } from 'node:http'
import { constants, Http2ServerResponse } from 'node:http2'
import type { ResponsePort } from './faulty-body.ts'
import type { Connection } from './front.ts'

/** One request as it came in, and what became of it so far. */
export interface LogEntry {
  readonly method: string
  /** With the query. */
  readonly path: string
  readonly query: URLSearchParams
  readonly headers: Readonly<Record<string, string>>
  code: number | undefined
}

interface HttpPortOptions {
  readonly response: ServerResponse | Http2ServerResponse
  readonly entry: LogEntry
  readonly connection: Connection | undefined
}

/** Responses of Node's HTTP/1.1 and HTTP/2 servers. */
export class HttpPort implements ResponsePort {
  readonly #options: HttpPortOptions
  #unsent = 0
  /** Waits until everything said before it is on its way. */
  #last: (() => void) | undefined

  constructor(options: HttpPortOptions) {
    this.#options = options
  }

  head(code: number, headers: Readonly<Record<string, string>>): void {
    const { response, entry } = this.#options
    entry.code = code
    response.writeHead(code, { ...headers })
    // A watch that has no event yet has a head nevertheless.
    if (response instanceof Http2ServerResponse) return
    response.flushHeaders()
  }

  write(bytes: Uint8Array): void {
    const { response } = this.#options
    this.#unsent++
    const sent = () => {
      this.#unsent--
      this.#runLast()
    }
    if (response instanceof Http2ServerResponse) response.write(bytes, 'utf8', sent)
    else response.write(bytes, sent)
  }

  end(): void {
    const { response, entry } = this.#options
    if (entry.code !== undefined) response.end()
    else if (response instanceof Http2ServerResponse) response.stream.close(constants.NGHTTP2_CANCEL)
    else response.destroy()
  }

  reset(): void {
    const { response, connection } = this.#options
    this.#afterwards(() => {
      if (connection !== undefined) connection.reset()
      else response.destroy()
    }, RELAY_MS)
  }

  stall(): void {
    this.#afterwards(() => this.#options.connection?.stall(), RELAY_MS)
  }

  rstStream(): void {
    const { response } = this.#options
    if (!(response instanceof Http2ServerResponse)) this.reset()
    else this.#afterwards(() => response.stream.close(constants.NGHTTP2_INTERNAL_ERROR), 0)
  }

  goAway(code: number): void {
    const { response } = this.#options
    if (!(response instanceof Http2ServerResponse)) {
      this.reset()
      return
    }
    const { session } = response.stream
    if (code === 0) session?.goaway(constants.NGHTTP2_NO_ERROR, response.stream.id)
    else this.#afterwards(() => session?.destroy(undefined, code), 0)
  }

  #afterwards(run: () => void, moreMs: number): void {
    this.#last = () => {
      // Timers that are due come before sockets: after a pause of this process, the relay would not have read yet.
      setTimeout(() => setImmediate(() => setImmediate(run)), moreMs)
    }
    this.#runLast()
  }

  #runLast(): void {
    if (this.#unsent > 0 || this.#last === undefined) return
    const run = this.#last
    this.#last = undefined
    run()
  }
}

/** What was written has to get through the relay, too, before that is cut. */
const RELAY_MS = 5
