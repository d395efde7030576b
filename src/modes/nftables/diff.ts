import type { Steps } from '../../base/steps.ts'
import { type DiffOptions, diffRulesets } from '../../kernel/nft/diff.ts'
import { LATE_GROUP } from '../../kernel/nft/diff-elements.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import { transactionPlan } from '../common/transaction.ts'
import { LATE_SETS } from './layout.ts'
import type { NftablesPlan, NftablesState } from './state.ts'

const OPTIONS: DiffOptions = { lateSets: LATE_SETS }
const NONE: ReadonlySet<string> = new Set()

/** Computes the transaction from one state to another. Some elements leave one transaction later (LATE_SETS). */
export function* diffStates(from: NftablesState, to: NftablesState): Steps<NftablesPlan> {
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
