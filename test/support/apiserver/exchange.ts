import { gzipSync } from 'node:zlib'
import type { Cancel, Clock } from '../../../src/base/clock.ts'
import { type Fault, type FaultScript, seenOf } from './faults.ts'
import { FaultyBody, type ResponsePort } from './faulty-body.ts'
import { FaultyEvents, GZIP_LEVEL } from './faulty-events.ts'
import type { Reply, Semantics, ServerRequest, Twist } from './semantics.ts'
import { failure } from './status.ts'

export interface Backend {
  readonly semantics: Semantics
  readonly faults: FaultScript
}

/** Answers one request as the semantics say and the faults allow, over any transport. The result ends it. */
export function serve({ semantics, faults }: Backend, request: ServerRequest, port: ResponsePort): Cancel {
  const { clock } = semantics
  const chosen = faults.faultsFor(seenOf(request))
  const exchange = new Exchange({ semantics, faults: chosen, request, port })
  const delayMs = sum(chosen.map(fault => (fault.kind === 'delay' ? fault.ms : 0)))
  if (delayMs === 0) exchange.run()
  else exchange.later(clock, delayMs)
  return () => exchange.cancel()
}

interface ExchangeOptions {
  readonly semantics: Semantics
  readonly faults: readonly Fault[]
  readonly request: ServerRequest
  readonly port: ResponsePort
}

class Exchange {
  readonly #options: ExchangeOptions
  readonly #cancels: Cancel[] = []

  constructor(options: ExchangeOptions) {
    this.#options = options
  }

  later(clock: Clock, delayMs: number): void {
    this.#cancels.push(clock.after(delayMs, () => this.run()))
  }

  run(): void {
    const { semantics, faults, request, port } = this.#options
    const body = new FaultyBody({
      port,
      faults,
      clock: semantics.clock,
      closed: () => this.cancel(),
    })
    this.#cancels.push(() => body.cancel())
    if (body.isOver('before')) return
    const reply = scriptedReply(this.#options) ?? semantics.handle(request, twistOf(faults))
    if (reply.kind === 'whole') sendWhole(compressed(reply, request), body)
    else this.#stream(reply, body)
  }

  cancel(): void {
    for (const cancel of this.#cancels.splice(0)) cancel()
  }

  #stream(reply: Extract<Reply, { kind: 'watch' }>, body: FaultyBody): void {
    const { faults, request } = this.#options
    const compresses = reply.compressible && wantsGzip(request)
    body.head(200, compresses ? { ...reply.headers, ...COMPRESSED } : reply.headers)
    const events = new FaultyEvents({ body, faults, encode: reply.encode, compresses })
    if (events.begin()) return
    const stop = reply.start(events)
    events.begun()
    if (body.ended) stop()
    else this.#cancels.push(stop)
  }
}

type Whole = Extract<Reply, { kind: 'whole' }>

/** The real server's threshold: smaller answers are not worth the work. */
const GZIP_MIN_BYTES = 128 * 1024

const COMPRESSED = { 'content-encoding': 'gzip', vary: 'Accept-Encoding' } as const

function wantsGzip({ headers }: ServerRequest): boolean {
  return /\bgzip\b/.test(headers['accept-encoding'] ?? '')
}

function compressed(reply: Whole, request: ServerRequest): Whole {
  if (!wantsGzip(request) || reply.body.length < GZIP_MIN_BYTES || 'content-encoding' in reply.headers)
    return reply
  const body = gzipSync(reply.body, { level: GZIP_LEVEL })
  return { ...reply, headers: { ...reply.headers, ...COMPRESSED }, body }
}

function sendWhole({ code, headers, body }: Whole, to: FaultyBody): void {
  to.head(code, headers)
  to.write(body)
  to.end()
}

function scriptedReply({ semantics, faults, request }: ExchangeOptions): Reply | undefined {
  for (const fault of faults) {
    if (fault.kind === 'answer')
      return { kind: 'whole', code: 200, headers: fault.headers, body: fault.body() }
    if (fault.kind !== 'status') continue
    const { code, reason = REASONS[code] ?? 'Unknown', retryAfter, html = false } = fault
    const retry = retryAfter === undefined ? {} : { retryAfter }
    if (!html)
      return semantics.failed(
        failure({ code, reason, message: `${reason} (scripted)`, ...retry }),
        request.headers.accept ?? '',
      )
    const headers = {
      'content-type': 'text/html',
      ...(retryAfter === undefined ? {} : { 'retry-after': retryAfter }),
    }
    return { kind: 'whole', code, headers, body: Buffer.from(`<html><h1>${code} ${reason}</h1></html>`) }
  }
  return undefined
}

const REASONS: Readonly<Record<number, string>> = {
  400: 'BadRequest',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'NotFound',
  410: 'Expired',
  422: 'Invalid',
  429: 'TooManyRequests',
  500: 'InternalError',
  503: 'ServiceUnavailable',
  504: 'Timeout',
}

function twistOf(faults: readonly Fault[]): Twist {
  return Object.assign({}, ...faults.filter(fault => fault.kind === 'twist'))
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
