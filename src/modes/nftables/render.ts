import { stepsOver } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { familyOf } from '../../base/ip.ts'
import { u32host } from '../../base/octets.ts'
import { NFT_GOTO } from '../../kernel/nft/constants.ts'
import type { Element, ElementGroup, NftFamily, NftSet, Table } from '../../kernel/nft/state.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { CHAIN_NO_LOCAL, CHAIN_REJECT } from '../common/rules.ts'
import {
  changedServices,
  type FamilyLayout,
  familyName,
  forFamilies,
  LAYOUTS,
  NFT_FAMILIES,
  sameGroup,
  TableDraft,
  tableOf,
} from '../common/tables.ts'
import { chooseChains, makeChains } from './chains.ts'
import {
  CODE_DROP,
  CODE_REJECT,
  CodeDraft,
  type Codes,
  codesIn,
  countedAs,
  GROUP_AFFINITY,
  GROUP_DISPATCH,
  hairpinGroup,
  IdDraft,
  isCounted,
  prefixLengthsIn,
  SET_NAMES,
  sizeFor,
} from './layout.ts'
import { ForwarderDraft } from './localhost.ts'
import { type OutOfNumbers, serviceElements } from './render-service.ts'
import { fixedChains, type Skeleton, skeletonKey, skeletonOf } from './rules.ts'
import type { NftablesOptions } from './settings.ts'
import { type Allocation, declareSet, type FixedChains, type NftablesState } from './state.ts'

/**
 * Renders the kernel state that the mode wants. If the base was rendered, only what changed since then is
 * rendered again. From a base that was read from the kernel only the numbering and the sizes are used, so
 * that equal elements stay equal.
 */
export function renderState(
  frontends: FrontendTable,
  given: RenderOptions<NftablesState>,
  options: NftablesOptions,
) {
  const draft = new StateDraft(frontends, given, options)
  return stepsOver(changedServices(frontends, given.base, given.without), {
    each: key => draft.replace(key),
    result: () => draft.finish(),
  })
}

class StateDraft {
  readonly #frontends: FrontendTable
  readonly #base: NftablesState
  readonly #without: ReadonlySet<string>
  readonly #drafts: Readonly<Record<NftFamily, NumberedDraft>>
  readonly #forwarders: ForwarderDraft
  readonly #refusals: Map<string, readonly Refusal[]>

