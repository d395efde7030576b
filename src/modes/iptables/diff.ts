import type { Steps } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import {
  chainKey,
  type IsOurs,
  type ScopeOperation,
  type ScopeOperations,
  type ServiceRules,
  type XtEntry,
} from '../../kernel/xt/scope.ts'
import { ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import type { OwnedEntry } from '../../kernel/xt/scope-draft.ts'
import { type EntryLists, WrittenDiff } from '../../kernel/xt/scope-written.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Plan } from '../../reconcile/dataplane.ts'
import { staysAsIs } from '../common/tables.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { isOurChain } from '../xt-common/layout.ts'
import { entriesIn, rulesIn, servicesBetween } from './render.ts'
import type { IptablesState, ObservedState, RenderedState } from './state.ts'

/** One batch for the tables of both families. */
export interface IptablesPlan extends Plan<IptablesState> {
  readonly operations: ScopeOperations
}

/**
 * Makes the operations that lead from one state to a rendered one. Between two rendered states it compares only
 * Services that changed, unless the inputs of all rules changed. Throws when `to` is a state that was read.
 */
export function* diffStates(from: IptablesState, to: IptablesState, codec: RuleCodec): Steps<IptablesPlan> {
  if (to.kind !== 'rendered') throw new Error('cannot write a state that was read from the kernel')
  const operations =
    from.kind === 'rendered' ? yield* sinceCommit(from, to) : yield* sinceRead(from, to, codec)
  const isKept = ({ family }: ScopeOperation): boolean => staysAsIs(family, to.without)
  return makePlan(to.without.size === 0 ? operations : operations.filter(each => !isKept(each)), to)
}

const NO_ENTRIES: readonly OwnedEntry[] = []

function* sinceRead(from: ObservedState, to: RenderedState, codec: RuleCodec): Steps<ScopeOperations> {
  const { names } = to.statics.options
  const isOurs: IsOurs = (table, name) => isOurChain(names, table, name)
  const diff = new ScopeDiff(from.observed, { codec, isOurs })
  const lists = new Map<string, OwnedEntry[]>()
  for (const service of to.frontends.services.keys()) {
    const { chains, entries } = rulesIn(to, service)
    for (const chain of chains) diff.want({ chain, owner: service, entries: NO_ENTRIES })
    addEntries(lists, service, entries)
    yield
  }
  for (const [key, chain] of to.fixed.chains) {
    diff.want({ chain, owner: undefined, entries: lists.get(key) ?? NO_ENTRIES })
    lists.delete(key)
    yield
  }
  for (const key of lists.keys()) throw new Error(`${key}: entries in a chain that does not exist`)
  return yield* diff.finish(to.fixed.jumps)
}

function* sinceCommit(from: RenderedState, to: RenderedState): Steps<ScopeOperations> {
  const isAll = from.statics.serviceKey !== to.statics.serviceKey
  const services = isAll
    ? new Set([...from.frontends.services.keys(), ...to.frontends.services.keys()])
    : servicesBetween(from, to)
  const diff = new WrittenDiff(from.fixed, to.fixed)
  for (const service of services) {
    diff.compare(
      service,
      withoutSharedOf(rulesIn(from, service), to),
      withoutSharedOf(rulesIn(to, service), from),
    )
    yield
  }
  return yield* diff.finish(yield* entriesOf(to, diff.changedChains))
}

/** Omits chains that Services need in the other state, too: the first of them adds such a chain, the last removes it. */
function withoutSharedOf({ chains, entries }: ServiceRules, other: RenderedState): ServiceRules {
  if (other.sharedChains.size === 0 || !chains.some(({ shared }) => shared)) return { chains, entries }
  return {
    chains: chains.filter(
      chain => chain.shared !== true || !other.sharedChains.has(chainKey(chain, chain.name)),
    ),
    entries,
  }
}

/** Collects the entries of all Services in these chains. */
function* entriesOf(state: RenderedState, chains: ReadonlySet<string>): Steps<EntryLists> {
  const lists = new Map<string, OwnedEntry[]>()
  if (chains.size === 0) return lists
  for (const service of state.frontends.services.keys()) {
    addEntries(lists, service, entriesIn(state, service), chains)
    yield
  }
  return lists
}

function addEntries(
  lists: Map<string, OwnedEntry[]>,
  owner: ServiceKey,
  entries: readonly XtEntry[],
  chains?: ReadonlySet<string>,
): void {
  for (const { rule, sequence, ...place } of entries) {
    const key = chainKey(place, place.chain)
    if (chains === undefined || chains.has(key)) append(lists, key, { rule, owner, sequence })
  }
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
