import { mapDefined } from '../base/collections.ts'
import type { Family } from '../base/ip.ts'
import { weighed } from './balance.ts'
import type { Backend, Frontend, PortFrontends, Route } from './frontend.ts'
import type {
  Endpoint,
  EndpointHints,
  EndpointSlice,
  EndpointTraits,
  PortBalance,
  Service,
  ServicePortSpec,
  SilentEndpoint,
  SliceList,
} from './service.ts'

/** An endpoint of one port of a Service, before anything is known about its use. */
export interface Candidate {
  readonly endpoint: Endpoint
  readonly port: number
  readonly slice: EndpointSlice
  /** The position in the slice. */
  readonly index: number
}

/** Selects endpoints. Ports are joined by name and protocol; each slice has its own port number. */
export interface Wanted extends Pick<ServicePortSpec, 'name' | 'protocol'> {
  readonly family: Family
}

/** The endpoints of a port in one family, sorted by address and port, each once. */
export function candidatesOf(slices: SliceList, wanted: Wanted): readonly Candidate[] {
  const all: Candidate[] = []
  for (const slice of slices)
    for (const port of portsIn(slice, wanted))
      slice.endpoints.forEach((endpoint, index) => {
        all.push({ endpoint, port, slice, index })
      })
  return eachOnce(all)
}

/** All endpoints of a family, sorted by address, each once, whatever ports their slices list; their port is 0. */
export function wholeCandidatesOf(slices: SliceList, family: Family): readonly Candidate[] {
  const all = slices
    .filter(slice => slice.family === family)
    .flatMap(slice => slice.endpoints.map((endpoint, index) => ({ endpoint, port: 0, slice, index })))
  return eachOnce(all)
}

/** The ports of a slice that have the wanted name and protocol; none in another family. */
function portsIn({ family, ports }: EndpointSlice, wanted: Wanted): readonly number[] {
  if (family !== wanted.family) return []
  return mapDefined(ports, ({ name, protocol, port }) =>
    name === wanted.name && protocol === wanted.protocol ? port : undefined,
  )
}

/** Sorts candidates, each once. Of equal ones, those of earlier slices come first for best(). */
function eachOnce(all: readonly Candidate[]): readonly Candidate[] {
  // A slice has its endpoints in order: only several slices, or one that has an address twice, need more.
  if (isAscending(all)) return all
  const once: Candidate[] = []
  const uids: TargetUids = new Map()
  let run: [Candidate, ...Candidate[]] | undefined
  for (const candidate of all.toSorted(compare)) {
    if (run !== undefined && compare(run[0], candidate) === 0) run.push(candidate)
    else {
      if (run !== undefined) once.push(best(run, uids))
      run = [candidate]
    }
  }
  if (run !== undefined) once.push(best(run, uids))
  return once
}

function isAscending(all: readonly Candidate[]): boolean {
  let before: Candidate | undefined
  for (const candidate of all) {
    if (before !== undefined && compare(before, candidate) >= 0) return false
    before = candidate
  }
  return true
}

/** All candidates are of one family, so that addresses compare as text. */
function compare(a: Candidate, b: Candidate): number {
  const left = a.endpoint.ip
  const right = b.endpoint.ip
  return left < right ? -1 : left > right ? 1 : a.port - b.port
}

/**
 * Chooses which of several entries for one address and port counts. Of one pod that is in two slices, the newer slice
 * knows better. Between pods, a terminating one is a ghost whose address went on to another (k/k#135266), and a ready
 * one is the better bet.
 */
function best(run: readonly [Candidate, ...Candidate[]], uids: TargetUids): Candidate {
  const [first] = run
  if (run.length === 1) return first
  const newest = new Map<string, number>()
  for (const candidate of run) {
    const uid = uidOf(candidate, uids)
    newest.set(uid, Math.max(newest.get(uid) ?? 0, candidate.slice.triggerTimeMs))
  }
  let winner: Candidate | undefined
  for (const candidate of run) {
    const uid = uidOf(candidate, uids)
    const isOutdated = uid !== '' && candidate.slice.triggerTimeMs < (newest.get(uid) ?? 0)
    if (isOutdated) continue
    if (winner === undefined || rank(candidate) > rank(winner)) winner = candidate
  }
  return winner ?? first
}

