import type { Steps } from '../../base/clock.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import { chainKey, type IsOurs, type ScopeOperations } from '../../kernel/xt/scope.ts'
import { ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import { type Asked, Committed, type Held, heldInKernel, rewritesCommon } from '../../kernel/xt/scope-held.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { isOurChain } from '../xt-common/layout.ts'
import { rulesIn, servicesBetween } from './render.ts'
import type { IptablesState, ObservedState, RenderedState } from './state.ts'

/** The two sides of a diff: `held`, and the rules of these Services. */
interface Sides {
  readonly held: Held
  readonly services: Iterable<ServiceKey>
  readonly asked: (service: ServiceKey) => Asked
}

/**
 * Makes the operations that lead from one state to a rendered one. Between two rendered states it visits only
 * Services that changed, unless the inputs of all rules changed. Throws when `to` is a state that was read.
 */
export function* diffStates(from: IptablesState, to: IptablesState, codec: RuleCodec): Steps<IptablesPlan> {
  if (to.kind !== 'rendered') throw new Error('cannot write a state that was read from the kernel')
  const { held, services, asked } =
    from.kind === 'rendered' ? yield* sinceCommit(from, to) : sinceRead(from, to)
  const { names } = to.statics.options
  const isOurs: IsOurs = (table, name) => isOurChain(names, table, name)
  const diff = new ScopeDiff(held, to.common, { codec, isOurs })
  for (const service of services) {
    diff.owner(service, asked(service))
    yield
  }
  return makePlan(yield* diff.finish(), to)
}

function sinceRead(from: ObservedState, to: RenderedState): Sides {
  const services = to.frontends.services.keys()
  return { held: heldInKernel(from.observed), services, asked: service => rulesIn(to, service) }
}

function* sinceCommit(from: RenderedState, to: RenderedState): Steps<Sides> {
  const isAll = from.statics.serviceKey !== to.statics.serviceKey || rewritesCommon(from.common, to.common)
  const services = new Set(
    isAll ? [...from.frontends.services.keys(), ...to.frontends.services.keys()] : servicesBetween(from, to),
  )
  const asked = (state: RenderedState, service: ServiceKey): Asked =>
    isAll ? rulesIn(state, service) : withoutKept(rulesIn(state, service), from, to)
  const held = new Committed(from.common, service => asked(from, service))
  if (from.sharedChains.size > 0) {
    for (const service of services) {
      held.addShared(service)
      yield
    }
  }
  return { held, services, asked: service => asked(to, service) }
}

/**
 * Omits chains that Services need in both states. Such a chain comes with the first Service and goes with the last.
 */
function withoutKept(rules: Asked, from: RenderedState, to: RenderedState): Asked {
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
