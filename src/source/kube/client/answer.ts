import { type Readable, Writable } from 'node:stream'
import { createGunzip, type Gunzip } from 'node:zlib'
import type { Cancel, Clock } from '../../../base/clock.ts'
import { printable } from '../../../model/fields.ts'
import { type ApiBody, ApiError, RETRY_AFTER_MS_MAX } from '../api-client.ts'
import type { Call, Outgoing } from './call.ts'

interface BodyOptions {
  readonly stream: Readable
  /** Makes the bytes of `stream`; undefined where they arrive as they are. */
  readonly inflating?: Inflating | undefined
  readonly call: Call
  readonly clock: Clock
  /** Longest wait for a piece, milliseconds; undefined for no limit. Time the reader takes does not count. */
  readonly idleMs: number | undefined
  /** Gives the error of a stream that ended before the response did; undefined when the response is complete. */
  readonly cut: () => ApiError | undefined
  /** Ends the stream at the server. Idempotent. */
  readonly cancel: () => void
  /** Hears each piece that arrives. */
  readonly pulse?: Pulse | undefined
  /** Stops and resumes reading from the connection. */
  readonly tap?: Tap | undefined
}

export interface Tap {
  hold(): void
  resume(): void
}

/** Unread bytes at which the sender has to pause: a burst of events is read together. */
const HELD_BYTES_MAX = 512 * 1024

/** The bytes of one response. Small bodies are read from the connection even when the caller does not read them. */
class Body implements ApiBody {
  readonly #options: BodyOptions
  readonly #held: Uint8Array[] = []
  #heldBytes = 0
  /** The trips that `inflating` had made when the oldest of the held pieces arrived. */
  #tripsBefore = 0
  #ended = false
  #error: ApiError | undefined
  #wake: () => void = () => undefined

