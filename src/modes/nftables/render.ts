import { familyOf } from '../../base/ip.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { Pauses, type Steps } from '../../base/steps.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { changedServices } from '../common/changed-services.ts'
import { forFamilies, LAYOUTS, tableOf } from '../common/family.ts'
import type { NftablesOptions } from './options.ts'
import type { NftablesState } from './state.ts'
import { type ServiceChange, TableDraft } from './table-draft.ts'

/**
 * Renders the kernel state that the mode wants. If the base was rendered, only what changed since then is
 * rendered again. From a base that was read from the kernel only the numbering and the sizes are used, so
 * that equal elements stay equal.
 */
export function* renderState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<NftablesState>,
  options: NftablesOptions,
): Steps<NftablesState> {
  const before = base.frontends
  const open = (family: NftFamily) =>
    new TableDraft({
      layout: LAYOUTS[family],
      options,
      base: tableOf(base.ruleset, family),
      allocation: base.allocations[family],
      continuing: before !== undefined,
    })
  const drafts = forFamilies(open)
  const refusals = new Map(base.refusals)
  const pauses = new Pauses()
  for (const key of changedServices(frontends, base, without)) {
    const after = frontends.services.get(key)
    const change = { before: before?.services.get(key), after, leftOut: without.has(key) }
    const reason = replace(drafts, key, change)
    if (reason !== undefined) refusals.set(key, [refusal(key, reason)])
    else if (refusals.size > 0) refusals.delete(key)
    if (pauses.due()) yield
  }
  const locals = changedKeys(before?.localBackends, frontends.localBackends)
  for (const ip of locals) {
    const draft = familyOf(ip) === 'IPv4' ? drafts.ip : drafts.ip6
    draft.hairpin(ip, frontends.localBackends.has(ip))
  }
  yield
  const ip = yield* drafts.ip.finish(frontends)
  const ip6 = yield* drafts.ip6.finish(frontends)
  return {
    ruleset: { tables: [ip.table, ip6.table] },
    frontends,
    without,
    allocations: { ip: ip.allocation, ip6: ip6.allocation },
    refusals,
  }
}

type Drafts = Readonly<Record<NftFamily, TableDraft>>

/** Replaces a Service. Gives the reason when the Service is in neither table. */
function replace(drafts: Drafts, key: string, change: ServiceChange): string | undefined {
  const refused = drafts.ip.replace(key, change)
  const refused6 = drafts.ip6.replace(key, change)
  return refused?.reason ?? refused6?.reason
}

function changedKeys<V>(before: PersistentMap<V> | undefined, after: PersistentMap<V>): Iterable<string> {
  return before === undefined ? after.keys() : PersistentMap.changes(before, after)
}

function refusal(service: string, reason: string): Refusal {
  return { object: `Service ${service}`, field: 'metadata.name', value: service, reason }
}
