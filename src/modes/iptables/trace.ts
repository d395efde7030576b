import type { Tracer } from '../../kernel/nft/trace.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { createXtTracer } from '../xt-common/trace-tables.ts'
import { jumpsOf } from './jumps.ts'
import type { RenderedState } from './state.ts'
import { wantedChains } from './wanted.ts'

/**
 * Follows packets through our chains and the jumps that lead to them, as values; what others have in the same tables is
 * not known here. The rules of all Services are made once, for the first packet.
 */
export function createIptablesTracer(state: RenderedState): Tracer {
  return createXtTracer(() => ({
    chains: wantedChains(state),
    jumps: jumpsOf(state.statics),
    print: printRule,
  }))
}