  constructor(
    frontends: FrontendTable,
    { base, without }: RenderOptions<NftablesState>,
    options: NftablesOptions,
  ) {
    this.#frontends = frontends
    this.#base = base
    this.#without = without
    const continuing = base.frontends !== undefined
    const isSame = base.frontends !== undefined && hasSameSurroundings(base.frontends, frontends)
    this.#drafts = forFamilies(family => {
      const allocation = base.allocations[family]
      const table = tableOf(base.ruleset, family)
      return new NumberedDraft({
        layout: LAYOUTS[family],
        options,
        base: table,
        allocation,
        continuing,
        isSame,
      })
    })
    this.#forwarders = new ForwarderDraft(base, frontends)
    this.#refusals = new Map(base.refusals)
  }

  replace(key: string): void {
    const before = this.#base.frontends?.services.get(key)
    const after = this.#frontends.services.get(key)
    const leftOut = this.#without.has(key)
    const refused = NFT_FAMILIES.map(family => this.#drafts[family].replace(key, { before, after, leftOut }))
    const reason = refused.find(its => its !== undefined)?.reason
    this.#forwarders.replace(before, leftOut || reason !== undefined ? undefined : after)
    if (reason === undefined) this.#refusals.delete(key)
    else this.#refusals.set(key, [refusal(key, reason)])
  }

  finish(): NftablesState {
    const [frontends, base, without] = [this.#frontends, this.#base, this.#without]
    const refusals = this.#refusals
    for (const ip of changedKeys(base.frontends?.localBackends, frontends.localBackends))
      this.#drafts[familyName(familyOf(ip))].hairpin(ip, frontends.localBackends.has(ip))
    const ip = this.#drafts.ip.finish(frontends)
    const ip6 = this.#drafts.ip6.finish(frontends)
    const isLeftOut = (key: string) => without.has(key) || refusals.has(key)
    return {
      ruleset: { tables: [ip.table, ip6.table] },
      frontends,
      without,
      allocations: { ip: ip.allocation, ip6: ip6.allocation },
      refusals,
      forwarders: this.#forwarders.finish(frontends, isLeftOut),
    }
  }
}

/** Tests whether the tables are equal except for their Services. */
function hasSameSurroundings(a: FrontendTable, b: FrontendTable): boolean {
  return (
    a.nodePorts === b.nodePorts &&
    a.serviceCidrs === b.serviceCidrs &&
    a.node === b.node &&
    a.forwardedAtLocalhost?.join() === b.forwardedAtLocalhost?.join()
  )
}

function changedKeys<V>(before: PersistentMap<V> | undefined, after: PersistentMap<V>): Iterable<string> {
  return before === undefined ? after.keys() : PersistentMap.changes(before, after)
}

function refusal(service: string, reason: string): Refusal {
  return { object: `Service ${service}`, field: 'metadata.name', value: service, reason }
}

interface NumberedDraftOptions {
  readonly layout: FamilyLayout
  readonly options: NftablesOptions
  readonly base: Table | undefined
  readonly allocation: Allocation
  /** If false, all elements are made again, and those of `base` supply only their numbers. */
  readonly continuing: boolean
  /** Continues, and differs from `base` in its Services at most. */
  readonly isSame: boolean
}

interface ServiceChange {
  readonly before: ServiceFrontends | undefined
  readonly after: ServiceFrontends | undefined
  /** The kernel rejected the Service: it keeps its numbers, but has no elements. */
  readonly leftOut: boolean
}

/** Builds the next version of one table during a render, with the numbers that its elements have. */
class NumberedDraft {
  readonly #given: NumberedDraftOptions
  readonly #ids: IdDraft
  readonly #codes: CodeDraft
  readonly #table: TableDraft

  constructor(given: NumberedDraftOptions) {
    const { allocation, continuing, base, layout, options } = given
    this.#given = given
    this.#ids = new IdDraft(allocation.ids)
    this.#codes = new CodeDraft(allocation.codes)
    const counts = continuing ? allocation.tally : undefined
    this.#table = new TableDraft({ family: layout.family, name: options.tableName, base, counts, countedAs })
    if (continuing) return
    for (const port of allocation.ids.byPort.keys()) this.#ids.retire(port)
    this.#table.put(GROUP_AFFINITY, base?.elements.get(GROUP_AFFINITY) ?? [])
  }

  /** Replaces the elements of a Service, which `before` was rendered to. */
  replace(key: string, change: ServiceChange): OutOfNumbers | undefined {
    const { after, leftOut } = change
    this.#renumber(change)
    const made = after === undefined || leftOut ? [] : this.#make(after, this.#given.base?.elements.get(key))
    const isRefused = 'reason' in made
    this.#table.put(key, isRefused ? [] : made)
    return isRefused ? made : undefined
  }

  /** Makes the elements of a Service; gives those that the kernel holds where they serve it as well. */
  #make(service: ServiceFrontends, present: ElementGroup | undefined): ElementGroup | OutOfNumbers {
    const context = { layout: this.#given.layout, ids: this.#ids, codes: this.#codes }
    if (present === undefined || this.#given.continuing) return serviceElements(context, service, present)
    const made = serviceElements(context, service)
    return 'reason' in made || !sameGroup(present, made)
      ? serviceElements(context, service, present)
      : present
  }

  /** Frees the ids of removed ports at the end of the render. */
  #renumber({ before, after }: ServiceChange): void {
    const { model } = this.#given.layout
    for (const port of before?.ports ?? []) if (port.family === model) this.#ids.retire(port.key)
    for (const port of after?.ports ?? []) if (port.family === model) this.#ids.keep(port.key)
  }

  hairpin(ip: string, local: boolean): void {
    const element: Element = { set: 'hairpin', key: ip + ip, data: undefined, comment: '' }
    this.#table.put(hairpinGroup(ip), local ? [element] : [])
  }

  finish(frontends: FrontendTable): { readonly table: Table; readonly allocation: Allocation } {
    const { layout, allocation, continuing } = this.#given
    const fixed = this.#finishFixed(frontends)
    const { chains, codes } = this.#finishChains(frontends, fixed)
    if (codes !== allocation.codes || !continuing) this.#table.put(GROUP_DISPATCH, dispatchElements(codes))
    if (fixed !== allocation.fixed) {
      const nodePorts = frontends.nodePorts[layout.model]
      const ips = nodePorts.kind === 'all' ? [] : [...new Set(nodePorts.ips)]
      this.#table.putNodePortIps(ips.filter(ip => ip.length === layout.addressLength))
    }
    const table = this.#table.finish({ chains, sets: this.#finishSets(frontends) })
    return { table, allocation: { ids: this.#ids.finish(), codes, tally: this.#table.counts, fixed } }
  }

  #skeleton(frontends: FrontendTable): Skeleton {
    const { layout, options } = this.#given
    const prefixLengths = prefixLengthsIn(this.#table.counts)
    return skeletonOf(layout, options, { frontends, prefixLengths })
  }

  /** Gives the fixed chains: those of the base if equal inputs made them. */
  #finishFixed(frontends: FrontendTable): FixedChains {
    const { allocation, continuing, isSame } = this.#given
    const { fixed, tally } = allocation
    const lengths = prefixLengthsIn(this.#table.counts).join()
    if (isSame && fixed !== undefined && lengths === prefixLengthsIn(tally).join()) return fixed
    const skeleton = this.#skeleton(frontends)
    const key = skeletonKey(skeleton)
    return continuing && key === fixed?.key ? fixed : { key, chains: fixedChains(skeleton) }
  }

  /** Gives all chains of the table. Reuses those of the base if the fixed ones stay. */
  #finishChains(frontends: FrontendTable, fixed: FixedChains) {
    const { base, allocation } = this.#given
    const isFixed = fixed === allocation.fixed
    const inUse = codesIn(this.#table.counts)
    if (isFixed && base !== undefined && inUse.join() === codesIn(allocation.tally).join())
      return { chains: base.chains, codes: allocation.codes }
    const { chains: names, codes } = chooseChains(base, this.#codes, new Set(inUse))
    const made = makeChains(names, () => this.#skeleton(frontends), isFixed ? base?.chains : undefined)
    const chains = [...fixed.chains, ...made]
    return { chains: new Map(chains.map(chain => [chain.name, chain])), codes }
  }

  /** Gives the declarations: those of the base where they stay, and its Map where all do. */
  #finishSets({ nodePorts }: FrontendTable): ReadonlyMap<string, NftSet> {
    const { base, layout, continuing, options } = this.#given
    const { connectionCounters } = options
    const hasNodePortIps = nodePorts[layout.model].kind === 'only'
    const sets = new Map<string, NftSet>()
    let isSame = true
    for (const name of SET_NAMES) {
      if (name === 'nodeport-ips' && !hasNodePortIps) continue
      const before = base?.sets.get(name)
      const size = sizeFor(name, this.#table.counts.get(name) ?? 0, before?.size)
      const counted = isCounted(name, connectionCounters)
      const stays = continuing && before?.size === size && (before.counted === true) === counted
      isSame &&= stays
      sets.set(name, stays ? before : declareSet(name, { layout, size, connectionCounters }))
    }
    return isSame && base?.sets.size === sets.size ? base.sets : sets
  }
}

function dispatchElements(codes: Codes): ElementGroup {
  const targets = [[CHAIN_REJECT, CODE_REJECT], [CHAIN_NO_LOCAL, CODE_DROP], ...codes] as const
  return targets.map(([chain, code]) => ({
    set: 'dispatch',
    key: u32host(code),
    data: { code: NFT_GOTO, chain },
    comment: '',
  }))
}
