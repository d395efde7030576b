import type { Cancel, Clock } from '../../../src/base/clock.ts'
import type { Ending, Fault, Moment } from './faults.ts'

/** How a transport puts a response on its wire. Nothing is called after the end of one. */
export interface ResponsePort {
  head(code: number, headers: Readonly<Record<string, string>>): void
  write(bytes: Uint8Array): void
  end(): void
  reset(): void
  stall(): void
  rstStream(): void
  /** Streams go on when the code is 0. */
  goAway(code: number): void
}

interface FaultyBodyOptions {
  readonly port: ResponsePort
  readonly faults: readonly Fault[]
  readonly clock: Clock
  /** Called when the response is over before its time. */
  readonly closed: () => void
}

interface Cut {
  readonly at: number
  readonly run: () => void
}

const TICK_MS = 100

/** A response on its way to the wire: cut, mixed with rubbish or slowed down where the faults say so. */
export class FaultyBody {
  readonly #options: FaultyBodyOptions
  readonly #cuts: Cut[]
  readonly #perSecond: number | undefined
  /** What a slow response still has to say; bounded by the response. */
  readonly #queue: Uint8Array[] = []
  #written = 0
  #ended = false
  #endsAfterQueue = false
  #cancelTick: Cancel | undefined

  constructor(options: FaultyBodyOptions) {
    this.#options = options
    this.#cuts = options.faults.flatMap(fault => this.#cutOf(fault)).sort((a, b) => a.at - b.at)
    this.#perSecond = options.faults.find(fault => fault.kind === 'slow')?.bytesPerSecond
  }

  get ended(): boolean {
    return this.#ended
  }

  head(code: number, headers: Readonly<Record<string, string>>): void {
    if (this.#ended) return
    this.#options.port.head(code, headers)
    this.#cutUpTo(0)
  }

  write(bytes: Uint8Array): void {
    if (this.#ended || bytes.length === 0) return
    if (this.#perSecond === undefined) this.#put(bytes)
    else {
      this.#queue.push(bytes)
      this.#cancelTick ??= this.#tickLater(this.#perSecond)
    }
  }

  end(): void {
    if (this.#ended) return
    if (this.#queue.length > 0) this.#endsAfterQueue = true
    else this.#finish(port => port.end())
  }

  /** Runs what is due at this moment; true when nothing more may be said. */
  isOver(moment: Moment): boolean {
    for (const fault of this.#options.faults) {
      if (this.#ended) break
      if (!('at' in fault) || !isSame(fault.at, moment)) continue
      if (fault.kind === 'ending') this.#give(fault.ending)
      else if (fault.kind === 'goaway') this.#goAway(fault.code ?? 0)
      else this.#put(fault.bytes())
    }
    return this.#ended
  }

  /** Whoever listened has gone. */
  cancel(): void {
    this.#ended = true
    this.#cancelTick?.()
  }

  #cutOf(fault: Fault): readonly Cut[] {
    if (!('at' in fault) || fault.at === 'before' || !('bytes' in fault.at)) return []
    const { bytes } = fault.at
    if (fault.kind === 'ending') return [{ at: bytes, run: () => this.#give(fault.ending) }]
    if (fault.kind === 'goaway') return [{ at: bytes, run: () => this.#goAway(fault.code ?? 0) }]
    return [{ at: bytes, run: () => this.#options.port.write(fault.bytes()) }]
  }

  #put(bytes: Uint8Array): void {
    let rest = bytes
    for (let cut = this.#cuts[0]; cut !== undefined; cut = this.#cuts[0]) {
      const room = cut.at - this.#written
      if (room > rest.length) break
      this.#send(rest.subarray(0, room))
      rest = rest.subarray(room)
      this.#cutUpTo(cut.at)
      if (this.#ended) return
    }
    this.#send(rest)
  }

  #send(bytes: Uint8Array): void {
    if (bytes.length === 0) return
    this.#written += bytes.length
    this.#options.port.write(bytes)
  }

  #cutUpTo(at: number): void {
    while (!this.#ended && (this.#cuts[0]?.at ?? Number.POSITIVE_INFINITY) <= at) this.#cuts.shift()?.run()
  }

  #give(ending: Ending): void {
    this.#finish(port => {
      if (ending === 'end') port.end()
      else if (ending === 'reset') port.reset()
      else if (ending === 'stall') port.stall()
      else port.rstStream()
    })
  }

  #goAway(code: number): void {
    if (code === 0) this.#options.port.goAway(0)
    else this.#finish(port => port.goAway(code))
  }

  #finish(how: (port: ResponsePort) => void): void {
    this.#ended = true
    this.#cancelTick?.()
    how(this.#options.port)
    this.#options.closed()
  }

  #tickLater(perSecond: number): Cancel {
    const slice = Math.max(1, Math.floor((perSecond * TICK_MS) / 1_000))
    return this.#options.clock.after((slice / perSecond) * 1_000, () => {
      this.#cancelTick = undefined
      const [first] = this.#queue
      if (first === undefined) return
      this.#put(first.subarray(0, slice))
      if (first.length > slice) this.#queue[0] = first.subarray(slice)
      else this.#queue.shift()
      if (this.#ended) return
      if (this.#queue.length > 0) this.#cancelTick = this.#tickLater(perSecond)
      else if (this.#endsAfterQueue) this.#finish(port => port.end())
    })
  }
}

function isSame(a: Moment, b: Moment): boolean {
  if (a === 'before' || b === 'before') return a === b
  if ('events' in a && 'events' in b) return a.events === b.events
  return 'bytes' in a && 'bytes' in b && a.bytes === b.bytes
}
