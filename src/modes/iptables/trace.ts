import { finish } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import type { Config } from '../../config/config.ts'
import type { Tracer } from '../../kernel/evaluate/trace.ts'
import { printRule } from '../../kernel/xt/print.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import { chainKey, type XtChain } from '../../kernel/xt/scope.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ModeTracer } from '../mode.ts'
import { createXtTracer } from '../xt-common/trace.ts'
import { jumpsOf } from './chains.ts'
import { renderIptablesState, rulesIn } from './render.ts'
import { iptablesOptions } from './settings.ts'
import { EMPTY_STATE, type RenderedState } from './state.ts'

/** Traces packets through what the mode would put into an empty kernel. */
export function iptablesTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = iptablesOptions(config, {})
  const state = finish(renderIptablesState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return { ...createIptablesTracer(state), ownSource: () => undefined }
}

/**
 * Traces packets in memory through our chains and the jumps that lead to them. Rules of other programs in the same
 * tables are not included. The rules of all Services are made once, for the first packet.
 */
export function createIptablesTracer(state: RenderedState): Tracer {
  return createXtTracer(() => ({
    chains: wantedChains(state),
    jumps: jumpsOf(state.statics),
    print: printRule,
  }))
}

/**
 * Returns every wanted chain once, with its entries among its rules; the fixed chains come last. It visits all
 * Services.
 */
export function* wantedChains(state: RenderedState): Iterable<XtChain> {
  const entries = new Map<string, XtRule[]>()
  const seen = new Set<string>()
  for (const owner of state.frontends.services.keys()) {
    const rules = rulesIn(state, owner)
    for (const { rule, ...place } of rules.entries) append(entries, chainKey(place, place.chain), rule)
    for (const chain of rules.chains) {
      const key = chainKey(chain, chain.name)
      if (chain.shared === true && seen.has(key)) continue
      if (chain.shared === true) seen.add(key)
      yield chain
    }
  }
  for (const chain of state.common.chains.values()) {
    const rules = [...chain.rules, ...(entries.get(chainKey(chain, chain.name)) ?? []), ...chain.last]
    yield { ...chain, rules, last: [] }
  }
}
