import type { Ip } from '../../base/ip.ts'
import { type Octets, zeros } from '../../base/octets.ts'
import type { DynamicElements } from '../../kernel/nft/trace-packet.ts'

/** What xt_recent keeps in one list unless its parameter ip_list_tot says otherwise: then the oldest goes. */
export const RECENT_ENTRIES_MAX = 100

/** Among the elements that packets wrote: `recent NAME`. */
const PREFIX = 'recent '

/**
 * One packet's view of the lists of `-m recent`: source addresses by name, the longest unseen first. Lists are of the
 * network namespace and know both families. Time stands still: who is in a list was seen just now.
 */
export class RecentLists {
  readonly #before: DynamicElements
  readonly #lists = new Map<string, Map<Ip, Octets | undefined>>()

  constructor(before: DynamicElements | undefined) {
    this.#before = before ?? new Map()
  }

  has(name: string, source: Ip): boolean {
    return this.#list(name).has(source)
  }

  set(name: string, source: Ip): void {
    const list = this.#list(name)
    if (!list.delete(source) && list.size >= RECENT_ENTRIES_MAX) {
      const [oldest] = list.keys()
      if (oldest !== undefined) list.delete(oldest)
    }
    list.set(source, zeros(0))
  }

  /** A list exists as long as a rule names it: `named` says which do. */
  after(named: ReadonlySet<string>): DynamicElements {
    const after = new Map(this.#before)
    for (const [name, list] of this.#lists) after.set(PREFIX + name, list)
    for (const key of after.keys())
      if (key.startsWith(PREFIX) && !named.has(key.slice(PREFIX.length))) after.delete(key)
    return after
  }

  #list(name: string): Map<Ip, Octets | undefined> {
    const known = this.#lists.get(name)
    if (known !== undefined) return known
    const list = new Map(this.#before.get(PREFIX + name))
    this.#lists.set(name, list)
    return list
  }
}
