import type { XtMatch, XtRule } from '../../../kernel/xt/rule.ts'
import { type ChainNames, serviceChainKind } from '../../xt-common/layout.ts'

/**
 * Removes rules without effect: rules that only count, and rules that repeat an earlier decisive one. Comments are
 * ignored.
 */
export function withoutIdle(rules: readonly XtRule[], names: ChainNames): readonly XtRule[] {
  const seen = new Set<string>()
  const left = rules.filter(rule => {
    if (!rule.matches.every(isSteady)) return true
    if (rule.target === undefined) return false
    if (!isSpent(rule, names)) return true
    const key = ruleKey(rule)
    return !seen.has(key) && seen.add(key) !== undefined
  })
  return left.length === rules.length ? rules : left
}

/** Returns equal keys for rules that do the same. */
export function ruleKey(rule: XtRule): string {
  return JSON.stringify(withoutComments(rule))
}

export function withoutComments(rule: XtRule): XtRule {
  const matches = rule.matches.filter(({ kind }) => kind !== 'comment')
  return matches.length === rule.matches.length ? rule : { ...rule, matches }
}

/** Returns whether a match gives the same result for a packet each time and has no side effect. */
function isSteady({ kind }: XtMatch): boolean {
  switch (kind) {
    case 'comment':
    case 'tcp':
    case 'udp':
    case 'sctp':
    case 'addrtype':
      return true
    default:
      return false
  }
}

/**
 * Returns whether a second equal rule has no effect on a packet that this rule matched. Either the packet goes no further, or
 * a repetition changes nothing. If a chain of a Service lets a packet return, it made no random choice: a balanced
 * packet never returns.
 */
function isSpent({ target }: XtRule, names: ChainNames): boolean {
  switch (target?.kind) {
    case 'ACCEPT':
    case 'DROP':
    case 'RETURN':
    case 'REJECT':
    case 'DNAT':
    case 'goto':
      return true
    case 'jump':
      return target.chain === names.markMasq || serviceChainKind(names, target.chain) !== undefined
    default:
      return false
  }
}
