import type { Io } from '../../cli/io.ts'

export interface PrintCounts {
  taken: number
  printed: number
  /** Packets for which there was no room, because standard output is slow. */
  dropped: number
}

/** Formats packets one after the other, and prints them in their order, up to a number. */
export class PacketPrinter<Packet> {
  readonly #max: number
  readonly #io: Io
  readonly #format: (packet: Packet) => Promise<string | undefined>
  readonly #waiting: Packet[] = []
  readonly #done = new AbortController()
  readonly #counts: PrintCounts = { taken: 0, printed: 0, dropped: 0 }
  #work: Promise<void> | undefined
  #failure: { readonly error: unknown } | undefined

  /** `format` gives undefined for a packet that is not printed. */
  constructor(max: number, io: Io, format: (packet: Packet) => Promise<string | undefined>) {
    this.#max = max
    this.#io = io
    this.#format = format
  }

  get counts(): Readonly<PrintCounts> {
    return this.#counts
  }

  /** Aborted when the number is reached, or formatting has failed. */
  get done(): AbortSignal {
    return this.#done.signal
  }

  take(packet: Packet): void {
    this.#counts.taken++
    // The packets that wait to be named and printed, at most; later ones are counted.
    if (this.#waiting.length >= 2_000) {
      this.#counts.dropped++
      return
    }
    this.#waiting.push(packet)
    this.#work ??= this.#print()
  }

  /** Resolves when all packets are printed. Throws what `format` throws. */
  async written(): Promise<void> {
    await this.#work
    if (this.#failure !== undefined) throw this.#failure.error
  }

  async #print(): Promise<void> {
    try {
      for (let packet = this.#waiting.shift(); packet !== undefined; packet = this.#waiting.shift()) {
        if (this.#done.signal.aborted) continue
        const text = await this.#format(packet)
        if (text === undefined) continue
        this.#io.out(text)
        if (++this.#counts.printed >= this.#max) this.#done.abort()
        await this.#io.outWritten()
      }
    } catch (error) {
      this.#failure = { error }
      this.#done.abort()
    } finally {
      this.#work = undefined
    }
  }
}
