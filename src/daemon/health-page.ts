import { FAMILIES } from '../base/ip.ts'
import { compareTexts } from '../base/text.ts'
import type { Refusal } from '../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { LocatedRefusal } from '../source/source.ts'

/** Services and refusals that the page names; the counts include all. */
const NAMED = 3

/** Counts the refusals and the Services without endpoint, for `kprobe status`. Walks over all Services. */
export function servedJson(table: FrontendTable | undefined, refusedObjects: readonly LocatedRefusal[]) {
  const services = [...(table?.services.values() ?? [])]
  const refused = services.filter(({ refusals }) => refusals.length > 0)
  const ofServices = refused.toSorted(byName).map(({ service, refusals }) => ({ service, refusals }))
  const wholes = refusedObjects.map(({ refusal }) => ({ service: refusal.service, refusals: [refusal] }))
  const without = services.filter(hasNoEndpoint).toSorted(byName)
  const families = FAMILIES.filter(family =>
    services.some(({ ports }) => ports.some(port => port.family === family)),
  )
  return {
    families,
    refused: {
      services: refused.length,
      objects: refusedObjects.length,
      first: [...wholes, ...ofServices].slice(0, NAMED).flatMap(firstRefusal),
    },
    withoutEndpoint: {
      services: without.length,
      first: without.slice(0, NAMED).map(({ service }) => service),
    },
  }
}

function byName(a: ServiceFrontends, b: ServiceFrontends): number {
  return compareTexts(a.service, b.service)
}

interface Refused {
  readonly service: string | undefined
  readonly refusals: readonly Refusal[]
}

function firstRefusal({ service, refusals: [first] }: Refused) {
  if (first === undefined) return []
  const { object, field, value, reason } = first
  return [{ service, object, field, value, reason }]
}

/** Tests whether every connection to the Service is rejected or dropped for want of an endpoint. */
function hasNoEndpoint({ ports }: ServiceFrontends): boolean {
  const frontends = ports.flatMap(port => port.frontends)
  return (
    frontends.length > 0 && frontends.every(({ route: { kind } }) => kind === 'reject' || kind === 'drop')
  )
}
