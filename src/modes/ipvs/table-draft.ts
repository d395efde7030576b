import { sameDeclaration } from '../../kernel/nft/diff.ts'
import type { Chain, ElementGroup, NftSet, Table } from '../../kernel/nft/state.ts'
import { ElementsDraft } from '../common/elements-draft.ts'
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
  readonly #elements: ElementsDraft

  constructor(given: TableDraftOptions) {
    this.#given = given
    this.#counts = new Map(given.counts)
    this.#elements = new ElementsDraft({
      base: given.base?.elements,
      continuing: given.counts !== undefined,
      count: (elements, by) => {
        for (const { set } of elements) this.#counts.set(set, (this.#counts.get(set) ?? 0) + by)
      },
    })
  }

  /** Replaces the elements of the group. */
  put(group: string, elements: ElementGroup): void {
    this.#elements.put(group, elements)
  }

  putNodePortIps({ nodePortIps }: Surroundings): void {
    this.#elements.putNodePortIps(nodePortIps[this.#given.layout.model])
  }

  /** Finishes the table. `chains` is undefined when those of the base are still valid. */
  finish(chains: readonly Chain[] | undefined): FinishedTable {
    const { base, layout, tableName } = this.#given
    const next = {
      chains: chains === undefined && base !== undefined ? base.chains : this.#chains(chains ?? []),
      sets: this.#sets(),
      elements: this.#elements.finish(),
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

  #chains(made: readonly Chain[]): ReadonlyMap<string, Chain> {
    const before = this.#given.base?.chains
    const chains = made.map(chain => {
      const there = before?.get(chain.name)
      return there !== undefined && chainKey(there) === chainKey(chain) ? there : chain
    })
    return keptOr(before, chains)
  }

  #sets(): ReadonlyMap<string, NftSet> {
    const { base, layout } = this.#given
    const sets = NFT_SET_NAMES.map(name => {
      const before = base?.sets.get(name)
      const size = sizeOfNftSet(name, this.#counts.get(name) ?? 0, before?.size)
      const declared = declareNftSet(name, size, layout)
      return before !== undefined && sameDeclaration(before, declared) ? before : declared
    })
    return keptOr(base?.sets, sets)
  }
}

/** Gives the map `before` where it holds exactly these objects. */
function keptOr<T extends { readonly name: string }>(
  before: ReadonlyMap<string, T> | undefined,
  made: readonly T[],
): ReadonlyMap<string, T> {
  const isSame = before?.size === made.length && made.every(each => before.get(each.name) === each)
  return isSame ? before : new Map(made.map(each => [each.name, each]))
}
