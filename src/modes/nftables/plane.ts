import { systemClock } from '../../base/clock.ts'
import { finishInSlices, type Slicing, type Steps } from '../../base/steps.ts'
import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import { LATE_GROUP } from '../../kernel/nft/diff-elements.ts'
import type { Chain, Ruleset, Table } from '../../kernel/nft/state.ts'
import {
  type Dataplane,
  generationOf,
  guardOf,
  type Receipt,
  type WriterCommit,
} from '../../reconcile/dataplane.ts'
import { CHAIN_SERVICES } from '../common/chain-names.ts'
import { deleteTables } from '../common/commit-looked.ts'
import { transactionPlan } from '../common/describe-transaction.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import { refusalOf } from '../common/refusal.ts'
import { adoptRuleset } from './adopt.ts'
import type { NftablesOptions } from './options.ts'
import { renderState } from './render.ts'
import { hasOurSets, LATE_SETS } from './sets.ts'
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
  /** How observing shares the event loop. */
  readonly slicing?: Slicing
}

const SLICING: Slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }

/**
 * Creates the data plane of nftables mode: the effect of kube-proxy's nftables mode, in tables with kprobe's
 * own layout. See README.md.
 */
export function createNftablesPlane(given: NftablesPlaneOptions): Dataplane<NftablesState, NftablesPlan> {
  const { client, options, slicing = SLICING } = given
  const names = NFT_FAMILIES.map(family => ({ family, name: options.tableName }))
  return {
    name: 'nftables',
    empty: EMPTY_STATE,
    render: (frontends, renderOptions) => renderState(frontends, renderOptions, options),
    diff: diffStates,
    generation: () => generationOf(client.generation()),
    ...(given.watchGeneration && { watchGeneration: given.watchGeneration }),
    watchWriters: given.watchWriters ?? (() => () => undefined),
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(names)
      const state = await finishInSlices(adoptRuleset(ruleset), slicing)
      return { state, generation: generationOf(generation), unsettled }
    },
    async commit(plan, commitOptions) {
      return receiptOf(await client.commit(plan.transaction, guardOf(commitOptions)))
    },
    cleanup: () => deleteTables(client, names, isOurs),
  }
}

function* diffStates(from: NftablesState, to: NftablesState): Steps<NftablesPlan> {
  const options = { lateSets: LATE_SETS }
  let diff = yield* diffRulesets(from.ruleset, to.ruleset, options)
  const crowded = crowdedSets(to, diff.after)
  if (crowded.size > 0) {
    const lateSets = new Set([...LATE_SETS].filter(name => !crowded.has(name)))
    diff = yield* diffRulesets(from.ruleset, to.ruleset, { lateSets })
  }
  // All changes wait for an earlier transaction, but that transaction is empty.
  if (diff.transaction.length === 0 && !diff.complete)
    diff = yield* diffRulesets(diff.after, to.ruleset, options)
  const { transaction, complete } = diff
  const after = complete ? to : { ...to, ruleset: diff.after }
  return transactionPlan({ transaction, complete, after, ruleset: after.ruleset })
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

/**
 * Whether a table is ours. kube-proxy's own table has the same name, but not these sets. If kube-proxy wrote
 * into our table, the table is kube-proxy's.
 */
function isOurs({ sets, chains }: Table): boolean {
  return (
    hasOurSets({ sets }) && (!chains.has(KUBE_PROXY_CHAIN) || looksUpFrontends(chains.get(CHAIN_SERVICES)))
  )
}

/** A chain of kube-proxy's nftables mode. Both programs have a chain named services. */
const KUBE_PROXY_CHAIN = 'service-endpoints-check'

function looksUpFrontends(chain: Chain | undefined): boolean {
  const expressions = chain?.rules.flatMap(rule => rule.expressions) ?? []
  return expressions.some(expression => expression.kind === 'lookup' && expression.set === 'frontends')
}

function receiptOf({ failures, handles: _, ...result }: CommitResult): Receipt {
  return { ...result, generation: generationOf(result.generation), refusals: failures.map(refusalOf) }
}