  constructor(options: BodyOptions) {
    this.#options = options
    const { stream, inflating, call, pulse } = options
    call.onFail(error => {
      this.#error = error
      // Events that arrived before the loss of the connection stay valid; only an abort drops them.
      if (error.kind === 'aborted') this.#held.length = 0
      this.#wake()
    })
    stream.on('data', (piece: Uint8Array) => {
      pulse?.heard()
      if (this.#held.length === 0) this.#tripsBefore = inflating?.trips ?? 0
      this.#held.push(piece)
      this.#heldBytes += piece.length
      if (this.#heldBytes > HELD_BYTES_MAX) stream.pause()
      this.#wake()
    })
    inflating?.onTrip(() => this.#wake())
    stream.once('end', () => this.#end())
    // A stream that closes without an end was cut, even if it has emitted no error.
    stream.once('close', () => this.#end(cutOff()))
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = this.#isWhole ? this.arrived() : undefined
        if (piece !== undefined) yield piece
        else if (this.#error !== undefined) throw this.#error
        else if (this.#ended) return
        else await this.#wait()
      }
    } finally {
      this.discard()
    }
  }

  /** Tests whether all is inflated that arrived with the oldest held piece. What arrives meanwhile makes no reader wait. */
  get #isWhole(): boolean {
    const { stream, inflating } = this.#options
    if (inflating?.isBusy !== true || inflating.trips > this.#tripsBefore) return true
    return stream.isPaused() || this.#ended || this.#error !== undefined
  }

  arrived(): Uint8Array | undefined {
    const { stream } = this.#options
    const piece = this.#held.shift()
    this.#heldBytes -= piece?.length ?? 0
    if (stream.isPaused() && this.#heldBytes <= HELD_BYTES_MAX / 2) stream.resume()
    return piece
  }

  hold(): void {
    this.#options.tap?.hold()
  }

  async resume(): Promise<void> {
    const { inflating, tap, clock } = this.#options
    // A piece that came before the hold waits for those that were left in the kernel: they are for the same pass.
    this.#tripsBefore = inflating?.trips ?? 0
    tap?.resume()
    // The first turn may end before the event loop looks at its sockets.
    await clock.breathe()
    await clock.breathe()
  }

  discard(): void {
    const whole = this.#ended
    this.#ended = true
    this.#held.length = 0
    this.#options.call.finish()
    if (!whole) this.#options.cancel()
  }

  #end(otherwise?: ApiError): void {
    if (this.#ended) return
    const { call, cut } = this.#options
    const error = cut() ?? otherwise
    this.#ended = true
    if (error === undefined) call.finish()
    else call.fail(error)
    this.#wake()
  }

  async #wait(): Promise<void> {
    const { clock, call, idleMs } = this.#options
    const cancel =
      idleMs === undefined
        ? undefined
        : clock.after(idleMs, () =>
            call.fail(new ApiError('silent', `the body stopped for ${idleMs / 1000} s`)),
          )
    await new Promise<void>(resolve => {
      this.#wake = resolve
    })
    cancel?.()
  }
}

export function cutOff(cause?: unknown): ApiError {
  return new ApiError('lost', 'the connection ended before the response did', { cause })
}

/** A response whose head has arrived. */
export interface Answer {
  readonly status: number
  readonly header: (name: string) => string | undefined
  readonly body: Body
}

/** A connection to the server that takes a request. */
export interface HttpConnection {
  /** The answer comes or the call fails. */
  send(outgoing: Outgoing, call: Call): Promise<Answer>
  /** A request over it got no answer in time: finds out whether the peer is still there. */
  probe?(): void
}

interface AnswerOptions extends Omit<BodyOptions, 'cut' | 'inflating'> {
  readonly status: number
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, unknown>>
  /** Tests whether an end of the stream may be the end of the response. */
  readonly whole: () => boolean
}

/** Wraps a response. Call it as soon as the head has arrived, so that no piece of the body is missed. */
export function answerOf(options: AnswerOptions): Answer {
  const { status, headers, stream, call } = options
  const header = (name: string): string | undefined => {
    const value = headers[name]
    const first: unknown = Array.isArray(value) ? value[0] : value
    return typeof first === 'string' ? first : undefined
  }
  const cut = (): ApiError | undefined => (options.whole() ? undefined : cutOff())
  // The listener must exist now: a short response may end before the caller that waits for its head runs.
  if (redirects(status))
    call.fail(new ApiError('protocol', `the server redirects (${status}); redirects are not followed`))
  const inflating = inflatingOf(header('content-encoding'), options)
  return {
    status,
    header,
    body: new Body({ ...options, stream: inflating?.stream ?? stream, inflating, cut }),
  }
}

/** Credentials are for one server, and API servers do not redirect. */
function redirects(status: number): boolean {
  return status >= 300 && status <= 399
}

/** Content codings are case-insensitive, and `x-gzip` is `gzip` (RFC 9110, 8.4.1). */
function inflatingOf(encoding = '', options: InflatingOptions): Inflating | undefined {
  const coding = encoding.toLowerCase()
  if (coding === 'gzip' || coding === 'x-gzip') return new Inflating(options)
  if (coding !== '' && coding !== 'identity')
    options.call.fail(
      new ApiError(
        'protocol',
        `the response has the content encoding ${printable(encoding)}; supported: gzip`,
      ),
    )
  return undefined
}

type InflatingOptions = Pick<BodyOptions, 'stream' | 'clock' | 'call'>

const INFLATED_PIECE_BYTES = 32 * 1024

/**
 * Inflates a body as it arrives: kube-apiserver flushes each watch event, and begins another gzip member after each flush.
 * Pieces that arrive in one read of the socket, or while others are inflated, go to zlib's thread together: each trip costs
 * 0.1 ms, and a streamed list of 1,000 Services comes in 1,000 pieces.
 */
class Inflating {
  readonly stream: Gunzip
  /** How often zlib's thread has returned. */
  trips = 0
  readonly #gathered: Writable
  #returned: () => void = () => undefined

  constructor({ stream, clock, call }: InflatingOptions) {
    const inflate = createGunzip({ chunkSize: INFLATED_PIECE_BYTES })
    this.stream = inflate
    inflate.on('error', (error: NodeJS.ErrnoException) => {
      const invalid = new ApiError('protocol', 'the response is not valid gzip', { cause: error })
      call.fail(error.code === 'Z_BUF_ERROR' ? cutOff(error) : invalid)
    })
    stream.once('close', () => {
      if (!stream.readableEnded) call.fail(cutOff())
    })
    call.onFail(() => inflate.destroy())
    const gathered = new Writable({
      highWaterMark: INFLATED_PIECE_BYTES,
      // The events of `inflate` report a failure.
      writev: (chunks, done) =>
        inflate.write(Buffer.concat(chunks.map(({ chunk }) => chunk)), () => {
          done()
          this.trips++
          this.#returned()
        }),
      final: done => inflate.end(() => done()),
    })
    this.#gathered = gathered
    stream.on('data', () => {
      if (gathered.writableCorked > 0) return
      gathered.cork()
      void clock.breathe().then(() => gathered.uncork())
    })
    stream.pipe(gathered)
  }

  /** Tests whether something that has arrived is still compressed: a reader that begins without it gets it after its next pass. */
  get isBusy(): boolean {
    return this.#gathered.writableLength > 0
  }

  /** Calls this whenever zlib's thread returns. */
  onTrip(returned: () => void): void {
    this.#returned = returned
  }
}

/** Milliseconds that a Retry-After header requests in seconds, as API servers do; undefined for anything else. */
export function parseRetryAfter(header = ''): number | undefined {
  return /^\d+$/.test(header) ? Math.min(RETRY_AFTER_MS_MAX, Number(header) * 1000) : undefined
}

/** client-go's ReadIdleTimeout and PingTimeout. */
const PING_AFTER_MS = 30_000
const PING_ANSWER_MS = 15_000

interface PulseOptions {
  readonly clock: Clock
  /** Sends a PING and calls `answered` when its answer arrives. */
  readonly ping: (answered: () => void) => void
  /** Nothing came in time. Called once. */
  readonly dead: () => void
}

/** Notices a peer that has gone without a word: 30 s without a read, then 15 s without an answer. */
export class Pulse {
  readonly #options: PulseOptions
  #heardMs: number
  #cancelTimer: Cancel | undefined
  #pinging = false
  #stopped = false

  constructor(options: PulseOptions) {
    this.#options = options
    this.#heardMs = options.clock.nowMs()
    this.#watch(PING_AFTER_MS)
  }

  heard(): void {
    this.#heardMs = this.#options.clock.nowMs()
  }

  probe(): void {
    if (this.#stopped || this.#pinging) return
    this.#cancelTimer?.()
    this.#ask()
  }

  stop(): void {
    this.#stopped = true
    this.#cancelTimer?.()
  }

  #watch(delayMs: number): void {
    this.#cancelTimer = this.#options.clock.after(delayMs, () => {
      const leftMs = this.#heardMs + PING_AFTER_MS - this.#options.clock.nowMs()
      if (leftMs > 0) this.#watch(leftMs)
      else this.#ask()
    })
  }

  #ask(): void {
    const { clock, ping, dead } = this.#options
    this.#pinging = true
    const askedMs = clock.nowMs()
    this.#cancelTimer = clock.after(PING_ANSWER_MS, async () => {
      // A process that was stopped has the answer in its socket and has not read it.
      await clock.breathe()
      if (this.#stopped || !this.#pinging) return
      if (this.#heardMs > askedMs) return this.#calm()
      this.stop()
      dead()
    })
    ping(() => {
      if (this.#stopped || !this.#pinging) return
      this.heard()
      this.#calm()
    })
  }

  #calm(): void {
    this.#pinging = false
    this.#cancelTimer?.()
    this.#watch(PING_AFTER_MS)
  }
}

export function silence(): ApiError {
  return new ApiError('silent', `the server did not answer a PING within ${PING_ANSWER_MS / 1000} s`)
}
