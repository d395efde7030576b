import { constants, fstatSync, openSync, writeSync } from 'node:fs'

interface LineWriterOptions {
  readonly fd: number
  /** A line that says that so many before it were lost. */
  readonly lostLine: (lines: number) => string
}

const NOTHING: Readonly<Uint8Array> = new Uint8Array(0)

/**
 * Writes lines to a descriptor at once, so that none is missing after a crash, and never waits for a reader: what a full
 * pipe does not take is lost, as is what a full disk does not, and reported when there is room again. Holds at most the
 * rest of one line.
 */
export class LineWriter {
  readonly #options: LineWriterOptions
  readonly #fd: number
  #rest: Uint8Array = NOTHING
  #lost = 0

  constructor(options: LineWriterOptions) {
    this.#options = options
    this.#fd = withoutWaiting(options.fd)
  }

  write(line: string): void {
    if (this.#rest.length > 0) this.#put(this.#rest)
    if (this.#rest.length === 0 && this.#lost > 0 && this.#begin(this.#options.lostLine(this.#lost)))
      this.#lost = 0
    if (this.#rest.length > 0 || this.#lost > 0 || !this.#begin(line)) this.#lost++
  }

  /** False when nothing of it was taken. */
  #begin(line: string): boolean {
    const bytes = Buffer.from(line)
    this.#put(bytes)
    if (this.#rest.length < bytes.length) return true
    this.#rest = NOTHING
    return false
  }

  #put(bytes: Uint8Array): void {
    try {
      this.#rest = bytes.subarray(writeSync(this.#fd, bytes))
    } catch {
      // Full, or closed: no reader is left, and Services need the daemon.
      this.#rest = bytes
    }
  }
}

/** A pipe opened once more: not to wait is a property of what is open, which other processes may share. */
function withoutWaiting(fd: number): number {
  try {
    if (!fstatSync(fd).isFIFO()) return fd
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK)
  } catch {
    // Without /proc, or with a pipe of another user, it is written to as it is.
    return fd
  }
}
