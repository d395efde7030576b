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

export function needsOf(frontends: readonly Frontend[]): ListNeeds {
  let cluster = false
  let local = false
  for (const { route } of frontends) {
    if (route.kind === 'external-local') return { cluster: true, local: true }
    if (route.kind === 'external-cluster') cluster = true
    else if (route.kind === 'internal') {
      if (route.over === 'cluster') cluster = true
      else local = true
    }
  }
  return { cluster, local }
}
