import type { Clock } from '../../../src/base/clock.ts'
import {
  type ApiClient,
  ApiError,
  type ApiErrorKind,
  type ApiRequest,
  type ApiResponse,
} from '../../../src/source/kube/api-client.ts'
import { parseRetryAfter } from '../../../src/source/kube/client/answer.ts'
import { RateLimit } from '../../../src/source/kube/client/rate-limit.ts'
import { type Backend, serve } from './exchange.ts'
import type { ResponsePort } from './faulty-body.ts'
import type { MemoryNetwork, Passenger } from './memory-network.ts'

interface MemoryClientOptions {
  readonly backend: Backend
  readonly network: MemoryNetwork
  readonly clock: Clock
  /** Read anew for each request. */
  readonly token?: () => string | undefined
  /** As client-go's, by default 5, in bursts of 10; 0 for no limit. */
  readonly qps?: number
  /** Hears of each request as it goes out. */
  readonly sent?: (request: ApiRequest) => void
}

/** A client without sockets: requests reach the semantics over a network that a test can break. */
export class MemoryClient implements ApiClient {
  readonly server = 'memory://api'
  readonly #options: MemoryClientOptions
  readonly #limit: RateLimit
  readonly #open = new Set<MemoryExchange>()
  #closed = false

  constructor(options: MemoryClientOptions) {
    this.#options = options
    const { clock, qps = 5 } = options
    this.#limit = new RateLimit({ qps, burst: 10, clock })
  }

  /** Requests whose responses have not ended. */
  get openCount(): number {
    return this.#open.size
  }

