import type { XtChain } from '../../kernel/xt/scope.ts'
import { contentWith } from '../../kernel/xt/scope-changes.ts'
import { chainKey } from '../../kernel/xt/scope-operation.ts'
import { rulesIn } from './render.ts'
import type { RenderedState } from './state.ts'

/**
 * Every chain of ours as it should be, once, with its entries among its rules; those that are always there come last. A
 * walk over all Services.
 */
export function* wantedChains(state: RenderedState): Iterable<XtChain> {
  const entries = new Map<string, { readonly rule: XtChain['rules'][number]; readonly owner: string }[]>()
  const seen = new Set<string>()
  for (const owner of state.frontends.services.keys()) {
    const rules = rulesIn(state, owner)
    for (const { rule, ...place } of rules.entries) {
      const key = chainKey(place, place.chain)
      const same = entries.get(key)
      if (same === undefined) entries.set(key, [{ rule, owner }])
      else same.push({ rule, owner })
    }
    for (const chain of rules.chains) {
      const key = chainKey(chain, chain.name)
      if (chain.shared === true && seen.has(key)) continue
      if (chain.shared === true) seen.add(key)
      yield chain
    }
  }
  for (const chain of state.common.chains.values()) {
    const content = contentWith(chain, entries.get(chainKey(chain, chain.name)) ?? [], undefined)
    yield { ...chain, rules: content.rules.map(({ rule }) => rule), last: [] }
  }
}
