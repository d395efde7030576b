import { PersistentMap } from '../../base/collections.ts'
import type { Ip } from '../../base/ip.ts'
import type { Element, ElementGroup, NftFamily, Ruleset, Table } from '../../kernel/nft/state.ts'
import { GROUP_NODEPORT_IPS, sameGroup, TABLE_COMMENT } from './tables.ts'

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

interface TableDraftOptions {
  readonly family: NftFamily
  readonly name: string
  readonly base: Table | undefined
  /** The number of elements of the base by set; undefined when all elements are made again. */
  readonly counts: ReadonlyMap<string, number> | undefined
}

/** Builds one of our tables during one render. An equal result is the base's own object. */
export class TableDraft {
  readonly counts: Map<string, number>
  readonly #given: TableDraftOptions
  readonly #changes = new Map<string, ElementGroup | undefined>()

  constructor(given: TableDraftOptions) {
    this.#given = given
    this.counts = new Map(given.counts)
  }

  put(group: string, elements: ElementGroup): void {
    const { base, counts } = this.#given
    const there = base?.elements.get(group)
    const before = counts === undefined ? undefined : there
    if (before === undefined && elements.length === 0) return
    if (before !== undefined) this.#count(before, -1)
    this.#count(elements, 1)
    if (elements.length === 0) this.#changes.set(group, undefined)
    else this.#changes.set(group, there !== undefined && sameGroup(there, elements) ? there : elements)
  }

  putNodePortIps(ips: readonly Ip[]): void {
    this.put(
      GROUP_NODEPORT_IPS,
      ips.map((key): Element => ({ set: 'nodeport-ips', key, data: undefined, comment: '' })),
    )
  }

  finish(parts: Pick<Table, 'chains' | 'sets'>): Table {
    const { base, family, name } = this.#given
    const made: Table = {
      family,
      name,
      flags: 0,
      comment: TABLE_COMMENT,
      ...parts,
      elements: this.#finishElements(),
    }
    const isSame =
      base !== undefined &&
      base.comment === made.comment &&
      base.flags === made.flags &&
      base.chains === made.chains &&
      base.sets === made.sets &&
      base.elements === made.elements
    return isSame ? base : made
  }

  #finishElements(): PersistentMap<ElementGroup> {
    const { base, counts } = this.#given
    if (base === undefined) return PersistentMap.empty<ElementGroup>().withOwn(this.#changes)
    if (counts === undefined)
      for (const group of base.elements.keys())
        if (!this.#changes.has(group)) this.#changes.set(group, undefined)
    return base.elements.withOwn(this.#changes)
  }

  #count(elements: ElementGroup, by: 1 | -1): void {
    for (const { set } of elements) this.counts.set(set, (this.counts.get(set) ?? 0) + by)
  }
}
