import { finish, Pauses, type Steps } from '../base/clock.ts'
import { listFor } from '../base/collections.ts'
import type { Family, Ip } from '../base/ip.ts'
import type { Endpoint, EndpointSlice, ServicePortSpec, SliceList } from './service.ts'

/** An endpoint of one port of a Service, before anything is known about its use. */
interface Candidate {
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
  return finish(candidatesInSteps(slices, wanted))
}

/** Does the work of candidatesOf() with pauses, for tens of thousands of endpoints. */
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

/** Merges pairs of sorted lists. Of equal candidates, those of earlier lists come first. */
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
 * Chooses which of several entries for one address and port counts. Of one pod that is in two slices, the newer slice
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

/** The endpoints of a port that several slices have, kept so that the next merge costs what has changed. */
export interface MergedEndpoints extends PortEndpoints {
  readonly wanted: Wanted
  /** The slices that were merged. */
  readonly slices: SliceList
  /** No address is in two slices. */
  readonly isOnce: boolean
}

interface MergeInput {
  readonly slices: SliceList
  readonly wanted: Wanted
  /** An earlier merge of the same Service; undefined for none. */
  readonly former: MergedEndpoints | undefined
}

/** Chooses endpoints as candidatesOf() does, and gives them without their slices. */
export function* endpointsOf({ slices, wanted, former }: MergeInput): Steps<MergedEndpoints> {
  const patched = former === undefined ? undefined : patchedBy(former, slices)
  if (patched !== undefined) return { wanted, slices, isOnce: true, ...patched }
  const candidates = yield* candidatesInSteps(slices, wanted)
  const [first] = candidates
  const isOnePort = candidates.every(({ port }) => port === first?.port)
  const listed = slices.reduce(
    (sum, slice) => sum + slice.endpoints.length * portsIn(slice, wanted).length,
    0,
  )
  return {
    wanted,
    slices,
    isOnce: listed === candidates.length,
    endpoints: candidates.map(({ endpoint }) => endpoint),
    ports: isOnePort ? (first?.port ?? 0) : candidates.map(({ port }) => port),
  }
}

export function mergeOf(
  kept: readonly MergedEndpoints[] | undefined,
  { name, protocol, family }: Wanted,
): MergedEndpoints | undefined {
  return kept?.find(
    ({ wanted }) => wanted.name === name && wanted.protocol === protocol && wanted.family === family,
  )
}

function portsIn({ family, ports }: EndpointSlice, wanted: Wanted): readonly number[] {
  if (family !== wanted.family) return []
  return ports.flatMap(({ name, protocol, port }) =>
    name === wanted.name && protocol === wanted.protocol ? [port] : [],
  )
}

/** Beyond these a merge of all slices takes no longer. */
const PATCHED_SLICES_MAX = 8
const PATCHED_ENDPOINTS_MAX = 512

/** The merge after some slices changed; undefined where it has to be made anew. */
function patchedBy(former: MergedEndpoints, slices: SliceList): PortEndpoints | undefined {
  const { ports, isOnce } = former
  if (!isOnce || typeof ports !== 'number') return undefined
  const gone = endpointsOnlyIn(former.slices, slices, former)
  const fresh = endpointsOnlyIn(slices, former.slices, former)
  if (gone === undefined || fresh === undefined) return undefined
  const endpoints = former.endpoints.slice()
  for (const ip of gone.keys()) if (!fresh.has(ip)) endpoints.splice(positionOf(endpoints, ip), 1)
  for (const [ip, endpoint] of fresh) {
    const at = positionOf(endpoints, ip)
    if (endpoints[at]?.ip !== ip) endpoints.splice(at, 0, endpoint)
    else if (!gone.has(ip)) return undefined
    else if (endpoints[at].traits !== endpoint.traits) endpoints[at] = endpoint
  }
  return { endpoints, ports }
}

/** Finds the endpoints of new slices by address; undefined for too many, for one address twice, and for another port. */
function endpointsOnlyIn(
  slices: SliceList,
  others: SliceList,
  { wanted, ports }: MergedEndpoints,
): ReadonlyMap<Ip, Endpoint> | undefined {
  const known = new Set(others)
  const changed = slices.filter(slice => !known.has(slice))
  if (changed.length > PATCHED_SLICES_MAX) return undefined
  const found = new Map<Ip, Endpoint>()
  let count = 0
  for (const slice of changed) {
    const its = portsIn(slice, wanted)
    if (its.length === 0) continue
    count += slice.endpoints.length
    if (its.length > 1 || its[0] !== ports || count > PATCHED_ENDPOINTS_MAX) return undefined
    for (const endpoint of slice.endpoints) found.set(endpoint.ip, endpoint)
  }
  return found.size === count ? found : undefined
}

/** The index of the first item at this address or behind it, in a list that is sorted by address. */
export function positionOf(list: readonly { readonly ip: Ip }[], ip: Ip): number {
  let from = 0
  let to = list.length
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((list[middle]?.ip ?? '') < ip) from = middle + 1
    else to = middle
  }
  return from
}

export function hasEndpointAt({ endpoints }: EndpointSlice, ip: Ip): boolean {
  return endpoints[positionOf(endpoints, ip)]?.ip === ip
}

const NONE: PortEndpoints = { endpoints: [], ports: 0 }

/**
 * Gives the endpoints of a port without a copy if only one slice has any, as is usual; undefined when several slices have
 * endpoints of the port, or one has an address twice.
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

/** Tests whether no address is there twice. The endpoints are sorted. */
function isOnce({ endpoints }: EndpointSlice): boolean {
  let last = ''
  for (let index = 0; index < endpoints.length; index++) {
    const ip = endpoints[index]?.ip ?? ''
    if (ip === last) return false
    last = ip
  }
  return true
}

/** Endpoints that may be resolved without a pause: some milliseconds of work. */
const LARGE = 10_000

export function isLarge(slices: SliceList): boolean {
  let endpoints = 0
  for (let index = 0; index < slices.length; index++) endpoints += slices[index]?.endpoints.length ?? 0
  return endpoints > LARGE
}
