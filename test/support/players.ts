import { assert } from '../../src/base/errors.ts'
import { createTracer, type Tracer } from '../../src/proof/evaluate/trace.ts'
import {
  IPTABLES,
  IPTABLES_OPTIMIZED,
  IPVS,
  IPVS_CHAINS,
  type Mode,
  NFTABLES,
  type Stateful,
} from './pipeline.ts'
import { createIptablesTracer, createIpvsTracer } from './tracers.ts'

/** A mode, and how packets are followed through what it computed. */
export interface Player<State extends Stateful> {
  readonly mode: Mode<State>
  readonly tracerOf: (state: State) => Tracer
  /** What this mode refuses beside what every mode does. */
  readonly refusesToo?: RegExp
}

export const BY_RULES: Player<(typeof NFTABLES)['empty']> = {
  mode: NFTABLES,
  tracerOf: ({ ruleset }) => createTracer(ruleset),
}
export const BY_IPVS: Player<(typeof IPVS)['empty']> = {
  mode: IPVS,
  tracerOf: state => createIpvsTracer(state),
}
export const BY_IPVS_CHAINS = { ...BY_IPVS, mode: IPVS_CHAINS }
export const BY_CHAINS: Player<(typeof IPTABLES)['empty']> = {
  refusesToo: /kprobe\.io\/(balance\] local-first|weights\] zone=zone-a)/,
  mode: IPTABLES,
  tracerOf: state => {
    assert(state.kind === 'rendered', 'nothing was rendered')
    return createIptablesTracer(state)
  },
}
export const BY_FEWER_RULES = { ...BY_CHAINS, mode: IPTABLES_OPTIMIZED }
