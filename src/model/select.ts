import { cut, listFor, trimmed } from '../base/compact.ts'
import type { Family } from '../base/ip.ts'
import { finish, Pauses, type Steps } from '../base/steps.ts'
import type { Backend, Frontend, Route } from './frontend.ts'
import type {
  Endpoint,
  EndpointSlice,
  EndpointTraits,
  Service,
  ServicePortSpec,
  SliceList,
} from './service.ts'

/** How hints narrow the ready endpoints (KEP-2433, KEP-3015). */
export type TopologyMode = 'none' | 'PreferSameNode' | 'PreferSameZone'

/** The node and zone from which endpoints are chosen. */
interface Place {
  readonly nodeName: string
  /** Empty when unknown. */
  readonly zone: string
}

/** What must be known of all endpoints of a port before any one of them can be judged. */
export interface Survey {
  readonly topology: TopologyMode
  /** Some endpoint is ready. */
  readonly ready: boolean
  /** Some endpoint serves while it terminates. */
  readonly draining: boolean
  /** Some endpoint on this node is ready. */
  readonly localReady: boolean
  /** Some endpoint on this node serves while it terminates. */
  readonly localDraining: boolean
}

/** One pass over the endpoints of a port. */
export function survey(endpoints: readonly Endpoint[], place: Place): Survey {
  let ready = false
  let draining = false
  let localReady = false
  let localDraining = false
  for (let index = 0; index < endpoints.length; index++) {
    const traits = endpoints[index]?.traits
    if (traits === undefined) continue
    const isLocal = traits.nodeName === place.nodeName
    if (traits.conditions.ready) {
      ready = true
      localReady ||= isLocal
    }
    if (!isDraining(traits)) continue
    draining = true
    localDraining ||= isLocal
  }
  return { topology: topologyOf(endpoints, place), ready, draining, localReady, localDraining }
}

/** Hints of endpoints that are not ready say nothing; one ready endpoint without a hint turns them off for all. */
function topologyOf(endpoints: readonly Endpoint[], place: Place): TopologyMode {
  let hasNodeHints = true
  let hasZoneHints = place.zone !== ''
  let isNodeNamed = false
  let isZoneNamed = false
  for (let index = 0; index < endpoints.length; index++) {
    const traits = endpoints[index]?.traits
    if (traits?.conditions.ready !== true) continue
    const { forNodes, forZones } = traits.hints
    hasNodeHints &&= forNodes.length > 0
    hasZoneHints &&= forZones.length > 0
    if (!hasNodeHints && !hasZoneHints) return 'none'
    isNodeNamed ||= forNodes.includes(place.nodeName)
    isZoneNamed ||= forZones.includes(place.zone)
  }
  if (hasNodeHints && isNodeNamed) return 'PreferSameNode'
  return hasZoneHints && isZoneNamed ? 'PreferSameZone' : 'none'
}

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
interface ListNeeds {
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
export function clusterVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.conditions.ready) return hintVerdict(traits, found, place)
  if (!isDraining(traits)) return NOT_READY
  return found.ready ? DRAINING_SPARE : DRAINING_NEEDED
}

/** Policy Local: the ready endpoints of this node whatever their hints; without any, those that still serve. */
export function localVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.nodeName !== place.nodeName) return ELSEWHERE
  if (traits.conditions.ready) return READY
  if (!isDraining(traits)) return NOT_READY
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
    const { ip, traits } = endpoint
    const inCluster = needs.cluster && clusterVerdict(traits, found, place).isIn
    const inLocal = needs.local && localVerdict(traits, found, place).isIn
    if (!inCluster && !inLocal) continue
    const backend = { ip, port: portAt(among, index), local: traits.nodeName === place.nodeName }
    if (inCluster) cluster[count++] = backend
    if (inLocal) local.push(backend)
  }
  return { cluster: cut(cluster, count), local: trimmed(local) }
}

function portAt({ ports }: PortEndpoints, index: number): number {
  return typeof ports === 'number' ? ports : (ports[index] ?? 0)
}

/** An endpoint of one port of a Service, before anything is known about its use. */
interface Candidate {
  readonly endpoint: Endpoint
  readonly port: number
  readonly slice: EndpointSlice
  /** Where the slice has it. */
  readonly index: number
}

/** Which endpoints are asked for. Ports are joined by name and protocol; the number is each slice's own. */
export interface Wanted extends Pick<ServicePortSpec, 'name' | 'protocol'> {
  readonly family: Family
}

/** The endpoints of a port in one family, sorted by address and port, each once. */
export function candidatesOf(slices: SliceList, wanted: Wanted): readonly Candidate[] {
  return finish(candidatesInSteps(slices, wanted))
}

/** The same with pauses, for tens of thousands of endpoints. */
function* candidatesInSteps(slices: SliceList, wanted: Wanted): Steps<readonly Candidate[]> {
  const runs: (readonly Candidate[])[] = []
  const pauses = new Pauses()
  for (const slice of slices) {
    if (slice.family !== wanted.family) continue
    for (const { name, protocol, port } of slice.ports) {
      if (name !== wanted.name || protocol !== wanted.protocol) continue
      runs.push(slice.endpoints.map((endpoint, index) => ({ endpoint, port, slice, index })))
      if (pauses.due(slice.endpoints.length)) yield
    }
  }
  return yield* eachOnce(runs)
}

