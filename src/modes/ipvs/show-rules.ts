import type { Ip } from '../../base/ip.ts'
import { asleep, type ReadRules, remembered, tableObstacle } from '../common/read-rules.ts'
import type { ReadChain } from '../xt-common/read-chains.ts'
import { traceable } from '../xt-common/trace-tables.ts'
import type { IpvsState } from './state.ts'
import { createIpvsTracer } from './trace.ts'

/** Makes the rules of IPVS mode; `chains` are those of iptables where it writes them. */
export function rulesOfIpvs(
  state: IpvsState,
  chains: readonly ReadChain[],
  localIps: readonly Ip[],
): ReadRules {
  const tables = state.ruleset.tables.map(asleep)
  const common = chains.length === 0 ? undefined : traceable(chains)
  return {
    tracer: createIpvsTracer({ ...state, ruleset: { tables } }, common),
    localIps: new Set(localIps),
    obstacle: remembered((family, hook) => tableObstacle(state.ruleset.tables, family, hook)),
  }
}
