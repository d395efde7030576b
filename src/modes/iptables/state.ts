import type { PersistentMap } from '../../base/persistent-map.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import type { Common } from '../../kernel/xt/scope-wanted.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { Extent } from '../mode.ts'
import { type ChainNames, serviceChainKind } from '../xt-common/layout.ts'
import type { Statics } from './statics.ts'

/** What the kernel holds of ours, or should. */
export type IptablesState = RenderedState | ObservedState

/**
 * Rules are not kept: they follow from the Services and the statics, and are made when a difference asks for them. So a
 * state takes as much memory as what it does not share with the one before.
 */
export interface RenderedState {
  readonly kind: 'rendered'
  readonly frontends: FrontendTable
  /** Services that are left out. */
  readonly without: ReadonlySet<string>
  readonly statics: Statics
  /** What is there whatever Services there are; made anew with the statics alone. */
  readonly common: Common
  /** Distinct endpoints, summed over all ports of all Services. */
  readonly endpoints: number
  /** Number of Services that ask for a chain which several may ask for, by `ip nat NAME`. */
  readonly sharedChains: PersistentMap<number>
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

/** Read from the kernel. */
export interface ObservedState {
  readonly kind: 'observed'
  readonly observed: Observed
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

/** A kernel in which nothing of ours exists. */
export const EMPTY_STATE: ObservedState = { kind: 'observed', observed: new Map(), refusals: new Map() }

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