/** All endpoints of a family, sorted by address, each once, whatever ports their slices list; their port is 0. */
export function wholeCandidatesOf(slices: SliceList, family: Family): readonly Candidate[] {
  const runs = slices
    .filter(slice => slice.family === family)
    .map(slice => slice.endpoints.map((endpoint, index) => ({ endpoint, port: 0, slice, index })))
  return finish(eachOnce(runs))
}

/** Merges sorted lists, each candidate once. */
function* eachOnce(lists: readonly (readonly Candidate[])[]): Steps<readonly Candidate[]> {
  let runs = lists
  while (runs.length > 1) runs = yield* mergedInPairs(runs)
  const [sorted] = runs
  yield
  return sorted === undefined ? [] : isStrictlyUp(sorted) ? sorted : withoutDuplicates(sorted)
}

/** Half as many sorted lists of the same candidates; of equal ones those of earlier lists come first. */
function* mergedInPairs(runs: readonly (readonly Candidate[])[]): Steps<(readonly Candidate[])[]> {
  const pairs: (readonly Candidate[])[] = []
  const pauses = new Pauses()
  for (let index = 0; index < runs.length; index += 2) {
    const left = runs[index] ?? []
    const right = runs[index + 1] ?? []
    pairs.push(right.length === 0 ? left : merged(left, right))
    if (pauses.due(left.length + right.length)) yield
  }
  return pairs
}

function merged(left: readonly Candidate[], right: readonly Candidate[]): readonly Candidate[] {
  const all = listFor<Candidate>(left.length + right.length)
  let count = 0
  let at = 0
  for (let index = 0; index < left.length; index++) {
    const a = left[index]
    if (a === undefined) continue
    for (let b = right[at]; b !== undefined && compare(b, a) < 0; b = right[at]) {
      all[count++] = b
      at++
    }
    all[count++] = a
  }
  for (let b = right[at]; b !== undefined; b = right[at]) {
    all[count++] = b
    at++
  }
  return all
}

/** Serves what it has while it goes away. */
function isDraining({ conditions }: EndpointTraits): boolean {
  return conditions.serving && conditions.terminating
}

function isStrictlyUp(candidates: readonly Candidate[]): boolean {
  let last: Candidate | undefined
  for (const candidate of candidates) {
    if (last !== undefined && compare(last, candidate) >= 0) return false
    last = candidate
  }
  return true
}

/** All candidates are of one family, so that addresses compare as text. */
function compare(a: Candidate, b: Candidate): number {
  const left = a.endpoint.ip
  const right = b.endpoint.ip
  return left < right ? -1 : left > right ? 1 : a.port - b.port
}

function withoutDuplicates(sorted: readonly Candidate[]): readonly Candidate[] {
  const once: Candidate[] = []
  const uids: TargetUids = new Map()
  let from = 0
  for (let first = sorted[from]; first !== undefined; first = sorted[from]) {
    let to = from + 1
    for (let next = sorted[to]; next !== undefined && compare(first, next) === 0; next = sorted[to]) to++
    once.push(to === from + 1 ? first : best(sorted.slice(from, to), first, uids))
    from = to
  }
  return once
}

/**
 * Which of several entries for one address and port speaks for it. Of one pod that is in two slices, the newer slice
 * knows better. Between pods, a terminating one is a ghost whose address went on to another (k/k#135266), and a ready
 * one is the better bet.
 */
function best(run: readonly Candidate[], first: Candidate, uids: TargetUids): Candidate {
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

/** The endpoints of a port in one family, sorted by address and port, each once. */
export interface PortEndpoints {
  readonly endpoints: readonly Endpoint[]
  /** The port of all of them, or of each. */
  readonly ports: number | readonly number[]
}

/** The same choice as candidatesOf(), without the slices. */
export function* endpointsOf(slices: SliceList, wanted: Wanted): Steps<PortEndpoints> {
  const candidates = yield* candidatesInSteps(slices, wanted)
  return { endpoints: candidates.map(({ endpoint }) => endpoint), ports: candidates.map(({ port }) => port) }
}

const NONE: PortEndpoints = { endpoints: [], ports: 0 }

/**
 * The same without a copy where one slice says it all, as it mostly does; undefined when several slices have endpoints of
 * the port, or one has an address twice.
 */
export function endpointsOfOneSlice(slices: SliceList, wanted: Wanted): PortEndpoints | undefined {
  let only: PortEndpoints = NONE
  for (let index = 0; index < slices.length; index++) {
    const slice = slices[index]
    if (slice === undefined || slice.family !== wanted.family) continue
    for (let at = 0; at < slice.ports.length; at++) {
      const its = slice.ports[at]
      if (its === undefined || its.name !== wanted.name || its.protocol !== wanted.protocol) continue
      if (only !== NONE || !isOnce(slice)) return undefined
      only = { endpoints: slice.endpoints, ports: its.port }
    }
  }
  return only
}

/** Whether each address is there once; they are sorted. */
function isOnce({ endpoints }: EndpointSlice): boolean {
  let last = ''
  for (let index = 0; index < endpoints.length; index++) {
    const ip = endpoints[index]?.ip ?? ''
    if (ip === last) return false
    last = ip
  }
  return true
}
