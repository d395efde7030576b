import { cut, listFor, trimmed } from '../base/compact.ts'
import { isDraining } from './candidates.ts'
import type { Endpoint } from './endpoint.ts'
import type { Backend } from './frontend.ts'
import type { PortEndpoints } from './port-endpoints.ts'
import type { ListNeeds } from './routes.ts'
import type { Place, Survey } from './topology.ts'

/** Whether an endpoint is in one of the two lists of a port, and why, as words that follow "because it is". */
export interface Verdict {
  readonly isIn: boolean
  readonly reason: string
}

const READY: Verdict = { isIn: true, reason: 'ready' }
const HINTED_TO_NODE: Verdict = { isIn: true, reason: 'ready and hinted to this node' }
const HINTED_TO_ZONE: Verdict = { isIn: true, reason: 'ready and hinted to the zone of this node' }
const HINTED_TO_OTHER_NODES: Verdict = { isIn: false, reason: 'ready but hinted to other nodes' }
const HINTED_TO_OTHER_ZONES: Verdict = { isIn: false, reason: 'ready but hinted to other zones' }
const NOT_READY: Verdict = { isIn: false, reason: 'not ready' }
const DRAINING_NEEDED: Verdict = {
  isIn: true,
  reason: 'terminating but still serving, and no endpoint is ready',
}
const DRAINING_SPARE: Verdict = { isIn: false, reason: 'terminating while another endpoint is ready' }
const ELSEWHERE: Verdict = { isIn: false, reason: 'not on this node' }
const LOCAL_DRAINING_NEEDED: Verdict = {
  isIn: true,
  reason: 'terminating but still serving, and no endpoint on this node is ready',
}
const LOCAL_DRAINING_SPARE: Verdict = {
  isIn: false,
  reason: 'terminating while another endpoint on this node is ready',
}

/** Policy Cluster: the ready endpoints that hints leave; without any, those that still serve while terminating. */
export function clusterVerdict(endpoint: Endpoint, found: Survey, place: Place): Verdict {
  if (endpoint.conditions.ready) return hintVerdict(endpoint, found, place)
  if (!isDraining(endpoint)) return NOT_READY
  return found.ready ? DRAINING_SPARE : DRAINING_NEEDED
}

/** Policy Local: the ready endpoints of this node whatever their hints; without any, those that still serve. */
export function localVerdict(endpoint: Endpoint, found: Survey, place: Place): Verdict {
  if (endpoint.nodeName !== place.nodeName) return ELSEWHERE
  if (endpoint.conditions.ready) return READY
  if (!isDraining(endpoint)) return NOT_READY
  return found.localReady ? LOCAL_DRAINING_SPARE : LOCAL_DRAINING_NEEDED
}

function hintVerdict(endpoint: Endpoint, found: Survey, place: Place): Verdict {
  switch (found.topology) {
    case 'none':
      return READY
    case 'PreferSameNode':
      return endpoint.hints.forNodes.includes(place.nodeName) ? HINTED_TO_NODE : HINTED_TO_OTHER_NODES
    case 'PreferSameZone':
      return endpoint.hints.forZones.includes(place.zone) ? HINTED_TO_ZONE : HINTED_TO_OTHER_ZONES
  }
}

/** The two lists a port may need; a list that no frontend uses stays empty. */
interface BackendLists {
  readonly cluster: readonly Backend[]
  readonly local: readonly Backend[]
}

interface Selecting {
  readonly among: PortEndpoints
  readonly found: Survey
  readonly place: Place
}

export function selectBackends(selecting: Selecting, needs: ListNeeds): BackendLists {
  const { among, found, place } = selecting
  const { endpoints } = among
  const cluster = listFor<Backend>(needs.cluster ? endpoints.length : 0)
  const local: Backend[] = []
  let count = 0
  for (let index = 0; index < endpoints.length; index++) {
    const endpoint = endpoints[index]
    if (endpoint === undefined) continue
    const inCluster = needs.cluster && clusterVerdict(endpoint, found, place).isIn
    const inLocal = needs.local && localVerdict(endpoint, found, place).isIn
    if (!inCluster && !inLocal) continue
    const isLocal = endpoint.nodeName === place.nodeName
    const backend = { ip: endpoint.ip, port: portAt(among, index), local: isLocal }
    if (inCluster) cluster[count++] = backend
    if (inLocal) local.push(backend)
  }
  return { cluster: cut(cluster, count), local: trimmed(local) }
}

function portAt({ ports }: PortEndpoints, index: number): number {
  return typeof ports === 'number' ? ports : (ports[index] ?? 0)
}
