import type { Steps } from '../../base/steps.ts'
import { ScopeChanges } from '../../kernel/xt/scope-changes.ts'
import { type Language, ObservedChanges } from '../../kernel/xt/scope-observed.ts'
import { chainKey, type ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import type { ServiceKey } from '../../model/service.ts'
import { isOurChain } from '../xt-common/layout.ts'
import { type IptablesPlan, makePlan } from './plan.ts'
import { rulesIn, servicesBetween } from './render.ts'
import type { ServiceChain, ServiceRules } from './service-rules.ts'
import type { IptablesState, ObservedState, RenderedState } from './state.ts'

const SERVICES_PER_STEP = 16

/**
 * What leads from one state to a rendered one. Between two that were rendered only Services that changed are gone
 * through, unless what the rules of all of them follow from has changed. Throws for a state that was read as `to`.
 */
export function* diffStates(from: IptablesState, to: IptablesState, language: Language): Steps<IptablesPlan> {
  if (to.kind !== 'rendered') throw new Error('a state that was read from the kernel is not to be written')
  const operations = yield* from.kind === 'rendered' ? between(from, to) : fromKernel(from, to, language)
  return makePlan(operations, to)
}

function* fromKernel(
  { observed }: ObservedState,
  to: RenderedState,
  language: Language,
): Steps<ScopeOperations> {
  const { names } = to.statics.options
  const changes = new ObservedChanges(observed, language, (table, name) => isOurChain(names, table, name))
  for (const chain of to.common.chains.values()) changes.common(chain)
  for (const jump of to.common.jumps) changes.jump(jump)
  let count = 0
  for (const service of to.frontends.services.keys()) {
    const { chains, entries } = rulesIn(to, service)
    for (const chain of chains) changes.chain(service, chain)
    for (const entry of entries) changes.entry(service, entry)
    if (++count % SERVICES_PER_STEP === 0) yield
  }
  return yield* changes.finish()
}

function* between(from: RenderedState, to: RenderedState): Steps<ScopeOperations> {
  const changes = new ScopeChanges(from.common, to.common)
  const isAll = changes.concernsAll || from.statics.serviceKey !== to.statics.serviceKey
  const shared = new SharedChains(changes, { from, to })
  let count = 0
  for (const service of isAll ? allServices(from, to) : servicesBetween(from, to)) {
    const before = rulesIn(from, service)
    const after = rulesIn(to, service)
    changes.owner(service, shared.ownOf(before), shared.ownOf(after))
    shared.change(service, before, after)
    if (++count % SERVICES_PER_STEP === 0) yield
  }
  return yield* changes.finish()
}

function allServices(from: RenderedState, to: RenderedState): ReadonlySet<ServiceKey> {
  return new Set([...from.frontends.services.keys(), ...to.frontends.services.keys()])
}

/** Chains that several Services ask for come with the first and go with the last of them. */
class SharedChains {
  readonly #changes: ScopeChanges
  readonly #from: RenderedState
  readonly #to: RenderedState
  readonly #done = new Set<string>()

  constructor(
    changes: ScopeChanges,
    { from, to }: { readonly from: RenderedState; readonly to: RenderedState },
  ) {
    this.#changes = changes
    this.#from = from
    this.#to = to
  }

  /** Without them. */
  ownOf(rules: ServiceRules): ServiceRules {
    if (!rules.chains.some(({ shared }) => shared)) return rules
    return { ...rules, chains: rules.chains.filter(({ shared }) => shared !== true) }
  }

  change(service: ServiceKey, before: ServiceRules, after: ServiceRules): void {
    for (const chain of before.chains) this.#one(service, chain, 'before')
    for (const chain of after.chains) this.#one(service, chain, 'after')
  }

  #one(service: ServiceKey, chain: ServiceChain, side: 'before' | 'after'): void {
    if (chain.shared !== true) return
    const key = chainKey(chain, chain.name)
    const was = this.#from.sharedChains.has(key)
    const is = this.#to.sharedChains.has(key)
    if (was === is || (side === 'before') !== was || this.#done.has(key)) return
    this.#done.add(key)
    if (is) this.#changes.addChain(service, chain)
    else this.#changes.removeChain(service, chain)
  }
}
