import { Pauses, type Steps } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { chainKey } from '../../kernel/xt/scope.ts'
import { type Asked, commonOf } from '../../kernel/xt/scope-held.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { RenderOptions } from '../../reconcile/dataplane.ts'
import { changedServices } from '../common/tables.ts'
import { fixedChains, jumpsOf } from './chains.ts'
import { endpointsOf, rulesOfService } from './render-service.ts'
import type { IptablesOptions } from './settings.ts'
import { type IptablesState, LARGE_ENDPOINTS, type RenderedState, staticsOf } from './state.ts'

const NO_REFUSALS: ReadonlyMap<string, readonly Refusal[]> = new Map()

/**
 * Renders the kernel state that the mode wants. If the base was rendered, endpoints and shared chains are counted
 * again only for Services that changed since, unless all rules changed.
 */
export function* renderIptablesState(
  frontends: FrontendTable,
  { base, without }: RenderOptions<IptablesState>,
  options: IptablesOptions,
): Steps<RenderedState> {
  const before = base.kind === 'rendered' ? base : undefined
  const changed =
    before === undefined ? frontends.services.keys() : servicesBetween(before, { frontends, without })
  let endpoints = before?.endpoints ?? 0
  const pauses = new Pauses()
  for (const key of changed) {
    const was = before === undefined ? undefined : serviceIn(before, key)
    const is = serviceIn({ frontends, without }, key)
    endpoints += (is === undefined ? 0 : endpointsOf(is)) - (was === undefined ? 0 : endpointsOf(was))
    if (pauses.due()) yield
  }
  const made = staticsOf(options, frontends, endpoints > LARGE_ENDPOINTS)
  const isSame = before?.statics.key === made.key
  const statics = isSame ? before.statics : made
  const common = isSame ? before.common : commonOf(fixedChains(made), jumpsOf(made), before?.common.jumps)
  const counted = { frontends, without, statics }
  const sharedChains = options.optimize ? yield* countShared(before, counted) : PersistentMap.empty<number>()
  return {
    kind: 'rendered',
    frontends,
    without,
    statics,
    common,
    endpoints,
    sharedChains,
    refusals: NO_REFUSALS,
  }
}

type Given = Pick<RenderedState, 'frontends' | 'without'>

/** Returns a Service of a state; undefined for one that does not exist, and for a quarantined one. */
function serviceIn({ frontends, without }: Given, key: ServiceKey) {
  return without.has(key) ? undefined : frontends.services.get(key)
}

/** Returns the Services whose objects may differ between two states with the same statics. */
export function servicesBetween(from: Given, to: Given): Iterable<ServiceKey> {
  return changedServices(to.frontends, { ...from, refusals: NO_REFUSALS }, to.without)
}

type Counted = Pick<RenderedState, 'frontends' | 'without' | 'statics'>

function* countShared(before: RenderedState | undefined, after: Counted): Steps<PersistentMap<number>> {
  const continues = before?.statics.serviceKey === after.statics.serviceKey
  const from = continues ? before : undefined
  const base = from?.sharedChains ?? PersistentMap.empty<number>()
  const counts = new Map<string, number>()
  const add = (keys: ReadonlySet<string>, by: 1 | -1): void => {
    for (const key of keys) counts.set(key, (counts.get(key) ?? base.get(key) ?? 0) + by)
  }
  const pauses = new Pauses()
  for (const key of from === undefined ? after.frontends.services.keys() : servicesBetween(from, after)) {
    if (from !== undefined) add(sharedBy(from, key), -1)
    add(sharedBy(after, key), 1)
    if (pauses.due()) yield
  }
  return base.with([...counts].map(([key, number]) => [key, number === 0 ? undefined : number] as const))
}

function sharedBy(state: Counted, service: ServiceKey): ReadonlySet<string> {
  return new Set(
    rulesIn(state, service).chains.flatMap(chain =>
      chain.shared === true ? [chainKey(chain, chain.name)] : [],
    ),
  )
}

const NOTHING: Asked = { chains: [], entries: [] }

export function rulesIn(state: Counted, key: ServiceKey): Asked {
  const service = serviceIn(state, key)
  return service === undefined ? NOTHING : rulesOfService(service, state.statics)
}
