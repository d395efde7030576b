import { stepsOver } from '../../base/clock.ts'
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
import type { KnownEndpoints } from './rules.ts'
import type { IptablesState, ObservedState, RenderedState } from './state.ts'

export interface IptablesPlan extends Plan<IptablesState> {
  readonly operations: ScopeOperations
}

/**
 * Makes the operations that lead from one state to a rendered one. Between two rendered states it compares only
 * Services that changed, unless the inputs of all rules changed. Throws when `to` is a state that was read.
 */
export function diffStates(from: IptablesState, to: IptablesState, codec: RuleCodec) {
  if (to.kind !== 'rendered') throw new Error('cannot write a state that was read from the kernel')
  const { services, compare, finish } =
    from.kind === 'rendered' ? sinceCommit(from, to) : sinceRead(from, to, codec)
  return stepsOver(services, { each: compare, result: () => planOf(finish(), to) })
}

interface Comparison {
  readonly services: Iterable<ServiceKey>
  readonly compare: (service: ServiceKey) => void
  readonly finish: () => ScopeOperations
}

const NO_ENTRIES: readonly OwnedEntry[] = []

function sinceRead(from: ObservedState, to: RenderedState, codec: RuleCodec): Comparison {
  const { names } = to.statics.options
  const isOurs: IsOurs = (table, name) => isOurChain(names, table, name)
  const diff = new ScopeDiff(from.observed, { codec, isOurs })
  const lists = new Map<string, OwnedEntry[]>()
  return {
    services: to.frontends.services.keys(),
    compare(service) {
      const { chains, entries } = rulesIn(to, service)
      for (const chain of chains) diff.want({ chain, owner: service, entries: NO_ENTRIES })
      addEntries(lists, service, entries)
    },
    finish() {
      for (const [key, chain] of to.fixed.chains) {
        diff.want({ chain, owner: undefined, entries: lists.get(key) ?? NO_ENTRIES })
        lists.delete(key)
      }
      for (const key of lists.keys()) throw new Error(`${key}: entries in a chain that does not exist`)
      return diff.finish(to.fixed.jumps)
    },
  }
}

function sinceCommit(from: RenderedState, to: RenderedState): Comparison {
  const isAll = from.statics.serviceKey !== to.statics.serviceKey
  const diff = new WrittenDiff(from.fixed, to.fixed)
  return {
    services: isAll
      ? new Set([...from.frontends.services.keys(), ...to.frontends.services.keys()])
      : servicesBetween(from, to),
    compare(service) {
      const known: KnownEndpoints = new Map()
      const before = rulesIn(from, service, known)
      const after = rulesIn(to, service, from.statics === to.statics ? known : undefined)
      diff.compare(service, withoutSharedOf(before, to), withoutSharedOf(after, from))
    },
    finish: () => diff.finish(entriesOf(to, diff.changedChains)),
  }
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

function entriesOf(state: RenderedState, chains: ReadonlySet<string>): EntryLists {
  const lists = new Map<string, OwnedEntry[]>()
  if (chains.size === 0) return lists
  for (const service of state.frontends.services.keys())
    addEntries(lists, service, entriesIn(state, service), chains)
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

function planOf(all: ScopeOperations, after: RenderedState): IptablesPlan {
  const isKept = ({ family }: ScopeOperation): boolean => staysAsIs(family, after.without)
  const operations = after.without.size === 0 ? all : all.filter(each => !isKept(each))
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
