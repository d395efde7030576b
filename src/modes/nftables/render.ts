import { stepsOver } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { familyOf } from '../../base/ip.ts'
import { u32host } from '../../base/octets.ts'
import { NF_DROP, NFT_GOTO } from '../../kernel/nft/constants.ts'
import type { Element, ElementGroup, NftFamily, NftSet, Table } from '../../kernel/nft/state.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { CHAIN_REJECT } from '../common/rules.ts'
import {
  changedServices,
  type FamilyLayout,
  GROUP_NODEPORT_IPS,
  LAYOUTS,
  NFT_FAMILIES,
  sameGroup,
  TABLE_COMMENT,
  tableOf,
} from '../common/tables.ts'
import { chooseChains, makeChains } from './chains.ts'
import {
  CODE_DROP,
  CODE_REJECT,
  CodeDraft,
  type Codes,
  GROUP_AFFINITY,
  GROUP_DISPATCH,
  hairpinGroup,
  IdDraft,
  isCounted,
  NOTHING,
  SET_NAMES,
  sizeFor,
  TallyDraft,
} from './layout.ts'
import { ForwarderDraft } from './localhost.ts'
import { ElementDraft, type OutOfNumbers } from './render-service.ts'
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
  readonly #drafts: Drafts
  readonly #forwarders: ForwarderDraft | undefined
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
    this.#drafts = new Drafts(isSame, family => {
      const allocation = base.allocations[family]
      const table = tableOf(base.ruleset, family)
      return new TableDraft({ layout: LAYOUTS[family], options, base: table, allocation, continuing, isSame })
    })
    const isForwarded = frontends.forwardedAtLocalhost !== undefined || base.forwarders.size > 0
    this.#forwarders = isForwarded ? new ForwarderDraft(base, frontends) : undefined
    this.#refusals = new Map(base.refusals)
  }

  replace(key: string): void {
    const before = this.#base.frontends?.services.get(key)
    const after = this.#frontends.services.get(key)
    const leftOut = this.#without.has(key)
    const reason = this.#drafts.replace(key, { before, after, leftOut })
    this.#forwarders?.replace(before, leftOut || reason !== undefined ? undefined : after)
    if (reason === undefined) this.#refusals.delete(key)
    else this.#refusals.set(key, [refusal(key, reason)])
  }

  finish(): NftablesState {
    const [frontends, base, without] = [this.#frontends, this.#base, this.#without]
    const refusals = this.#refusals
    for (const ip of changedKeys(base.frontends?.localBackends, frontends.localBackends)) {
      const draft = this.#drafts.of(familyOf(ip) === 'IPv4' ? 'ip' : 'ip6')
      draft.hairpin(ip, frontends.localBackends.has(ip))
    }
    const ip = this.#drafts.finish('ip', base, frontends)
    const ip6 = this.#drafts.finish('ip6', base, frontends)
    const isLeftOut = (key: string) => without.has(key) || refusals.has(key)
    return {
      ruleset: { tables: [ip.table, ip6.table] },
      frontends,
      without,
      allocations: { ip: ip.allocation, ip6: ip6.allocation },
      refusals,
      forwarders: this.#forwarders?.finish(frontends, isLeftOut) ?? base.forwarders,
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

/** The drafts of both tables. One that no change concerns is not begun. */
class Drafts {
  readonly #isSame: boolean
  readonly #begin: (family: NftFamily) => TableDraft
  readonly #begun = new Map<NftFamily, TableDraft>()

  /** `isSame` if the tables differ from their base in their Services at most. */
  constructor(isSame: boolean, begin: (family: NftFamily) => TableDraft) {
    this.#isSame = isSame
    this.#begin = begin
  }

  of(family: NftFamily): TableDraft {
    const begun = this.#begun.get(family)
    if (begun !== undefined) return begun
    const draft = this.#begin(family)
    this.#begun.set(family, draft)
    return draft
  }

  /** Replaces a Service. Gives the reason when the Service is in neither table. */
  replace(key: string, change: ServiceChange): string | undefined {
    let reason: string | undefined
    const { before, after } = change
    for (let i = 0; i < NFT_FAMILIES.length; i++) {
      const family = NFT_FAMILIES[i] ?? 'ip'
      const layout = LAYOUTS[family]
      if (!isIn(layout, before) && !isIn(layout, after)) continue
      const refused = this.of(family).replace(key, change)
      reason ??= refused?.reason
    }
    return reason
  }

  finish(family: NftFamily, base: NftablesState, frontends: FrontendTable): FinishedTable {
    const [table, allocation] = [tableOf(base.ruleset, family), base.allocations[family]]
    const isUnchanged = this.#isSame && allocation.fixed !== undefined && !this.#begun.has(family)
    if (isUnchanged && table !== undefined) return { table, allocation }
    return this.of(family).finish(frontends)
  }
}

function changedKeys<V>(before: PersistentMap<V> | undefined, after: PersistentMap<V>): Iterable<string> {
  return before === undefined ? after.keys() : PersistentMap.changes(before, after)
}

function refusal(service: string, reason: string): Refusal {
  return { object: `Service ${service}`, field: 'metadata.name', value: service, reason }
}

const NO_ELEMENTS: ElementGroup = []

interface TableDraftOptions {
  readonly layout: FamilyLayout
  readonly options: NftablesOptions
  readonly base: Table | undefined
  readonly allocation: Allocation
  /** If false, all elements are made again, and those of `base` supply only their numbers. */
  readonly continuing: boolean
  /** Continues, and differs from `base` in its Services at most. */
  readonly isSame: boolean
}

interface FinishedTable {
  readonly table: Table
  readonly allocation: Allocation
}

interface ServiceChange {
  readonly before: ServiceFrontends | undefined
  readonly after: ServiceFrontends | undefined
  /** The kernel rejected the Service: it keeps its numbers, but has no elements. */
  readonly leftOut: boolean
}

/** Builds the next version of one table during a render: collects the changes, then applies them. */
class TableDraft {
  readonly #given: TableDraftOptions
  readonly #ids: IdDraft
  readonly #codes: CodeDraft
  readonly #tally: TallyDraft
  readonly #elements: ElementDraft
  readonly #made = new Map<string, ElementGroup>()
  readonly #gone: string[] = []

  constructor(given: TableDraftOptions) {
    const { allocation, continuing } = given
    this.#given = given
    this.#ids = new IdDraft(allocation.ids)
    this.#codes = new CodeDraft(allocation.codes)
    this.#elements = new ElementDraft({
      layout: given.layout,
      ids: this.#ids,
      codes: this.#codes,
    })
    this.#tally = new TallyDraft(continuing ? allocation.tally : NOTHING)
    if (!continuing) for (const port of allocation.ids.byPort.keys()) this.#ids.retire(port)
  }

  /** Replaces the elements of a Service, which `before` was rendered to. */
  replace(key: string, change: ServiceChange): OutOfNumbers | undefined {
    const { after, leftOut } = change
    this.#renumber(change)
    const present = this.#given.base?.elements.get(key)
    const made = after === undefined || leftOut ? NO_ELEMENTS : this.#make(after, present)
    if ('reason' in made) {
      this.#put(key, undefined, present)
      return made
    }
    this.#put(key, made.length === 0 ? undefined : made, present)
    return undefined
  }

  /** Makes the elements of a Service; gives those that the kernel holds where they serve it as well. */
  #make(service: ServiceFrontends, present: ElementGroup | undefined): ElementGroup | OutOfNumbers {
    if (present === undefined || this.#given.continuing) return this.#elements.make(service, present)
    const made = this.#elements.make(service, undefined)
    return 'reason' in made || !sameGroup(present, made) ? this.#elements.make(service, present) : present
  }

  /** Frees the ids of removed ports at the end of the render. */
  #renumber({ before, after }: ServiceChange): void {
    const { model } = this.#given.layout
    if (before !== undefined)
      for (const port of before.ports) if (port.family === model) this.#ids.retire(port.key)
    if (after !== undefined && this.#ids.hasRetired)
      for (const port of after.ports) if (port.family === model) this.#ids.keep(port.key)
  }

  hairpin(ip: string, local: boolean): void {
    const element: Element = { set: 'hairpin', key: ip + ip, data: undefined, comment: '' }
    this.#put(hairpinGroup(ip), local ? [element] : undefined)
  }

  finish(frontends: FrontendTable): FinishedTable {
    const { layout, options, base, allocation, continuing } = this.#given
    const fixed = this.#finishFixed(frontends)
    const ids = this.#ids.finish()
    const isUntouched = this.#made.size === 0 && this.#gone.length === 0 && ids === allocation.ids
    if (isUntouched && fixed === allocation.fixed && base !== undefined) return { table: base, allocation }
    const { chains, codes } = this.#finishChains(frontends, fixed)
    if (codes !== allocation.codes || !continuing) this.#put(GROUP_DISPATCH, dispatchElements(codes))
    if (fixed !== allocation.fixed) this.#put(GROUP_NODEPORT_IPS, nodePortAddresses(layout, frontends))
    const elements = this.#finishElements()
    const sets = this.#finishSets(frontends)
    const { family } = layout
    const table: Table = {
      family,
      name: options.tableName,
      flags: 0,
      comment: TABLE_COMMENT,
      chains,
      sets,
      elements,
    }
    return { table, allocation: { ids, codes, tally: this.#tally.finish(), fixed } }
  }

  #put(
    key: string,
    group: ElementGroup | undefined,
    present: ElementGroup | undefined = this.#given.base?.elements.get(key),
  ): void {
    const before = this.#given.continuing ? present : undefined
    if (before === undefined && group === undefined) return
    if (before !== undefined) this.#tally.count(before, -1)
    if (group === undefined) this.#gone.push(key)
    else {
      this.#tally.count(group, 1)
      const isSame = present !== undefined && present !== group && sameGroup(present, group)
      this.#made.set(key, isSame ? present : group)
    }
  }

  #skeleton(frontends: FrontendTable): Skeleton {
    const { layout, options } = this.#given
    return skeletonOf(layout, options, { frontends, prefixLengths: this.#tally.prefixLengths })
  }

  /** Gives the fixed chains: those of the base if equal inputs made them. */
  #finishFixed(frontends: FrontendTable): FixedChains {
    const { allocation, continuing, isSame } = this.#given
    const { fixed, tally } = allocation
    if (isSame && fixed !== undefined && sameKeys(this.#tally.perPrefixLength, tally.prefixLengths))
      return fixed
    const skeleton = this.#skeleton(frontends)
    const key = skeletonKey(skeleton)
    return continuing && key === fixed?.key ? fixed : { key, chains: fixedChains(skeleton) }
  }

  /** Gives all chains of the table. Reuses those of the base if the fixed ones stay. */
  #finishChains(frontends: FrontendTable, fixed: FixedChains) {
    const { base, allocation } = this.#given
    const isFixed = fixed === allocation.fixed
    const inUse = this.#tally.codes
    if (isFixed && base !== undefined && sameKeys(inUse, allocation.tally.codes))
      return { chains: base.chains, codes: allocation.codes }
    const { chains: names, codes } = chooseChains(base, this.#codes, inUse)
    const made = makeChains(names, () => this.#skeleton(frontends), isFixed ? base?.chains : undefined)
    const chains = [...fixed.chains, ...made]
    return { chains: new Map(chains.map(chain => [chain.name, chain])), codes }
  }

  #finishElements(): PersistentMap<ElementGroup> {
    const { base, continuing } = this.#given
    if (continuing && base !== undefined) {
      const gone = this.#gone.map(key => [key, undefined] as const)
      return base.elements.with([...gone, ...this.#made])
    }
    const affinity = base?.elements.get(GROUP_AFFINITY)
    if (affinity !== undefined) this.#made.set(GROUP_AFFINITY, affinity)
    return PersistentMap.owning(this.#made)
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
      const size = sizeFor(name, this.#tally.elements(name), before?.size)
      const counted = isCounted(name, connectionCounters)
      const stays = continuing && before?.size === size && (before.counted === true) === counted
      isSame &&= stays
      sets.set(name, stays ? before : declareSet(name, { layout, size, connectionCounters }))
    }
    return isSame && base?.sets.size === sets.size ? base.sets : sets
  }
}

function sameKeys<K>(a: ReadonlyMap<K, unknown>, b: ReadonlyMap<K, unknown>): boolean {
  if (a.size !== b.size) return false
  for (const key of a.keys()) if (!b.has(key)) return false
  return true
}

/** Tests whether a Service has anything in the family's table. */
function isIn({ model, addressLength }: FamilyLayout, service: ServiceFrontends | undefined): boolean {
  if (service === undefined) return false
  const { ports, clusterIps } = service
  for (let i = 0; i < ports.length; i++) if (ports[i]?.family === model) return true
  for (let i = 0; i < clusterIps.length; i++) if (clusterIps[i]?.length === addressLength) return true
  return false
}

function dispatchElements(codes: Codes): ElementGroup {
  const goTo = (code: number, chain: string): Element => ({
    set: 'dispatch',
    key: u32host(code),
    data: { code: NFT_GOTO, chain },
    comment: '',
  })
  const drop: Element = {
    set: 'dispatch',
    key: u32host(CODE_DROP),
    data: { code: NF_DROP, chain: undefined },
    comment: '',
  }
  return [goTo(CODE_REJECT, CHAIN_REJECT), drop, ...[...codes].map(([chain, code]) => goTo(code, chain))]
}

function nodePortAddresses(layout: FamilyLayout, frontends: FrontendTable): ElementGroup | undefined {
  const nodePorts = frontends.nodePorts[layout.model]
  if (nodePorts.kind === 'all' || nodePorts.ips.length === 0) return undefined
  return [...new Set(nodePorts.ips)]
    .filter(ip => ip.length === layout.addressLength)
    .map(key => ({ set: 'nodeport-ips', key, data: undefined, comment: '' }))
}
