import { PersistentMap } from '../base/collections.ts'
import type { Refusal } from '../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'

interface RefusalNews<Fresh> {
  /** New refusals; at most NEWS_MAX, so that one bad rollout does not flood the log. */
  readonly fresh: readonly Fresh[]
  readonly unnamed: number
  readonly total: number
}

interface ServiceRefusals {
  readonly service: ServiceKey
  readonly refusals: readonly Refusal[]
}

const NEWS_MAX = 100

/** The time at which a refusal was first found, in milliseconds since 1970. */
export interface RefusedSince {
  readonly wallMs: number
  /** It was there when the daemon started. */
  readonly orEarlier: boolean
}

/** Follows the refusals of the Services. The cost of a check follows the changes. */
export class RefusalLog {
  #services: PersistentMap<ServiceFrontends> = PersistentMap.empty()
  #total = 0
  #isFirst = true
  readonly #since = new Map<ServiceKey, ReadonlyMap<string, RefusedSince>>()
  #times = 0
  readonly #wallMs: (() => number) | undefined

  /** With a wall clock, it remembers the time of 10,000 refusals: a cluster of bad objects must not fill the memory. */
  constructor(wallMs?: () => number) {
    this.#wallMs = wallMs
  }

  /** Lists the current refusals whose time is known. */
  *since(): Generator<Omit<Refusal, 'service'> & RefusedSince> {
    for (const [service, times] of this.#since)
      for (const refusal of this.#services.get(service)?.refusals ?? []) {
        const { object, field, value, reason } = refusal
        const since = times.get(refusalIdentity(refusal))
        if (since !== undefined) yield { object, field, value, reason, ...since }
      }
  }

  update(table: FrontendTable): RefusalNews<ServiceRefusals> {
    const fresh: ServiceRefusals[] = []
    let named = 0
    let unnamed = 0
    for (const service of PersistentMap.changes(this.#services, table.services)) {
      const before = this.#services.get(service)?.refusals ?? []
      const after = table.services.get(service)?.refusals ?? []
      this.#total += after.length - before.length
      const known = new Set(before.map(refusalIdentity))
      this.#remember(service, after, known)
      if (after.length === 0) continue
      const news = after.filter(refusal => !known.has(refusalIdentity(refusal)))
      const refusals = news.slice(0, NEWS_MAX - named)
      named += refusals.length
      unnamed += news.length - refusals.length
      if (refusals.length > 0) fresh.push({ service, refusals })
    }
    this.#services = table.services
    this.#isFirst = false
    return { fresh, unnamed, total: this.#total }
  }

  /** A known refusal whose time was not kept gets none: it is older than now. */
  #remember(service: ServiceKey, refusals: readonly Refusal[], known: ReadonlySet<string>): void {
    if (this.#wallMs === undefined) return
    const before = this.#since.get(service)
    if (before === undefined && refusals.length === 0) return
    this.#times -= before?.size ?? 0
    const now: RefusedSince = { wallMs: this.#wallMs(), orEarlier: this.#isFirst }
    const times = new Map<string, RefusedSince>()
    for (const refusal of refusals) {
      // The texts of 10,000 refusals are a few MiB; a cluster of bad objects fills no more memory.
      if (this.#times + times.size >= 10_000) break
      const key = refusalIdentity(refusal)
      const since = before?.get(key) ?? (known.has(key) ? undefined : now)
      if (since !== undefined) times.set(key, since)
    }
    this.#times += times.size
    if (times.size === 0) this.#since.delete(service)
    else this.#since.set(service, times)
  }
}

/** An object that is refused as a whole, and the part of the source that has it. */
interface SourceRefusal {
  readonly location: string
  readonly refusal: Refusal
}

/** Follows the refusals of a source, which reports all of them at each change. */
export class SourceRefusalLog {
  #known: ReadonlySet<string> = new Set()

  update(list: readonly SourceRefusal[]): RefusalNews<SourceRefusal> {
    const identityOf = ({ location, refusal }: SourceRefusal) => `${location}\0${refusalIdentity(refusal)}`
    const news = list.filter(each => !this.#known.has(identityOf(each)))
    this.#known = new Set(list.map(identityOf))
    const fresh = news.slice(0, NEWS_MAX)
    return { fresh, unnamed: news.length - fresh.length, total: list.length }
  }
}

export function refusalIdentity({
  object,
  field,
  value,
  reason,
}: Pick<Refusal, 'object' | 'field' | 'value' | 'reason'>): string {
  return [object, field, value, reason].join('\0')
}
