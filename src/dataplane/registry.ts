import type { Dataplane, DataplaneName } from '../reconcile/dataplane.ts'
import type { NftablesPlan } from './nftables/plan.ts'
import { createNftablesPlane, type NftablesPlaneOptions } from './nftables/plane.ts'
import type { NftablesState } from './nftables/state.ts'

/** What each plane needs to be built. */
export interface DataplaneOptions {
  readonly nftables: NftablesPlaneOptions
}

export type AnyDataplane = Dataplane<NftablesState, NftablesPlan>

/** The proxy mode asked for is a known one, but this build does not have it. */
export class UnsupportedModeError extends Error {
  override readonly name = 'UnsupportedModeError'
  readonly mode: DataplaneName

  constructor(mode: DataplaneName) {
    super(`proxy mode ${mode} is not part of this build; it has: ${DATAPLANE_NAMES.join(', ')}`)
    this.mode = mode
  }
}

/** Modes of this build. */
export const DATAPLANE_NAMES: readonly DataplaneName[] = ['nftables']

/** Throws an UnsupportedModeError. */
export function createDataplane(mode: DataplaneName, options: DataplaneOptions): AnyDataplane {
  if (mode === 'nftables') return createNftablesPlane(options.nftables)
  throw new UnsupportedModeError(mode)
}
