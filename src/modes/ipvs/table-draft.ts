import { PersistentMap } from '../../base/persistent-map.ts'
import type { Chain, Element, ElementGroup, NftSet, Table } from '../../kernel/nft/state.ts'
import { GROUP_NODEPORT_IPS, sameGroup } from '../common/element-group.ts'
import type { FamilyLayout } from '../common/family.ts'
import { declareNftSet, NFT_SET_NAMES, sizeOfNftSet } from './layout.ts'
import { chainKey } from './rules.ts'
import type { Surroundings } from './surroundings.ts'

const TABLE_COMMENT = 'rules of kprobe'

interface TableDraftOptions {
  readonly layout: FamilyLayout
  readonly tableName: string
  readonly base: Table | undefined
  /** Number of elements of the base by set; undefined when all elements are made again. */
  readonly counts: ReadonlyMap<string, number> | undefined
}

interface FinishedTable {
  readonly table: Table
  readonly counts: ReadonlyMap<string, number>
}

/** Builds one of our tables during one render. An equal result is the base's own object. */
export class TableDraft {
  readonly #given: TableDraftOptions
  readonly #counts: Map<string, number>
  readonly #changes = new Map<string, ElementGroup | undefined>()

  constructor(given: TableDraftOptions) {
    this.#given = given
    this.#counts = new Map(given.counts)
  }

  /** Replaces the elements of the group. */
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

  putNodePortIps({ nodePortIps }: Surroundings): void {
    const ips = nodePortIps[this.#given.layout.model]
    this.put(
      GROUP_NODEPORT_IPS,
      ips.map((key): Element => ({ set: 'nodeport-ips', key, data: undefined, comment: '' })),
    )
  }

  /** Finishes the table. `chains` is undefined when those of the base are still valid. */
  finish(chains: readonly Chain[] | undefined): FinishedTable {
    const { base, layout, tableName } = this.#given
    const next = {
      chains: chains === undefined && base !== undefined ? base.chains : this.#chains(chains ?? []),
      sets: this.#sets(),
      elements: this.#elements(),
    }
    const isSame =
      base !== undefined &&
      base.comment === TABLE_COMMENT &&
      base.flags === 0 &&
      base.chains === next.chains &&
      base.sets === next.sets &&
      base.elements === next.elements
    const table: Table = isSame
      ? base
      : { family: layout.family, name: tableName, flags: 0, comment: TABLE_COMMENT, ...next }
    return { table, counts: this.#counts }
  }

  #count(elements: ElementGroup, by: 1 | -1): void {
    for (const { set } of elements) this.#counts.set(set, (this.#counts.get(set) ?? 0) + by)
  }

  #chains(made: readonly Chain[]): ReadonlyMap<string, Chain> {
    const before = this.#given.base?.chains
    const chains = made.map(chain => {
      const there = before?.get(chain.name)
      return there !== undefined && chainKey(there) === chainKey(chain) ? there : chain
    })
    const isSame = before?.size === chains.length && chains.every(chain => before.get(chain.name) === chain)
    return isSame ? before : new Map(chains.map(chain => [chain.name, chain]))
  }

  #sets(): ReadonlyMap<string, NftSet> {
    const { base, layout } = this.#given
    const sets = NFT_SET_NAMES.map(name => {
      const before = base?.sets.get(name)
      const size = sizeOfNftSet(name, this.#counts.get(name) ?? 0, before?.size)
      const declared = declareNftSet(name, size, layout)
      return before !== undefined && sameSet(before, declared) ? before : declared
    })
    const isSame = base?.sets.size === sets.length && sets.every(set => base.sets.get(set.name) === set)
    return isSame ? base.sets : new Map(sets.map(set => [set.name, set]))
  }

  #elements(): PersistentMap<ElementGroup> {
    const { base, counts } = this.#given
    if (base === undefined) return PersistentMap.empty<ElementGroup>().withOwn(this.#changes)
    if (counts === undefined)
      for (const group of base.elements.keys())
        if (!this.#changes.has(group)) this.#changes.set(group, undefined)
    return base.elements.withOwn(this.#changes)
  }
}

function sameSet(a: NftSet, b: NftSet): boolean {
  return (
    a.flags === b.flags &&
    a.keyType === b.keyType &&
    a.keyLength === b.keyLength &&
    a.dataType === b.dataType &&
    a.dataLength === b.dataLength &&
    a.size === b.size &&
    a.timeoutMs === b.timeoutMs &&
    a.counted === b.counted &&
    a.userdata === b.userdata
  )
}
