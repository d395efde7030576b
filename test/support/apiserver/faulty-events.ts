import { gzipSync } from 'node:zlib'
import type { WatchEvent } from '../../../src/source/kube/wire/tables.ts'
import type { Fault } from './faults.ts'
import type { FaultyBody } from './faulty-body.ts'
import type { EventSink } from './watch.ts'

/** The real server's. */
export const GZIP_LEVEL = 1

interface FaultyEventsOptions {
  readonly body: FaultyBody
  readonly faults: readonly Fault[]
  readonly encode: (event: WatchEvent) => Uint8Array
  /** Each flush is a gzip member of its own. */
  readonly compresses: boolean
}

/** Events that follow each other at once share a member, as in the real server while more of them wait. */
const MEMBER_BYTES = 64 * 1024

/** Events on their way to the bytes: lost, doubled, turned round or joined by others where the faults say so. */
export class FaultyEvents implements EventSink {
  readonly #options: FaultyEventsOptions
  readonly #group: number
  /** Events that wait for their group to be whole. */
  #held: WatchEvent[] = []
  /** Events the store had, sent or not. */
  #index = 0
  #sent = 0
  /** Bytes of the next gzip member. */
  #unflushed: Uint8Array[] = []
  #unflushedBytes = 0
  #hasBegun = false

  constructor(options: FaultyEventsOptions) {
    this.#options = options
    this.#group = options.faults.find(fault => fault.kind === 'reverse')?.group ?? 1
  }

  event(event: WatchEvent): void {
    const index = this.#index++
    const { faults } = this.#options
    const has = (kind: 'lose' | 'duplicate') =>
      faults.some(fault => fault.kind === kind && fault.which(event, index))
    if (has('lose')) return
    this.#held.push(event)
    if (has('duplicate')) this.#held.push(event)
    if (this.#held.length < this.#group) return
    this.#flush()
  }

  end(): void {
    this.#flush()
    this.#options.body.end()
  }

  /** The initial events were given: what comes from now on is sent at once. */
  begun(): void {
    this.#hasBegun = true
    this.#flushBytes()
  }

  /** Whatever is to stand before the first event. True when nothing more may be said. */
  begin(): boolean {
    this.#inserted(0)
    return this.#options.body.isOver({ events: 0 })
  }

  #flush(): void {
    const events = this.#group > 1 ? this.#held.reverse() : this.#held
    this.#held = []
    for (const event of events) this.#send(event)
  }

  #send(event: WatchEvent): void {
    const { body, encode } = this.#options
    if (body.ended) return
    this.#write(encode(event))
    this.#sent++
    this.#inserted(this.#sent)
    body.isOver({ events: this.#sent })
  }

  #inserted(after: number): void {
    const { encode, faults } = this.#options
    for (const fault of faults)
      if (fault.kind === 'event' && fault.after === after) this.#write(encode(fault.event))
  }

  #write(bytes: Uint8Array): void {
    const { body, faults, compresses } = this.#options
    if (!compresses) {
      body.write(bytes)
      return
    }
    this.#unflushed.push(bytes)
    this.#unflushedBytes += bytes.length
    // Faults count events that were sent.
    if (this.#hasBegun || faults.length > 0 || this.#unflushedBytes > MEMBER_BYTES) this.#flushBytes()
  }

  #flushBytes(): void {
    if (this.#unflushed.length === 0) return
    this.#options.body.write(gzipSync(Buffer.concat(this.#unflushed), { level: GZIP_LEVEL }))
    this.#unflushed = []
    this.#unflushedBytes = 0
  }
}
