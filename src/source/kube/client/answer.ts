import { type Readable, Transform, type TransformCallback } from 'node:stream'
import { createGunzip, constants as zlib } from 'node:zlib'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import { Body, cutOff } from './body.ts'
import type { Call } from './call.ts'

/** A response whose head has arrived. */
export interface Answer {
  readonly status: number
  readonly header: (name: string) => string | undefined
  readonly body: Body
}

interface AnswerOptions {
  readonly status: number
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, unknown>>
  readonly stream: Readable
  readonly call: Call
  readonly clock: Clock
  readonly idleMs: number | undefined
  /** Whether an end of the stream may be the end of the response. */
  readonly whole: () => boolean
  readonly cancel: () => void
  readonly heard: () => void
}

/** Repetitive lists shrink by less than 100; a bomb by 1,000. */
const GUNZIP_RATIO_MAX = 200
const GUNZIP_FREE_BYTES = 16 * 1024 * 1024

/** Wraps a response. Call it as soon as the head has arrived, so that no piece of the body is missed. */
export function answerOf(options: AnswerOptions): Answer {
  const { status, headers, stream, call } = options
  const header = (name: string): string | undefined => {
    const value = headers[name]
    const first: unknown = Array.isArray(value) ? value[0] : value
    return typeof first === 'string' ? first : undefined
  }
  const meter = lengthMeter(stream, header('content-length'))
  const cut = (): ApiError | undefined => (options.whole() && meter() ? undefined : cutOff())
  // Here and not later: a short response may end before the caller that waits for its head runs.
  if (redirects(status))
    call.fail(new ApiError('protocol', `the server redirects (${status}); redirects are not followed`))
  const decoded = decode(stream, header('content-encoding'), call)
  return { status, header, body: new Body({ ...options, stream: decoded, cut }) }
}

/** Credentials are for one server, and API servers do not redirect. */
function redirects(status: number): boolean {
  return status >= 300 && status <= 399 && status !== 304
}

/** Whether as many bytes came as were announced. */
function lengthMeter(stream: Readable, announced: string | undefined): () => boolean {
  if (announced === undefined || !/^\d+$/.test(announced)) return () => true
  let left = Number(announced)
  stream.on('data', (piece: Uint8Array) => {
    left -= piece.length
  })
  return () => left === 0
}

/** We ask for no compression; a proxy may apply it all the same. */
function decode(stream: Readable, encoding: string | undefined, call: Call): Readable {
  if (encoding === undefined || encoding === '' || encoding === 'identity') return stream
  if (encoding !== 'gzip') {
    call.fail(
      new ApiError('protocol', 'the response has a content encoding that the request does not accept'),
    )
    return stream
  }
  return gunzip(stream, call)
}

function gunzip(stream: Readable, call: Call): Readable {
  const inflate = createGunzip({ finishFlush: zlib.Z_FINISH })
  let inflated = 0
  const guard = new Transform({
    transform(piece: Uint8Array, _encoding: BufferEncoding, done: TransformCallback): void {
      inflated += piece.length
      if (inflated <= GUNZIP_FREE_BYTES + GUNZIP_RATIO_MAX * inflate.bytesWritten) done(null, piece)
      else done(new ApiError('protocol', `the response inflates more than ${GUNZIP_RATIO_MAX} times`))
    },
  })
  const failed = (error: Error): void => {
    if (error instanceof ApiError) call.fail(error)
    else if ('code' in error && error.code === 'Z_BUF_ERROR') call.fail(cutOff(error))
    else call.fail(new ApiError('protocol', 'the response is not valid gzip', { cause: error }))
    inflate.destroy()
  }
  inflate.on('error', failed)
  guard.on('error', failed)
  call.onFail(() => inflate.destroy())
  stream.pipe(inflate).pipe(guard)
  return guard
}
