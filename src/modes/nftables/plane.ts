import { atOnce } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import { type DiffOptions, LATE_GROUP } from '../../kernel/nft/diff-elements.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import { type Dataplane, generationOf } from '../../reconcile/dataplane.ts'
import { keptFrom } from '../common/tables.ts'
import { commitWith, transactionPlan } from '../common/transaction-plan.ts'
import { bothNamed, deleteTables, inTables, type WatchedSocket, watchesOf } from '../common/writers.ts'
import { isOurs } from './cleanup.ts'
import { isNumbered, LATE_SETS } from './layout.ts'
import { type LocalhostForwarders, withForwarders } from './localhost.ts'
import { adoptRuleset } from './observe.ts'
import { renderState } from './render.ts'
import type { NftablesOptions } from './settings.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

interface NftablesPlaneOptions {
  readonly client: NftClient
  readonly options: NftablesOptions
  /** See watchesOf. */
  readonly writers?: WatchedSocket
  /** Serves node ports at localhost. Without it, they are not served there. */
  readonly forwarders?: LocalhostForwarders
}

/** Creates the data plane with the effect of kube-proxy's nftables mode, in tables of kprobe's own layout: README.md. */
export function createNftablesPlane(given: NftablesPlaneOptions): Dataplane<NftablesState, NftablesPlan> {
  const { client, options, forwarders } = given
  const commit = commitWith(client)
  const { watchGeneration, watchWriters } = watchesOf(given.writers, inTables(options.tableName))
  const names = bothNamed(options.tableName)
  return {
    name: 'nftables',
    empty: EMPTY_STATE,
    render: (frontends, given) => renderState(frontends, given, options),
    diff: (from, to) =>
      atOnce(() => diffStates(from, to, from.forwarders !== to.forwarders && forwarders?.isStarted === true)),
    generation: () => generationOf(client.generation()),
    watchGeneration,
    watchWriters,
    async observe(observeOptions) {
      const { ruleset, generation, unsettled } = await client.list(names, observeOptions)
      const adopted = adoptRuleset(ruleset)
      const state = forwarders === undefined ? adopted : { ...adopted, forwarders: forwarders.wanted }
      return { state, generation: generationOf(generation), unsettled }
    },
    async commit(plan, commitOptions) {
      const receipt = await commit(plan, commitOptions)
      if (receipt.outcome === 'committed' && plan.forwarders !== undefined)
        await forwarders?.apply(plan.forwarders, plan.after.forwarders)
      return receipt
    },
    async cleanup() {
      await deleteTables(client, names, isOurs)
      if (forwarders === undefined) return
      await forwarders.apply({ put: [], remove: [...forwarders.wanted.values()] }, PersistentMap.empty())
    },
  }
}

const OPTIONS: DiffOptions = { lateSets: LATE_SETS, leavesAtOnce: isNumbered }
const NONE: ReadonlySet<string> = new Set()

/**
 * Computes the transaction from one state to another. Some elements leave one transaction later (LATE_SETS). Unless
 * `isForwarding`, the forwarders of `from` count as those of `to`.
 */
export function diffStates(from: NftablesState, wanted: NftablesState, isForwarding: boolean): NftablesPlan {
  const ruleset = keptFrom(from.ruleset, wanted.ruleset, wanted.without)
  const to = ruleset === wanted.ruleset ? wanted : { ...wanted, ruleset }
  let diff = diffRulesets(from.ruleset, to.ruleset, OPTIONS)
  const crowded = diff.complete ? NONE : crowdedSets(to, diff.after)
  if (crowded.size > 0) {
    const lateSets = new Set([...LATE_SETS].filter(name => !crowded.has(name)))
    diff = diffRulesets(from.ruleset, to.ruleset, { ...OPTIONS, lateSets })
  }
  // All changes wait for an earlier transaction, but that transaction is empty.
  if (diff.transaction.length === 0 && !diff.complete) diff = diffRulesets(diff.after, to.ruleset, OPTIONS)
  const { transaction, complete } = diff
  const after = complete ? to : { ...to, ruleset: diff.after }
  const plan = transactionPlan({ transaction, complete, after, ruleset: after.ruleset })
  return isForwarding && from.forwarders !== to.forwarders ? withForwarders(plan, from.forwarders) : plan
}

/**
 * Gives the sets that cannot hold the elements to be removed later beside the new ones (ENFILE, and the
 * kernel would commit nothing). These sets lose the old elements in the same commit. That costs the few
 * packets that are between two lookups at that moment.
 */
function crowdedSets(to: NftablesState, after: Ruleset): ReadonlySet<string> {
  const crowded = new Set<string>()
  for (const { family, sets, elements } of after.tables) {
    const waiting = new Map<string, number>()
    for (const { set } of elements.get(LATE_GROUP) ?? []) waiting.set(set, (waiting.get(set) ?? 0) + 1)
    for (const [name, late] of waiting) {
      const wanted = to.allocations[family].tally.get(name) ?? 0
      if (wanted + late > (sets.get(name)?.size ?? 0)) crowded.add(name)
    }
  }
  return crowded
}
