import { PersistentMap } from '../base/collections.ts'
import type { Refusal } from '../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'

/** The changes that one check found. */
interface RefusalNews<Fresh> {
  /** New refusals; at most NEWS_MAX, so that one bad rollout does not flood the log. */
  readonly fresh: readonly Fresh[]
  /** The number of further new ones. */
  readonly unnamed: number
  /** The number of all current refusals. */
  readonly total: number
}

/** The refusals of one Service and its slices. */
interface ServiceRefusals {
  readonly service: ServiceKey
  /** Never empty. */
  readonly refusals: readonly Refusal[]
}

const NEWS_MAX = 100

/** Follows the refusals of the Services. The cost of a check follows the changes. */
export class RefusalLog {
  #services: PersistentMap<ServiceFrontends> = PersistentMap.empty()
  #total = 0

  update(table: FrontendTable): RefusalNews<ServiceRefusals> {
    const fresh: ServiceRefusals[] = []
    let named = 0
    let unnamed = 0
    for (const service of PersistentMap.changes(this.#services, table.services)) {
      const before = this.#services.get(service)?.refusals ?? []
      const after = table.services.get(service)?.refusals ?? []
      this.#total += after.length - before.length
      if (after.length === 0) continue
      const known = new Set(before.map(identity))
      const news = after.filter(refusal => !known.has(identity(refusal)))
      const refusals = news.slice(0, NEWS_MAX - named)
      named += refusals.length
      unnamed += news.length - refusals.length
      if (refusals.length > 0) fresh.push({ service, refusals })
    }
    this.#services = table.services
    return { fresh, unnamed, total: this.#total }
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
    const identityOf = ({ location, refusal }: SourceRefusal) => `${location}\0${identity(refusal)}`
    const news = list.filter(each => !this.#known.has(identityOf(each)))
    this.#known = new Set(list.map(identityOf))
    const fresh = news.slice(0, NEWS_MAX)
    return { fresh, unnamed: news.length - fresh.length, total: list.length }
  }
}

function identity({ object, field, value, reason }: Refusal): string {
  return [object, field, value, reason].join('\0')
}
