import type { ElementGroup, NftSet, Table } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { ElementsDraft } from '../common/elements-draft.ts'
import type { FamilyLayout } from '../common/family.ts'
import { declareFixedSet, declareRanges, FIXED_SETS, rangeBits } from './layout.ts'
import { chainsOf, ruleInputs, ruleInputsKey } from './rules.ts'
import type { UserspaceOptions } from './settings.ts'
import { NO_TALLY, type TableTally } from './state.ts'

const TABLE_COMMENT = 'rules of kprobe'

interface TableDraftOptions {
  readonly layout: FamilyLayout
  readonly options: UserspaceOptions
  readonly base: Table | undefined
  readonly tally: TableTally
  /** Continues the elements of `base`; otherwise all elements are made again. */
  readonly continuing: boolean
}

/** Builds one of our tables during one render. An equal result is the base's own object. */
export class TableDraft {
  readonly #given: TableDraftOptions
  readonly #ranges: Map<number, number>
  readonly #elements: ElementsDraft

  constructor(given: TableDraftOptions) {
    const { base, continuing, tally } = given
    this.#given = given
    this.#ranges = new Map(continuing ? tally.ranges : NO_TALLY.ranges)
    const count = (elements: ElementGroup, by: 1 | -1) => this.#count(elements, by)
    this.#elements = new ElementsDraft({ base: base?.elements, continuing, count })
  }

  /** Replaces the elements of the group. */
  put(group: string, elements: ElementGroup): void {
    this.#elements.put(group, elements)
  }

  finish(frontends: FrontendTable): { readonly table: Table; readonly tally: TableTally } {
    const { base, layout, options, tally, continuing } = this.#given
    const prefixLengths = [...this.#ranges.keys()].sort((a, b) => b - a)
    const inputs = ruleInputs(layout, options, { frontends, prefixLengths })
    const key = ruleInputsKey(inputs)
    const isSame = continuing && base !== undefined && key === tally.chains
    if (!isSame) {
      const ips = inputs.nodePorts.kind === 'only' ? inputs.nodePorts.ips : []
      this.#elements.putNodePortIps(ips.filter(ip => ip.length === layout.addressLength))
    }
    const elements = this.#elements.finish()
    const made: Table = {
      family: layout.family,
      name: options.tableName,
      flags: 0,
      comment: TABLE_COMMENT,
      chains: isSame ? base.chains : new Map(chainsOf(inputs).map(chain => [chain.name, chain])),
      sets: isSame ? base.sets : setsOf(layout, prefixLengths),
      elements,
    }
    const table = isSame && base.elements === elements ? base : made
    return { table, tally: { ranges: this.#ranges, chains: key } }
  }

  #count(elements: ElementGroup, by: 1 | -1): void {
    for (const { set } of elements) {
      const bits = rangeBits(set)
      if (bits === undefined) continue
      const count = (this.#ranges.get(bits) ?? 0) + by
      if (count === 0) this.#ranges.delete(bits)
      else this.#ranges.set(bits, count)
    }
  }
}

function setsOf(layout: FamilyLayout, prefixLengths: readonly number[]): ReadonlyMap<string, NftSet> {
  const fixed = FIXED_SETS.map(name => declareFixedSet(name, layout))
  const ranges = prefixLengths.map(bits => declareRanges(bits, layout))
  return new Map([...fixed, ...ranges].map(set => [set.name, set]))
}
