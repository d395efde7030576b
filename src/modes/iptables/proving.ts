import type { Config } from '../../config/config.ts'
import type { Promises } from '../../model/promises.ts'
import type { Proving } from '../mode.ts'
import { chainNames, isOurChain } from '../xt-common/layout.ts'
import { answersAtLoopback } from './settings.ts'

/** What this mode does otherwise than nftables mode: docs/differences.md. */
export const IPTABLES_PROMISES: Promises = {
  closesUnused: false,
  refusesBehind: true,
  masqueradesItself: true,
  answersAtLoopback: true,
  bindsAddresses: false,
  masqueradesDirectly: false,
  kubeProxyChains: false,
  roundsShares: false,
}

const TABLES = ['filter', 'nat', 'mangle'] as const

/** KUBE-FIREWALL is not among our chains: kubelet writes it, too. */
export function iptablesProving(
  config: Pick<Config, 'serviceProxyName' | 'iptables' | 'nodePortAddresses'>,
): Proving {
  const names = chainNames(config.serviceProxyName)
  return {
    promises: { ...IPTABLES_PROMISES, answersAtLoopback: answersAtLoopback(config) },
    owns: (table, chain) => {
      const known = TABLES.find(each => each === table)
      return known !== undefined && isOurChain(names, known, chain)
    },
  }
}
