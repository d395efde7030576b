import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Extent } from '../mode.ts'

type OfSet = (set: string) => boolean

/** Counts the elements of our own tables by the sets that contain them. */
export function elementExtent({ tables }: Ruleset, isFrontend: OfSet, isEndpoint: OfSet): Extent {
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