  async send(request: ApiRequest): Promise<ApiResponse> {
    await this.#limit.turn({ onFail: run => request.signal.addEventListener('abort', run, { once: true }) })
    const token = this.#options.token?.()
    const first = await this.#exchange(request, token)
    if (first.status !== 401 || this.#options.token?.() === token) return first
    await first.body[Symbol.asyncIterator]().return?.()
    return this.#exchange(request, this.#options.token?.())
  }

  close(): Promise<void> {
    this.#closed = true
    for (const exchange of [...this.#open]) exchange.lose('aborted', 'the client was closed')
    return Promise.resolve()
  }

  #exchange(request: ApiRequest, token: string | undefined): Promise<ApiResponse> {
    if (request.signal.aborted || this.#closed) throw new ApiError('aborted', 'aborted')
    this.#options.sent?.(request)
    const exchange = new MemoryExchange(request, { ...this.#options, bearer: token }, () =>
      this.#open.delete(exchange),
    )
    this.#open.add(exchange)
    return exchange.start()
  }
}

interface ExchangeOptions extends MemoryClientOptions {
  readonly bearer: string | undefined
}

/** One request and its response: what the server says arrives later, in order. */
class MemoryExchange implements ResponsePort, Passenger {
  readonly #request: ApiRequest
  readonly #options: ExchangeOptions
  readonly #ended: () => void
  readonly #pieces: Uint8Array[] = []
  #arriveAtMs = 0
  #heardMs: number
  #state: 'open' | 'whole' | 'over' = 'open'
  #error: ApiError | undefined
  #deaf = false
  #hasHead = false
  #answer: ((response: ApiResponse) => void) | undefined
  #refuse: ((error: ApiError) => void) | undefined
  #wake: () => void = () => undefined
  #cancelServer: () => void = () => undefined
  #cancelIdle: () => void = () => undefined
  readonly #aborted = () => this.lose('aborted', 'aborted')

  constructor(request: ApiRequest, options: ExchangeOptions, ended: () => void) {
    this.#request = request
    this.#options = options
    this.#ended = ended
    this.#heardMs = options.clock.nowMs()
  }

  start(): Promise<ApiResponse> {
    const { network, clock } = this.#options
    this.#request.signal.addEventListener('abort', this.#aborted)
    network.board(this)
    this.#watchIdle()
    clock.after(network.latencyMs(), () => this.#reachServer())
    return new Promise((resolve, reject) => {
      this.#answer = resolve
      this.#refuse = reject
    })
  }

  head(code: number, headers: Readonly<Record<string, string>>): void {
    const retryAfterMs = parseRetryAfter(headers['retry-after'])
    const contentType = (headers['content-type'] ?? '').toLowerCase()
    const body = { [Symbol.asyncIterator]: () => this.#read() }
    this.#arrive(() => {
      this.#hasHead = true
      this.#answer?.({ status: code, contentType, retryAfterMs, body })
    })
  }

  write(bytes: Uint8Array): void {
    for (const piece of this.#options.network.pieces(bytes))
      this.#arrive(() => {
        this.#pieces.push(piece)
        this.#wake()
      })
  }

  end(): void {
    this.#arrive(() => {
      if (this.#hasHead) this.#finish('whole')
      else this.lose('lost', 'the connection was closed before an answer')
    })
  }

  reset(): void {
    this.#arrive(() => this.#options.network.cut())
  }

  /** One response falls silent: the others share its connection, and its fate. */
  stall(): void {
    this.#options.network.die()
    this.#options.network.heal()
  }

  deafen(): void {
    this.#deaf = true
    this.#cancelServer()
  }

  rstStream(): void {
    this.#arrive(() => this.lose('lost', 'RST_STREAM'))
  }

  goAway(code: number): void {
    if (code !== 0) this.reset()
  }

  lose(kind: ApiErrorKind, text: string): void {
    if (this.#state !== 'open') return
    const { method, path } = this.#request
    this.#error = new ApiError(kind, `${method} ${path}: ${text}`)
    this.#finish('over')
  }

  #reachServer(): void {
    const { network, backend, bearer } = this.#options
    if (this.#state !== 'open' || this.#deaf || network.state === 'dead') return
    if (network.state === 'refused') {
      this.lose('unreachable', 'nobody listens')
      return
    }
    const { method, path, accept, body = '', contentType } = this.#request
    const headers = {
      accept,
      ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
      ...(contentType === undefined ? {} : { 'content-type': contentType }),
    }
    const cancel = serve(backend, { method, path, headers, body }, this)
    if (this.#state === 'open') this.#cancelServer = cancel
    else cancel()
  }

  /** In order, each a little later than it was said; never when the connection has died meanwhile. */
  #arrive(run: () => void): void {
    const { clock, network } = this.#options
    if (this.#deaf) return
    const nowMs = clock.nowMs()
    this.#arriveAtMs = Math.max(this.#arriveAtMs, nowMs + network.latencyMs())
    clock.after(this.#arriveAtMs - nowMs, () => {
      if (this.#state !== 'open' || this.#deaf) return
      this.#heardMs = clock.nowMs()
      run()
    })
  }

  #watchIdle(): void {
    const { clock } = this.#options
    const { idleMs, longLived } = this.#request
    this.#cancelIdle = clock.after(this.#heardMs + idleMs - clock.nowMs(), () => {
      if (longLived && this.#hasHead) return
      if (clock.nowMs() >= this.#heardMs + idleMs) this.lose('silent', `silent for ${idleMs} ms`)
      else this.#watchIdle()
    })
  }

  async *#read(): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = this.#pieces.shift()
        if (piece !== undefined) yield piece
        else if (this.#error !== undefined) throw this.#error
        else if (this.#state !== 'open') return
        else
          await new Promise<void>(resolve => {
            this.#wake = resolve
          })
      }
    } finally {
      if (this.#state === 'open') this.#finish('over')
    }
  }

  #finish(state: 'whole' | 'over'): void {
    if (this.#state !== 'open') return
    this.#state = state
    this.#options.network.leave(this)
    this.#cancelIdle()
    this.#cancelServer()
    this.#request.signal.removeEventListener('abort', this.#aborted)
    if (this.#error !== undefined) this.#refuse?.(this.#error)
    this.#wake()
    this.#ended()
  }
}
