import { namespaceOf } from '../../../model/memory-shares.ts'

/** A limited resource. */
type Resource = 'connections' | 'sessions'

/** The share of the reported number below which usage must fall before exhaustion is reported again. */
const EMPTY_AGAIN = 0.9

/** A user of a resource. */
export interface Holder {
  /** The name of the Service port; the part before the first slash is the namespace. */
  readonly name: string
  held: number
}

export interface Exhaustion {
  readonly resource: Resource
  readonly limit: number
  /** The Service port, or `namespace shop`, that exceeds its share; undefined for the whole resource. */
  readonly holder: string | undefined
}

/**
 * Counts sockets against a limit, so that clients cannot exhaust the process. A Service port, and a namespace
 * as a whole, may hold at most as many sockets as are free: one holder gets at most half of all, two get a
 * third each, and there is always room for another one.
 */
export class Usage {
  readonly #resource: Resource
  readonly #limit: number
  readonly #exhausted: (exhaustion: Exhaustion) => void
  /** The number that each holder had at the last report; undefined is the whole. */
  readonly #reported = new Map<string | undefined, number>()
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

  /** The number of refusals. */
  get refused(): number {
    return this.#refused
  }

  /** Takes one. Gives false and takes nothing when the share or the resource is used up. */
  take(holder: Holder): boolean {
    const free = this.#limit - this.#held
    const namespace = namespaceOf(holder.name)
    const together = this.#namespaces.get(namespace) ?? 0
    if (together >= free) {
      this.#refused++
      if (free === 0) this.#report(undefined, this.#limit)
      else if (holder.held >= free) this.#report(holder.name, holder.held)
      else this.#report(textOf(namespace), together)
      return false
    }
    this.#held++
    holder.held++
    this.#namespaces.set(namespace, together + 1)
    return true
  }

  give(holder: Holder): void {
    const namespace = namespaceOf(holder.name)
    const together = (this.#namespaces.get(namespace) ?? 1) - 1
    this.#held--
    holder.held--
    if (together > 0) this.#namespaces.set(namespace, together)
    else this.#namespaces.delete(namespace)
    if (this.#reported.size === 0) return
    this.#forget(undefined, this.#held)
    this.#forget(holder.name, holder.held)
    this.#forget(textOf(namespace), together)
  }

  #forget(holder: string | undefined, held: number): void {
    if (held < (this.#reported.get(holder) ?? 0) * EMPTY_AGAIN) this.#reported.delete(holder)
  }

  #report(holder: string | undefined, limit: number): void {
    if (this.#reported.has(holder)) return
    this.#reported.set(holder, limit)
    this.#exhausted({ resource: this.#resource, limit, holder })
  }
}

function textOf(namespace: string): string {
  return `namespace ${namespace}`
}
