import { WireError } from '../../../wire/wire-error.ts'
import { isBlank, NEWLINE, objectIn } from './json-frame.ts'
import { withType } from './kinds.ts'
import { isMessage } from './message.ts'
import type { ReaderOptions, WatchEvent, WatchReader } from './reader.ts'
import { Rest } from './rest.ts'

/** One object a line: a raw newline stands within no string of JSON. */
export class JsonWatchReader implements WatchReader {
  readonly #options: ReaderOptions
  readonly #rest = new Rest()
  /** How much of the rest has no newline. */
  #searched = 0

  constructor(options: ReaderOptions) {
    this.#options = options
  }

  push(piece: Uint8Array): readonly WatchEvent[] {
    const bytes = this.#rest.with(piece)
    const events: WatchEvent[] = []
    let at = 0
    let newline = bytes.indexOf(NEWLINE, this.#searched)
    for (; newline >= 0; newline = bytes.indexOf(NEWLINE, at)) {
      const line = bytes.subarray(at, newline)
      if (!line.every(isBlank)) events.push(this.#read(line))
      at = newline + 1
    }
    this.#bound(bytes.length - at)
    this.#searched = bytes.length - at
    this.#rest.leave(bytes, at)
    return events
  }

  end(): void {
    if (this.#rest.length > 0) throw new WireError('the watch ended within an event')
  }

  #read(line: Buffer): WatchEvent {
    this.#bound(line.length)
    const { type, object } = objectIn(line)
    if (typeof type !== 'string' || !isMessage(object))
      throw new WireError('an event without a type or an object')
    return { type, object: type === 'ERROR' ? object : withType(object, this.#options.kind) }
  }

  #bound(length: number): void {
    const { objectBytesMax } = this.#options
    if (length > objectBytesMax)
      throw new WireError(`an event of ${length} bytes; ${objectBytesMax} are accepted`)
  }
}
