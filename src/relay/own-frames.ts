import type { Clock } from '../base/clock.ts'

/** A reader that is sent responses of its own. */
interface OwnReader {
  /** Its call and its connection end. */
  dropped(): void
}

interface Held {
  bytes: number
  readonly sinceMs: number
}

/** Bytes of all of them: 256 responses that are as large as a response gets before its next object. */
const BYTES_MAX = 64 * 1024 * 1024

/**
 * Bounds what is written for one reader alone and may still be in this process. Beyond, the reader that holds most for longest
 * is dropped: one that reads holds a response for milliseconds.
 */
export class OwnFrames {
  readonly #clock: Clock
  readonly #bytesMax: number
  readonly #held = new Map<OwnReader, Held>()
  #bytes = 0

  constructor(clock: Clock, bytesMax = BYTES_MAX) {
    this.#clock = clock
    this.#bytesMax = bytesMax
  }

  get bytes(): number {
    return this.#bytes
  }

  hold(reader: OwnReader, bytes: number): void {
    const held = this.#held.get(reader) ?? { bytes: 0, sinceMs: this.#clock.nowMs() }
    held.bytes += bytes
    this.#held.set(reader, held)
    this.#bytes += bytes
    while (this.#bytes > this.#bytesMax) this.#dropWorst(reader)
  }

  /** It has read everything, or is gone. */
  release(reader: OwnReader): void {
    this.#bytes -= this.#held.get(reader)?.bytes ?? 0
    this.#held.delete(reader)
  }

  #dropWorst(worst: OwnReader): void {
    const nowMs = this.#clock.nowMs()
    let most = -1
    for (const [reader, { bytes, sinceMs }] of this.#held) {
      const weight = bytes * (nowMs - sinceMs)
      if (weight > most) [worst, most] = [reader, weight]
    }
    this.release(worst)
    worst.dropped()
  }
}
