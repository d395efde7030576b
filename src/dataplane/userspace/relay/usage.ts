/** What there is a limit to. */
export type Resource = 'connections' | 'sessions'

/** A resource that is full is told of again only after it was this much emptied. */
const EMPTY_AGAIN = 0.9
/** One Service port has at most this share of a resource, so that a flood of one leaves room for others. */
const SHARE = 0.5

/** Who uses a resource. */
export interface Holder {
  readonly name: string
  held: number
}

export interface Exhaustion {
  readonly resource: Resource
  readonly limit: number
  /** The Service port that has its share; undefined when the whole is used up. */
  readonly holder: string | undefined
}

/** Counts sockets in use against a limit, so that nobody outside can make this process run out of them. */
export class Usage {
  readonly #resource: Resource
  readonly #limit: number
  readonly #exhausted: (exhaustion: Exhaustion) => void
  readonly #told = new Set<Holder | undefined>()
  #held = 0
  #refused = 0

  constructor(resource: Resource, limit: number, exhausted: (exhaustion: Exhaustion) => void) {
    this.#resource = resource
    this.#limit = limit
    this.#exhausted = exhausted
  }

  get held(): number {
    return this.#held
  }

  /** How often there was none left. */
  get refused(): number {
    return this.#refused
  }

  /** False, and nothing taken, when there is none left. */
  take(holder: Holder): boolean {
    const isFull = this.#held >= this.#limit
    if (isFull || holder.held >= this.#share) {
      this.#refused++
      this.#tell(isFull ? undefined : holder)
      return false
    }
    this.#held++
    holder.held++
    return true
  }

  give(holder: Holder): void {
    this.#held--
    holder.held--
    if (this.#told.size === 0) return
    if (this.#held < this.#limit * EMPTY_AGAIN) this.#told.delete(undefined)
    if (holder.held < this.#share * EMPTY_AGAIN) this.#told.delete(holder)
  }

  get #share(): number {
    return Math.ceil(this.#limit * SHARE)
  }

  #tell(holder: Holder | undefined): void {
    if (this.#told.has(holder)) return
    this.#told.add(holder)
    const limit = holder === undefined ? this.#limit : this.#share
    this.#exhausted({ resource: this.#resource, limit, holder: holder?.name })
  }
}
