import type { PersistentMap } from '../../base/persistent-map.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import type { Common } from '../../kernel/xt/scope-wanted.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { Extent } from '../mode.ts'
import { type ChainNames, serviceChainKind } from '../xt-common/layout.ts'
import type { Statics } from './statics.ts'

/** The objects of ours that the kernel holds, or should hold. */
export type IptablesState = RenderedState | ObservedState

/**
 * A state without rules: rules depend on the Services and the statics, and are made when a diff needs them. A state
 * therefore takes only the memory of what it does not share with the one before.
 */
export interface RenderedState {
  readonly kind: 'rendered'
  readonly frontends: FrontendTable
  /** The quarantined Services. */
  readonly without: ReadonlySet<string>
  readonly statics: Statics
  /** The objects that exist without Services. They are made again only with the statics. */
  readonly common: Common
  /** The number of distinct endpoints, summed over all ports of all Services. */
  readonly endpoints: number
  /** The number of Services that need a shared chain, by `ip nat NAME`. */
  readonly sharedChains: PersistentMap<number>
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

export interface ObservedState {
  readonly kind: 'observed'
  readonly observed: Observed
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

/** The state of a kernel in which nothing of ours exists. */
export const EMPTY_STATE: ObservedState = { kind: 'observed', observed: new Map(), refusals: new Map() }

/**
 * Counts ports that have an endpoint, each by its chain. For a rendered state, the chains that it will have count.
 */
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
