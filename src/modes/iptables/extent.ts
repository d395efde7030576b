import type { Extent } from '../mode.ts'
import { type ChainNames, serviceChainKind } from '../xt-common/layout.ts'
import type { IptablesState } from './state.ts'

/** Counts ports that have an endpoint, each by its chain; of a rendered state, whose chains are not made yet, as it will have. */
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
