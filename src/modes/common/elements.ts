import { PersistentMap } from '../../base/collections.ts'
import type { Ip } from '../../base/ip.ts'
import type { Element, ElementGroup, Ruleset } from '../../kernel/nft/state.ts'
import { GROUP_NODEPORT_IPS, sameGroup } from './tables.ts'

type OfSet = (set: string) => boolean

/** Counts the elements of our own tables by the sets that contain them. */
export function elementExtent({ tables }: Ruleset, isFrontend: OfSet, isEndpoint: OfSet) {
  let frontends = 0
  let endpoints = 0
  for (const { elements } of tables)
    for (const group of elements.values())
      for (const { set } of group) {
        if (isFrontend(set)) frontends++
        else if (isEndpoint(set)) endpoints++
      }
  return { frontends, endpoints }
}

interface ElementsDraftOptions {
  readonly base: PersistentMap<ElementGroup> | undefined
  /** Continues the groups of `base`; otherwise all groups are made again. */
  readonly continuing: boolean
  /** Counts elements that come (1) or go (-1). */
  readonly count: (elements: ElementGroup, by: 1 | -1) => void
}

/** Builds the elements of one table during one render. An equal result is the base's own object. */
export class ElementsDraft {
  readonly #given: ElementsDraftOptions
  readonly #changes = new Map<string, ElementGroup | undefined>()

  constructor(given: ElementsDraftOptions) {
    this.#given = given
  }

  /** Replaces the elements of the group. */
  put(group: string, elements: ElementGroup): void {
    const { base, continuing, count } = this.#given
    const there = base?.get(group)
    const before = continuing ? there : undefined
    if (before === undefined && elements.length === 0) return
    if (before !== undefined) count(before, -1)
    count(elements, 1)
    if (elements.length === 0) this.#changes.set(group, undefined)
    else this.#changes.set(group, there !== undefined && sameGroup(there, elements) ? there : elements)
  }

  putNodePortIps(ips: readonly Ip[]): void {
    this.put(
      GROUP_NODEPORT_IPS,
      ips.map((key): Element => ({ set: 'nodeport-ips', key, data: undefined, comment: '' })),
    )
  }

  finish(): PersistentMap<ElementGroup> {
    const { base, continuing } = this.#given
    if (base === undefined) return PersistentMap.empty<ElementGroup>().withOwn(this.#changes)
    if (!continuing)
      for (const group of base.keys()) if (!this.#changes.has(group)) this.#changes.set(group, undefined)
    return base.withOwn(this.#changes)
  }
}
