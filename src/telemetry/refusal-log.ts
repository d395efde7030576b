import { PersistentMap } from '../base/persistent-map.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { Refusal } from '../model/refusal.ts'

/** What one look at the refusals found. */
export interface RefusalNews {
  /** Refusals that were not there before; at most NEWS_MAX, so that one bad rollout does not flood the log. */
  readonly fresh: readonly Refusal[]
  /** How many more there were. */
  readonly unnamed: number
  /** How many there are now. */
  readonly total: number
}

const NEWS_MAX = 100

/** Follows the refusals of the Services; each costs when it changes, not at every look. */
export class RefusalLog {
  #services: PersistentMap<ServiceFrontends> = PersistentMap.empty()
  #total = 0

  look(table: FrontendTable): RefusalNews {
    const fresh: Refusal[] = []
    let unnamed = 0
    for (const key of PersistentMap.changes(this.#services, table.services)) {
      const before = this.#services.get(key)?.refusals ?? []
      const after = table.services.get(key)?.refusals ?? []
      this.#total += after.length - before.length
      const known = new Set(before.map(identity))
      for (const refusal of after) {
        if (known.has(identity(refusal))) continue
        if (fresh.length < NEWS_MAX) fresh.push(refusal)
        else unnamed++
      }
    }
    this.#services = table.services
    return { fresh, unnamed, total: this.#total }
  }
}

function identity({ object, field, value, reason }: Refusal): string {
  return [object, field, value, reason].join('\0')
}
