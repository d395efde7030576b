import { type Promises, USUAL_PROMISES } from '../../model/promises.ts'
import type { Proving } from '../mode.ts'
import { isIpvsChain } from '../xt-common/layout.ts'

/** What this mode does otherwise than nftables mode: docs/differences.md. */
const IPVS_PROMISES: Promises = {
  ...USUAL_PROMISES,
  bindsAddresses: true,
  masqueradesDirectly: true,
  roundsShares: false,
}

const TABLES = ['filter', 'nat', 'mangle'] as const

export function ipvsProving(): Proving {
  return {
    promises: IPVS_PROMISES,
    owns: (table, chain) => {
      const known = TABLES.find(each => each === table)
      return known !== undefined && isIpvsChain(known, chain)
    },
    usesIpvs: true,
  }
}
