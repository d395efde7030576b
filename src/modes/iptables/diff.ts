import type { Steps } from '../../base/steps.ts'
import type { Language } from '../../kernel/xt/language.ts'
import { ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import { Committed, type Held, heldInKernel } from '../../kernel/xt/scope-held.ts'
import { chainKey, type ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import { type Asked, rewritesCommon } from '../../kernel/xt/scope-wanted.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { isOurChain } from '../xt-common/layout.ts'
import { rulesIn, servicesBetween } from './render.ts'
import type { ServiceRules } from './rules-port.ts'
import type { IptablesState, RenderedState } from './state.ts'

/** The two sides of a diff: `held` with what `askedBy` gives for the Services. */
interface Sides {
  readonly held: Held
  readonly services: Iterable<ServiceKey>
  readonly askedBy: (service: ServiceKey) => Asked
  /**
   * Adds to `held` what only this Service has there, and `remove` removes it: not all Services are in memory
   * at once.
   */
  readonly add?: (service: ServiceKey) => void
  readonly remove?: (asked: Asked) => void
}

/**
 * Makes the operations that lead from one state to a rendered one. Between two rendered states it visits only
 * Services that changed, unless the inputs of all rules changed. Throws when `to` is a state that was read.
 */
export function* diffStates(from: IptablesState, to: IptablesState, language: Language): Steps<IptablesPlan> {
  if (to.kind !== 'rendered') throw new Error('a state that was read from the kernel is not to be written')
  const { held, services, askedBy, add, remove } =
    from.kind === 'rendered'
      ? yield* sinceCommit(from, to)
      : {
          held: heldInKernel(from.observed),
          services: to.frontends.services.keys(),
          askedBy: (service: ServiceKey) => rulesIn(to, service),
          add: undefined,
          remove: undefined,
        }
  const { names } = to.statics.options
  const diff = new ScopeDiff(held, to.common, {
    language,
    isOurs: (table, name) => isOurChain(names, table, name),
  })
  for (const service of services) {
    const asked = askedBy(service)
    add?.(service)
    diff.owner(service, asked)
    remove?.(asked)
    yield
  }
  return makePlan(yield* diff.finish(), to)
}

function* sinceCommit(from: RenderedState, to: RenderedState): Steps<Sides> {
  const isAll = from.statics.serviceKey !== to.statics.serviceKey || rewritesCommon(from.common, to.common)
  const services = isAll ? allServices(from, to) : new Set(servicesBetween(from, to))
  const asked = (state: RenderedState, service: ServiceKey): Asked =>
    isAll ? rulesIn(state, service) : withoutKept(rulesIn(state, service), from, to)
  const held = new Committed(from.common)
  // One Service may have needed such a chain, and another one may need it now.
  if (from.sharedChains.size > 0) {
    for (const service of services) {
      held.add(service, { chains: asked(from, service).chains.filter(isShared), entries: [] })
      yield
    }
  }
  return {
    held,
    services,
    askedBy: service => asked(to, service),
    add: service => held.add(service, asked(from, service)),
    remove: ({ chains }) => held.remove(chains.filter(chain => !isShared(chain))),
  }
}

function isShared({ shared }: ServiceRules['chains'][number]): boolean {
  return shared === true
}

function allServices(from: RenderedState, to: RenderedState): ReadonlySet<ServiceKey> {
  return new Set([...from.frontends.services.keys(), ...to.frontends.services.keys()])
}

/**
 * Omits chains that Services need in both states. Such a chain comes with the first Service and goes with the
 * last.
 */
function withoutKept(rules: ServiceRules, from: RenderedState, to: RenderedState): Asked {
  if (!rules.chains.some(({ shared }) => shared)) return rules
  const isKept = (key: string): boolean => from.sharedChains.has(key) && to.sharedChains.has(key)
  const chains = rules.chains.filter(chain => chain.shared !== true || !isKept(chainKey(chain, chain.name)))
  return { chains, entries: rules.entries }
}

/** One batch for the tables of both families. */
export interface IptablesPlan extends Plan<IptablesState> {
  readonly operations: ScopeOperations
}

function makePlan(operations: ScopeOperations, after: IptablesState): IptablesPlan {
  return {
    operations,
    empty: operations.length === 0,
    changes: countScopeChanges(operations),
    after,
    complete: true,
    // The kernel keeps lists of recent clients as long as any rule, old or new, names them.
    rebuilds: false,
    describe: () => describeScope(operations),
  }
}