/** The UIDs of pods by slice, read when they are needed: an address is seldom in two slices. */
type TargetUids = Map<EndpointSlice, readonly string[]>

function uidOf({ slice, index }: Candidate, known: TargetUids): string {
  let uids = known.get(slice)
  if (uids === undefined) {
    uids = slice.targetUids?.split(',') ?? []
    known.set(slice, uids)
  }
  return uids[index] ?? ''
}

function rank({ endpoint }: Candidate): number {
  const { conditions } = endpoint.traits
  return (conditions.terminating ? 0 : 4) + (conditions.ready ? 2 : 0) + (conditions.serving ? 1 : 0)
}

/** Hints narrow the ready endpoints in these ways (KEP-2433, KEP-3015). */
type TopologyMode = 'none' | 'PreferSameNode' | 'PreferSameZone'

/** The node and zone from which endpoints are chosen. */
interface Place {
  readonly nodeName: string
  /** Empty when unknown. */
  readonly zone: string
}

/** Facts about all endpoints of a port, which must be known before any one of them can be judged. */
export interface Survey {
  readonly topology: TopologyMode
  readonly ready: boolean
  /** Some endpoint serves while it terminates. */
  readonly draining: boolean
  readonly localReady: boolean
  /** Some endpoint on this node serves while it terminates. */
  readonly localDraining: boolean
}

export function survey(among: readonly Candidate[], place: Place): Survey {
  let [ready, draining, localReady, localDraining] = [false, false, false, false]
  for (const { endpoint } of among) {
    const { traits } = endpoint
    const [isReady, drains] = [traits.conditions.ready, isDraining(traits)]
    const isLocal = traits.nodeName === place.nodeName
    ready ||= isReady
    draining ||= drains
    localReady ||= isLocal && isReady
    localDraining ||= isLocal && drains
  }
  return { topology: topologyOf(among, place), ready, draining, localReady, localDraining }
}

/** Hints of endpoints that are not ready are ignored; one ready endpoint without a hint turns them off for all. */
function topologyOf(among: readonly Candidate[], { nodeName, zone }: Place): TopologyMode {
  const isFor = (kind: keyof EndpointHints, name: string) =>
    among.every(({ endpoint: { traits } }) => !traits.conditions.ready || traits.hints[kind].length > 0) &&
    among.some(({ endpoint: { traits } }) => traits.conditions.ready && traits.hints[kind].includes(name))
  if (isFor('forNodes', nodeName)) return 'PreferSameNode'
  return zone !== '' && isFor('forZones', zone) ? 'PreferSameZone' : 'none'
}

const REJECT: Route = { kind: 'reject' }
const DROP: Route = { kind: 'drop' }
const OVER_CLUSTER: Route = { kind: 'internal', over: 'cluster' }
const OVER_LOCAL: Route = { kind: 'internal', over: 'local' }
const EXTERNAL_CLUSTER: Route = { kind: 'external-cluster' }
const EXTERNAL_LOCAL: Route = { kind: 'external-local' }

/** Gives the route of clients at the ClusterIP. */
export function internalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  if (service.internalTrafficPolicy === 'Cluster') return OVER_CLUSTER
  return found.localReady || found.localDraining ? OVER_LOCAL : DROP
}

/** Gives the route of clients at other addresses. Policy Local without a local endpoint is an empty list, not a route. */
export function externalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  return service.externalTrafficPolicy === 'Local' ? EXTERNAL_LOCAL : EXTERNAL_CLUSTER
}

function hasAny(found: Survey): boolean {
  return found.ready || found.draining
}

interface ListNeeds {
  readonly cluster: boolean
  readonly local: boolean
}

