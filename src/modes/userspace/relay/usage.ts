/** What there is a limit to. */
type Resource = 'connections' | 'sessions'

/** A resource that is full is told of again only after it was this much emptied. */
const EMPTY_AGAIN = 0.9

/** Who uses a resource. */
export interface Holder {
  /** Of a Service port; its namespace stands before the first slash. */
  readonly name: string
  held: number
}

export interface Exhaustion {
  readonly resource: Resource
  readonly limit: number
  /** The Service port, or `namespace shop`, that has its share; undefined when the whole is used up. */
  readonly holder: string | undefined
}

/**
 * Counts sockets in use against a limit, so that nobody outside can make this process run out of them. A Service port, and all of
 * a namespace together, may hold as many as are left free: one has half of all at most, two have a third each, and there
 * is room for another one however many there are.
 */
export class Usage {
  readonly #resource: Resource
  readonly #limit: number
  readonly #exhausted: (exhaustion: Exhaustion) => void
  /** What each held when it was told of; undefined is the whole. */
  readonly #told = new Map<string | undefined, number>()
  readonly #namespaces = new Map<string, number>()
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
    const free = this.#limit - this.#held
    const namespace = namespaceOf(holder)
    const together = this.#namespaces.get(namespace) ?? 0
    if (together >= free) {
      this.#refused++
      if (free === 0) this.#tell(undefined, this.#limit)
      else if (holder.held >= free) this.#tell(holder.name, holder.held)
      else this.#tell(textOf(namespace), together)
      return false
    }
    this.#held++
    holder.held++
    this.#namespaces.set(namespace, together + 1)
    return true
  }

  give(holder: Holder): void {
    const namespace = namespaceOf(holder)
    const together = (this.#namespaces.get(namespace) ?? 1) - 1
    this.#held--
    holder.held--
    if (together > 0) this.#namespaces.set(namespace, together)
    else this.#namespaces.delete(namespace)
    if (this.#told.size === 0) return
    this.#forget(undefined, this.#held)
    this.#forget(holder.name, holder.held)
    this.#forget(textOf(namespace), together)
  }

  #forget(who: string | undefined, held: number): void {
    if (held < (this.#told.get(who) ?? 0) * EMPTY_AGAIN) this.#told.delete(who)
  }

  #tell(holder: string | undefined, limit: number): void {
    if (this.#told.has(holder)) return
    this.#told.set(holder, limit)
    this.#exhausted({ resource: this.#resource, limit, holder })
  }
}

function namespaceOf({ name }: Holder): string {
  return name.slice(0, name.indexOf('/'))
}

function textOf(namespace: string): string {
  return `namespace ${namespace}`
}
