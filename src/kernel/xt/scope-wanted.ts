import type { XtChain, XtEntry, XtJump } from './scope.ts'
import { chainKey, ruleKey, sameRules } from './scope-operation.ts'

/** The chains and entries that one owner wants. */
export interface Asked {
  readonly chains: readonly XtChain[]
  readonly entries: readonly XtEntry[]
}

/** The chains and jumps that all owners share. */
export interface Common {
  /** By chainKey: chains that may hold entries. */
  readonly chains: ReadonlyMap<string, XtChain>
  readonly jumps: readonly XtJump[]
}

export const NOTHING_COMMON: Common = { chains: new Map(), jumps: [] }

/** Creates the common state. It keeps those jumps of `before` that are never removed. */
export function commonOf(
  chains: readonly XtChain[],
  jumps: readonly XtJump[],
  before: readonly XtJump[] = [],
): Common {
  const asked = new Set(jumps.map(jumpKey))
  const staying = before.filter(jump => !jump.removed && !asked.has(jumpKey(jump)))
  return {
    chains: new Map(chains.map(chain => [chainKey(chain, chain.name), chain])),
    jumps: staying.length === 0 ? jumps : [...jumps, ...staying],
  }
}

export function jumpKey(jump: Pick<XtJump, 'family' | 'table' | 'chain' | 'rule'>): string {
  return `${chainKey(jump, jump.chain)} ${ruleKey(jump.rule)}`
}

/**
 * Returns whether a change of the common chains rewrites one of them, with the entries of all owners. A diff then
 * needs every owner.
 */
export function rewritesCommon(before: Common, after: Common): boolean {
  if (before.chains === after.chains) return false
  if ([...before.chains.keys()].some(key => !after.chains.has(key))) return true
  return [...after.chains].some(([key, chain]) => {
    const was = before.chains.get(key)
    return was === undefined || !sameRules(was.rules, chain.rules)
  })
}
