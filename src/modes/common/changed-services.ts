import { PersistentMap } from '../../base/persistent-map.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'

/** What a state of any mode contains about how it was rendered. */
interface Rendered {
  readonly frontends: FrontendTable | undefined
  readonly without: ReadonlySet<ServiceKey>
  readonly refusals: ReadonlyMap<ServiceKey, unknown>
}

/**
 * Gives the Services to render again: those that changed, those that were put into or released from
 * quarantine, and those with refusals. Gives all Services when the base was not rendered.
 */
export function changedServices(
  frontends: FrontendTable,
  base: Rendered,
  without: ReadonlySet<ServiceKey>,
): Iterable<ServiceKey> {
  if (base.frontends === undefined) return frontends.services.keys()
  const changed = new Set(PersistentMap.changes(base.frontends.services, frontends.services))
  for (const key of base.without) if (!without.has(key)) changed.add(key)
  for (const key of without) if (!base.without.has(key)) changed.add(key)
  for (const key of base.refusals.keys()) changed.add(key)
  return changed
}
