import { systemClock } from '../../base/clock.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { finishInSlices, type Slicing, type Steps } from '../../base/steps.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import { type DiffOptions, diffRulesets } from '../../kernel/nft/diff.ts'
import { LATE_GROUP } from '../../kernel/nft/diff-elements.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import { type Dataplane, generationOf, guardOf, type WriterCommit } from '../../reconcile/dataplane.ts'
import { diffRelays } from '../common/relay/relay.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import { deleteTables, receiptOf, transactionPlan } from '../common/transaction.ts'
import { isOurs } from './cleanup.ts'
import { LATE_SETS } from './layout.ts'
import type { LocalhostRelays } from './localhost-relays.ts'
import { adoptRuleset } from './observe.ts'
import type { NftablesOptions } from './options.ts'
import { renderState } from './render.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

interface NftablesPlaneOptions {
  readonly client: NftClient
  readonly options: NftablesOptions
  /** As in Dataplane. Without it, the reconciler polls the generation. */
  readonly watchGeneration?: Dataplane<NftablesState>['watchGeneration']
  /**
   * Reports which processes commit to nf_tables. Without it, drift is repaired, but the log does not name the
   * process.
   */
  readonly watchWriters?: (report: (commit: WriterCommit) => void) => () => void
  /** Serves node ports at localhost. Without it, they are not served there. */
  readonly relays?: LocalhostRelays
  /** How observing shares the event loop. */
  readonly slicing?: Slicing
}

const SLICING: Slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }

/**
 * Creates the data plane of nftables mode: the effect of kube-proxy's nftables mode, in tables with kprobe's
 * own layout. See README.md.
 */
export function createNftablesPlane(given: NftablesPlaneOptions): Dataplane<NftablesState, NftablesPlan> {
  const { client, options, relays, slicing = SLICING } = given
  const names = NFT_FAMILIES.map(family => ({ family, name: options.tableName }))
  return {
    name: 'nftables',
    empty: EMPTY_STATE,
    render: (frontends, renderOptions) => renderState(frontends, renderOptions, options),
    diff: (from, to) => diffStates(from, to, relays?.isStarted === true ? from.relays : to.relays),
    generation: () => generationOf(client.generation()),
    ...(given.watchGeneration && { watchGeneration: given.watchGeneration }),
    watchWriters: given.watchWriters ?? (() => () => undefined),
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(names)
      const adopted = await finishInSlices(adoptRuleset(ruleset), slicing)
      const state = relays === undefined ? adopted : { ...adopted, relays: relays.wanted }
      return { state, generation: generationOf(generation), unsettled }
    },
    async commit(plan, commitOptions) {
      const result = await client.commit(plan.transaction, guardOf(commitOptions))
      if (result.outcome === 'committed') await relays?.follow(plan.relays, plan.after.relays)
      return receiptOf(result)
    },
    async cleanup() {
      await deleteTables(client, names, isOurs)
      if (relays === undefined) return
      await relays.follow({ put: [], remove: [...relays.wanted.values()] }, PersistentMap.empty())
    },
  }
}

const OPTIONS: DiffOptions = { lateSets: LATE_SETS }
const NONE: ReadonlySet<string> = new Set()

/**
 * Computes the transaction from one state to another. Some elements leave one transaction later (LATE_SETS). `open` are
 * the relays of the process that relays.
 */
function* diffStates(
  from: NftablesState,
  to: NftablesState,
  open: NftablesState['relays'],
): Steps<NftablesPlan> {
  let diff = yield* diffRulesets(from.ruleset, to.ruleset, OPTIONS)
  const crowded = diff.complete ? NONE : crowdedSets(to, diff.after)
  if (crowded.size > 0) {
    const lateSets = new Set([...LATE_SETS].filter(name => !crowded.has(name)))
    diff = yield* diffRulesets(from.ruleset, to.ruleset, { lateSets })
  }
  // All changes wait for an earlier transaction, but that transaction is empty.
  if (diff.transaction.length === 0 && !diff.complete)
    diff = yield* diffRulesets(diff.after, to.ruleset, OPTIONS)
  const { transaction, complete } = diff
  const after = complete ? to : { ...to, ruleset: diff.after }
  const relays = diffRelays(open, to.relays)
  const plan = transactionPlan({ transaction, complete, after, ruleset: after.ruleset })
  if (relays.lines.length === 0) return { ...plan, relays }
  return {
    ...plan,
    relays,
    empty: false,
    changes: plan.changes + relays.lines.length,
    *describe() {
      yield* plan.describe()
      yield* relays.lines
    },
  }
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
      const wanted = to.allocations[family].tally.elements.get(name) ?? 0
      if (wanted + late > (sets.get(name)?.size ?? 0)) crowded.add(name)
    }
  }
  return crowded
}
