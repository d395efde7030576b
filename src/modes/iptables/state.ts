import type { PersistentMap } from '../../base/persistent-map.ts'
import type { Observed } from '../../kernel/nft/observed.ts'
import type { Common } from '../../kernel/xt/scope-wanted.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
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
