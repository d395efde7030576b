import type { XtMatch, XtRule } from '../../../kernel/xt/rule.ts'
import { type ChainNames, serviceChainKind } from '../../xt-common/layout.ts'

/**
 * The rules of a chain without those that change nothing: rules that only count, and rules that repeat an earlier one
 * which has had its say. Comments are no difference.
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

/** Equal for rules that do the same. */
export function ruleKey(rule: XtRule): string {
  return JSON.stringify(withoutComments(rule))
}

export function withoutComments(rule: XtRule): XtRule {
  const matches = rule.matches.filter(({ kind }) => kind !== 'comment')
  return matches.length === rule.matches.length ? rule : { ...rule, matches }
}

/** Says the same of a packet however often it is asked, and nobody sees that it was. */
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
 * Whether a packet that it matched either goes no further, or takes nothing from a second time. A chain of a Service
 * that lets a packet come back has not decided by chance: what it balances never comes back.
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
