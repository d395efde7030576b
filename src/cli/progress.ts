import type { Cancel, Clock } from '../base/clock.ts'
import type { Io } from './io.ts'

/** Time without a word, and between two. */
const PERIOD_MS = 2_000
/** A cluster that is smaller is done before anybody wonders. */
const QUIET_BELOW = 1_000

/** Says on standard error how far a command is that takes more than 2 s over many objects, every 2 s. */
export class Progress {
  readonly #clock: Clock
  readonly #err: Io['err']
  #timer: Cancel
  #objects = 0
  #doing = ''

  constructor(clock: Clock, { err }: Pick<Io, 'err'>) {
    this.#clock = clock
    this.#err = err
    this.#timer = this.#schedule()
  }

  /** So many more objects are read. */
  read(objects: number): void {
    this.#objects += objects
  }

  /** What the command does after reading. */
  begin(doing: string): void {
    this.#doing = doing
  }

  end(): void {
    this.#timer()
  }

  #schedule(): Cancel {
    return this.#clock.after(PERIOD_MS, () => {
      if (this.#objects >= QUIET_BELOW) this.#err(`${this.#text}\n`)
      this.#timer = this.#schedule()
    })
  }

  get #text(): string {
    const objects = `${this.#objects.toLocaleString('en-US')} objects`
    return this.#doing === '' ? `reading the source: ${objects} so far` : `${this.#doing} (${objects})`
  }
}
