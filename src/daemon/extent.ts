import type { Ruleset } from '../kernel/nft/state.ts'
import type { ChainNames } from '../modes/iptables/layout.ts'
import { serviceChainKind } from '../modes/iptables/layout.ts'
import type { IptablesState } from '../modes/iptables/state.ts'
import type { IpvsState } from '../modes/ipvs/state.ts'
import { ENDPOINTS_MAPS } from '../modes/nftables/layout.ts'
import { REDIRECT_MAPS } from '../modes/userspace/layout.ts'

/** How much a state of a mode serves, in units of the mode: two states of one mode compare. */
export interface Extent {
  readonly frontends: number
  readonly endpoints: number
}

export function nftablesExtent(ruleset: Ruleset): Extent {
  return elementExtent(
    ruleset,
    set => set === 'frontends' || set === 'nodeports',
    set => set === 'slots' || ENDPOINTS_MAPS.has(set),
  )
}

/** Endpoints of this mode are not in the kernel. */
export function userspaceExtent(ruleset: Ruleset): Extent {
  return elementExtent(
    ruleset,
    set => REDIRECT_MAPS.has(set),
    () => false,
  )
}

export function ipvsExtent({ servers }: IpvsState): Extent {
  const endpoints = servers.values().reduce((sum, { destinations }) => sum + destinations.size, 0)
  return { frontends: servers.size, endpoints }
}

/** Ports that have an endpoint, each by its chain; of a rendered state, whose chains are not made yet, as it will have. */
export function iptablesExtent(state: IptablesState, names: ChainNames): Extent {
  if (state.kind === 'rendered') {
    const ports = state.frontends.services.values().flatMap(service => service.ports)
    const served = ports.filter(({ cluster, local }) => cluster.length + local.length > 0)
    return { frontends: served.length, endpoints: state.endpoints }
  }
  const kinds = [...state.observed].flatMap(([, { chains }]) =>
    [...chains.keys()].map(name => serviceChainKind(names, name)),
  )
  const frontends = kinds.filter(kind => kind === 'SVC' || kind === 'SVL').length
  return { frontends, endpoints: kinds.filter(kind => kind === 'SEP').length }
}

type OfSet = (set: string) => boolean

function elementExtent({ tables }: Ruleset, isFrontend: OfSet, isEndpoint: OfSet): Extent {
  let frontends = 0
  let endpoints = 0
  for (const { elements } of tables)
    for (const group of elements.values())
      for (const { set } of group) {
        if (isFrontend(set)) frontends++
        else if (isEndpoint(set)) endpoints++
      }
  return { frontends, endpoints }
}
