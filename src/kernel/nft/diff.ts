import type { Steps } from '../../base/steps.ts'
import type { Transaction } from './operation.ts'
import type { Ruleset } from './state.ts'

export interface RulesetDiff {
  readonly transaction: Transaction
  /** What the kernel holds once the transaction is committed. */
  readonly after: Ruleset
  /** False when something had to wait for a later transaction: then diffing `after` with the goal gives the rest. */
  readonly complete: boolean
}

export interface DiffOptions {
  /**
   * Sets whose elements a packet may reach through another set read a moment before: elements leaving a group that
   * lives on are removed one transaction later than the rest. So are chains that nothing wanted uses any more.
   */
  readonly lateSets: ReadonlySet<string>
}

export type DiffRulesets = (from: Ruleset, to: Ruleset, options: DiffOptions) => Steps<RulesetDiff>
