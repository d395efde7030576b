import { type Readable, Writable } from 'node:stream'
import { createGunzip, type Gunzip } from 'node:zlib'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'

interface InflatingOptions {
  /** The compressed bytes: kube-apiserver flushes each watch event, and begins another gzip member after each flush. */
  readonly stream: Readable
  readonly clock: Clock
  readonly fail: (error: ApiError) => void
  readonly cutOff: (cause?: unknown) => ApiError
}

const PIECE_BYTES = 32 * 1024

/**
 * Inflates a body as it arrives. Pieces that arrive in one read of the socket, or while others are inflated, go to zlib's
 * thread together: each trip costs 0.1 ms, and a streamed list of 1,000 Services comes in 1,000 pieces.
 */
export class Inflating {
  readonly stream: Gunzip
  readonly #gathered: Writable
  #idle: () => void = () => undefined

  constructor({ stream, clock, fail, cutOff }: InflatingOptions) {
    const inflate = createGunzip({ chunkSize: PIECE_BYTES })
    this.stream = inflate
    inflate.on('error', (error: NodeJS.ErrnoException) => {
      const invalid = new ApiError('protocol', 'the response is not valid gzip', { cause: error })
      fail(error.code === 'Z_BUF_ERROR' ? cutOff(error) : invalid)
    })
    stream.once('close', () => {
      if (!stream.readableEnded) fail(cutOff())
    })
    const gathered = new Writable({
      highWaterMark: PIECE_BYTES,
      // The events of `inflate` report a failure.
      writev: (chunks, done) =>
        inflate.write(Buffer.concat(chunks.map(({ chunk }) => chunk)), () => {
          done()
          this.#idle()
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

  /** Tests whether more of what has arrived follows. A reader that began without it would take it a rest later. */
  get isBusy(): boolean {
    return this.#gathered.writableLength > 0
  }

  /** Calls this whenever zlib's thread returns. */
  onIdle(idle: () => void): void {
    this.#idle = idle
  }
}
