import { lazyTracer, tracerOf } from '../../src/inspect/tracer.ts'
import { tracedIptables } from '../../src/modes/iptables/mode.ts'
import { tracedIpvs } from '../../src/modes/ipvs/trace.ts'
import { tracedUserspace } from '../../src/modes/userspace/traced.ts'
import { type Traceable, tracedChains } from '../../src/modes/xt-common/read-chains.ts'
import type { Tracer } from '../../src/proof/evaluate/trace.ts'

/* Tracers of what modes compute. */

export function createIptablesTracer(...args: Parameters<typeof tracedIptables>): Tracer {
  return lazyTracer(() => tracedIptables(...args))
}

export function createIpvsTracer(...args: Parameters<typeof tracedIpvs>): Tracer {
  return tracerOf(tracedIpvs(...args))
}

export function createUserspaceTracer(...args: Parameters<typeof tracedUserspace>): Tracer {
  return tracerOf(tracedUserspace(...args))
}

export function createXtTracer(made: () => Traceable): Tracer {
  return lazyTracer(() => tracedChains(made()))
}
