import type { XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtEntry } from '../../../kernel/xt/scope.ts'
import type { ServiceChain, ServiceRules } from '../service-rules.ts'
import type { Statics } from '../statics.ts'
import { dividedChains, placeEntry, waysFrom } from './dispatch.ts'
import { ruleKey, withoutIdle } from './reduce.ts'
import { shareChains } from './share.ts'

/** What a Service asks for, in a form in which packets meet fewer rules and the kernel holds fewer. Verdicts stay the same. */
export function optimizeService(rules: ServiceRules, statics: Statics): ServiceRules {
  const { names } = statics.options
  const { chains, redirect } = shareChains(rules.chains, names)
  const redirected = (list: readonly XtRule[], { family }: ServiceChain): readonly XtRule[] =>
    withoutIdle(
      list.map(rule => redirect(rule, family)),
      names,
    )
  return {
    chains: chains.map(chain =>
      chain.shared
        ? chain
        : { ...chain, rules: redirected(chain.rules, chain), last: redirected(chain.last, chain) },
    ),
    entries: once(
      rules.entries.map(entry => placeEntry({ ...entry, rule: redirect(entry.rule, entry.family) }, statics)),
    ),
  }
}

/** The chains that are there whatever Services there are, and those among which their lists are divided. */
export function optimizeFixed(chains: readonly XtChain[], statics: Statics): readonly XtChain[] {
  const fixed = chains.map(chain => {
    const ways = waysFrom(chain, statics)
    return ways.length === 0 ? chain : { ...chain, rules: [...chain.rules, ...ways] }
  })
  return [...fixed, ...dividedChains(statics)]
}

function once(entries: readonly XtEntry[]): readonly XtEntry[] {
  if (entries.length < 2) return entries
  const seen = new Set<string>()
  return entries.filter(({ family, table, chain, rule }) => {
    const key = `${family} ${table} ${chain} ${ruleKey(rule)}`
    return !seen.has(key) && seen.add(key) !== undefined
  })
}
