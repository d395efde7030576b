import type { Config } from '../../config/config.ts'
import { type Promises, USUAL_PROMISES } from '../../model/promises.ts'
import type { Proving } from '../mode.ts'

/** What this mode does otherwise than nftables mode: docs/differences.md. */
export const IPVS_PROMISES: Promises = {
  ...USUAL_PROMISES,
  bindsAddresses: true,
  masqueradesDirectly: true,
  roundsShares: false,
}

/** All rules are in our own tables. */
export function ipvsProving({ ipvs }: Pick<Config, 'ipvs'>): Proving {
  const lacks = 'IPVS mode with --ipvs-rules=iptables has no evaluator; with --ipvs-rules=nftables it has one'
  return {
    promises: IPVS_PROMISES,
    owns: () => false,
    usesIpvs: true,
    ...(ipvs.rules === 'iptables' && { lacks }),
  }
}