export function needsOf(frontends: readonly Pick<Frontend, 'route'>[]): ListNeeds {
  const needs = frontends.map(({ route }) => (route.kind === 'internal' ? route.over : route.kind))
  const local = needs.includes('external-local')
  return {
    cluster: local || needs.includes('external-cluster') || needs.includes('cluster'),
    local: local || needs.includes('local'),
  }
}

/** Says whether an endpoint is in one of the two lists of a port. The reason follows the words "because it is". */
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
const TERMINATED: Verdict = { isIn: false, reason: 'terminating and no longer serving' }
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
export function clusterVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.conditions.ready) return hintVerdict(traits, found, place)
  if (!isDraining(traits)) return traits.conditions.terminating ? TERMINATED : NOT_READY
  return found.ready ? DRAINING_SPARE : DRAINING_NEEDED
}

/** Policy Local: the ready endpoints of this node whatever their hints; without any, those that still serve. */
export function localVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.nodeName !== place.nodeName) return ELSEWHERE
  if (traits.conditions.ready) return READY
  if (!isDraining(traits)) return traits.conditions.terminating ? TERMINATED : NOT_READY
  return found.localReady ? LOCAL_DRAINING_SPARE : LOCAL_DRAINING_NEEDED
}

function hintVerdict({ hints }: EndpointTraits, found: Survey, place: Place): Verdict {
  switch (found.topology) {
    case 'none':
      return READY
    case 'PreferSameNode':
      return hints.forNodes.includes(place.nodeName) ? HINTED_TO_NODE : HINTED_TO_OTHER_NODES
    case 'PreferSameZone':
      return hints.forZones.includes(place.zone) ? HINTED_TO_ZONE : HINTED_TO_OTHER_ZONES
  }
}

interface Selecting {
  readonly among: readonly Candidate[]
  readonly found: Survey
  readonly place: Place
  /** Undefined for equal shares. */
  readonly balance?: PortBalance | undefined
  /** Silent endpoints of the Service, of any protocol; undefined for none. */
  readonly silent?: readonly SilentEndpoint[] | undefined
}

/** The two lists a port may need; a list that no frontend uses stays empty. */
export function selectBackends(
  selecting: Selecting,
  needs: ListNeeds,
): Pick<PortFrontends, 'cluster' | 'local'> {
  const { among, found, place, balance, silent } = selecting
  if (balance !== undefined || silent !== undefined) return weighedLists(selecting, needs)
  const cluster: Backend[] = []
  const local: Backend[] = []
  for (const { endpoint, port } of among) {
    const { ip, traits } = endpoint
    const inCluster = needs.cluster && clusterVerdict(traits, found, place).isIn
    const inLocal = needs.local && localVerdict(traits, found, place).isIn
    if (!inCluster && !inLocal) continue
    const backend = { ip, port, local: traits.nodeName === place.nodeName }
    if (inCluster) cluster.push(backend)
    if (inLocal) local.push(backend)
  }
  return { cluster, local }
}

function weighedLists(
  { among, found, place, balance, silent }: Selecting,
  needs: ListNeeds,
): Pick<PortFrontends, 'cluster' | 'local'> {
  const listOf = (isNeeded: boolean, verdictOf: typeof clusterVerdict) => {
    const chosen = among.filter(({ endpoint }) => isNeeded && verdictOf(endpoint.traits, found, place).isIn)
    const backends = chosen.map(({ endpoint: { ip, traits }, port }) => ({
      ip,
      port,
      local: traits.nodeName === place.nodeName,
    }))
    const traits = chosen.map(({ endpoint }) => endpoint.traits)
    return weighed(backends, traits, { balance, silent })
  }
  return { cluster: listOf(needs.cluster, clusterVerdict), local: listOf(needs.local, localVerdict) }
}

/** Serves what it has while it goes away. */
function isDraining({ conditions }: EndpointTraits): boolean {
  return conditions.serving && conditions.terminating
}
