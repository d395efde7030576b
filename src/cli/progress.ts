import type { Cancel, Clock } from '../base/clock.ts'
import type { Io } from './io.ts'

/** Time before the first report, and between two. */
const PERIOD_MS = 2_000
/** A cluster of fewer objects needs no report. */
const QUIET_BELOW = 1_000

/** Reports the progress of a command on standard error every 2 s, from 2 s on, if it reads many objects. */
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

  /** Adds to the number of objects that were read. */
  read(objects: number): void {
    this.#objects += objects
  }

  /** Begins the step after reading. */
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
