import type { Frontend, Route } from './frontend.ts'
import type { Service } from './service.ts'
import type { Survey } from './topology.ts'

const REJECT: Route = { kind: 'reject' }
const DROP: Route = { kind: 'drop' }
const OVER_CLUSTER: Route = { kind: 'internal', over: 'cluster' }
const OVER_LOCAL: Route = { kind: 'internal', over: 'local' }
const EXTERNAL_CLUSTER: Route = { kind: 'external-cluster' }
const EXTERNAL_LOCAL: Route = { kind: 'external-local' }

/** What meets a client at the ClusterIP. */
export function internalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  if (service.internalTrafficPolicy === 'Cluster') return OVER_CLUSTER
  return found.localReady || found.localDraining ? OVER_LOCAL : DROP
}

/** What meets a client at any other address. Policy Local without a local endpoint is the empty list, not a route. */
export function externalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  return service.externalTrafficPolicy === 'Local' ? EXTERNAL_LOCAL : EXTERNAL_CLUSTER
}

function hasAny(found: Survey): boolean {
  return found.ready || found.draining
}

/** Which backend lists frontends read. */
export interface ListNeeds {
  readonly cluster: boolean
  readonly local: boolean
}

const NOTHING: ListNeeds = { cluster: false, local: false }
const CLUSTER: ListNeeds = { cluster: true, local: false }
const LOCAL: ListNeeds = { cluster: false, local: true }
const BOTH: ListNeeds = { cluster: true, local: true }

export function needsOf(frontends: readonly Frontend[]): ListNeeds {
  let needs = NOTHING
  for (let index = 0; index < frontends.length; index++) {
    const route = frontends[index]?.route
    const own = route === undefined ? NOTHING : needsForRoute(route)
    if (own === BOTH) return BOTH
    if (own === NOTHING) continue
    if (needs !== NOTHING && needs !== own) return BOTH
    needs = own
  }
  return needs
}

/** The same for one route. */
export function needsForRoute(route: Route): ListNeeds {
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return NOTHING
    case 'external-local':
      return BOTH
    case 'external-cluster':
      return CLUSTER
    case 'internal':
      return route.over === 'local' ? LOCAL : CLUSTER
  }
}
