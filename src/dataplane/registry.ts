import type { Dataplane, DataplaneName } from '../reconcile/dataplane.ts'
import type { NftablesPlan } from './nftables/plan.ts'
import { createNftablesPlane, type NftablesPlaneOptions } from './nftables/plane.ts'
import type { NftablesState } from './nftables/state.ts'

/** What each plane of this build needs to be built. Flags that ask for another are refused where they are read. */
export interface DataplaneOptions {
  readonly nftables: NftablesPlaneOptions
}

export type AnyDataplane = Dataplane<NftablesState, NftablesPlan>

export function createDataplane(
  mode: DataplaneName & keyof DataplaneOptions,
  options: DataplaneOptions,
): AnyDataplane {
  switch (mode) {
    case 'nftables':
      return createNftablesPlane(options.nftables)
  }
}
