import { PersistentMap } from '../../base/persistent-map.ts'
import type { Element, ElementGroup, NftSet, Table } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { GROUP_NODEPORT_IPS, sameGroup } from '../common/element-group.ts'
import type { FamilyLayout } from '../common/family.ts'
import { declareFixedSet, declareRanges, FIXED_SETS, rangeBits } from './layout.ts'
import type { UserspaceOptions } from './options.ts'
import { chainsOf, ruleInputs, ruleInputsKey } from './rules.ts'
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
  readonly #changes = new Map<string, ElementGroup | undefined>()

  constructor(given: TableDraftOptions) {
    this.#given = given
    this.#ranges = new Map(given.continuing ? given.tally.ranges : NO_TALLY.ranges)
  }

  /** Replaces the elements of the group. */
  put(group: string, elements: ElementGroup): void {
    const { base, continuing } = this.#given
    const there = base?.elements.get(group)
    const before = continuing ? there : undefined
    if (before === undefined && elements.length === 0) return
    if (before !== undefined) this.#count(before, -1)
    this.#count(elements, 1)
    if (elements.length === 0) this.#changes.set(group, undefined)
    else this.#changes.set(group, there !== undefined && sameGroup(there, elements) ? there : elements)
  }

  finish(frontends: FrontendTable): { readonly table: Table; readonly tally: TableTally } {
    const { base, layout, options, tally, continuing } = this.#given
    const prefixLengths = [...this.#ranges.keys()].sort((a, b) => b - a)
    const inputs = ruleInputs(layout, options, { frontends, prefixLengths })
    const key = ruleInputsKey(inputs)
    const isSame = continuing && base !== undefined && key === tally.chains
    if (!isSame) this.#putNodePortIps(inputs.nodePorts.kind === 'only' ? inputs.nodePorts.ips : [])
    const elements = this.#elements()
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

  #putNodePortIps(ips: readonly string[]): void {
    const own = ips.filter(ip => ip.length === this.#given.layout.addressLength)
    this.put(
      GROUP_NODEPORT_IPS,
      own.map((key): Element => ({ set: 'nodeport-ips', key, data: undefined, comment: '' })),
    )
  }

  #elements(): PersistentMap<ElementGroup> {
    const { base, continuing } = this.#given
    const before = continuing ? base?.elements : undefined
    return (before ?? PersistentMap.empty<ElementGroup>()).withOwn(this.#changes)
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
