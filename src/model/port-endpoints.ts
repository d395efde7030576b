import type { Family } from '../base/ip.ts'
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
  const lists = slices.flatMap(slice =>
    portsIn(slice, wanted).map(port =>
      slice.endpoints.map((endpoint, index): Candidate => ({ endpoint, port, slice, index })),
    ),
  )
  return eachOnce(lists)
}

/** All endpoints of a family, sorted by address, each once, whatever ports their slices list; their port is 0. */
export function wholeCandidatesOf(slices: SliceList, family: Family): readonly Candidate[] {
  const lists = slices
    .filter(slice => slice.family === family)
    .map(slice => slice.endpoints.map((endpoint, index) => ({ endpoint, port: 0, slice, index })))
  return eachOnce(lists)
}

/** The ports of a slice that have the wanted name and protocol; none in another family. */
export function portsIn({ family, ports }: EndpointSlice, wanted: Wanted): readonly number[] {
  if (family !== wanted.family) return []
  return ports.flatMap(({ name, protocol, port }) =>
    name === wanted.name && protocol === wanted.protocol ? [port] : [],
  )
}

/** Sorts candidates, each once. Of equal ones, those of earlier lists come first for best(). */
function eachOnce(lists: readonly (readonly Candidate[])[]): readonly Candidate[] {
  const once: Candidate[] = []
  const uids: TargetUids = new Map()
  let run: [Candidate, ...Candidate[]] | undefined
  for (const candidate of lists.flat().sort(compare)) {
    if (run !== undefined && compare(run[0], candidate) === 0) run.push(candidate)
    else {
      if (run !== undefined) once.push(best(run, uids))
      run = [candidate]
    }
  }
  if (run !== undefined) once.push(best(run, uids))
  return once
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

/** The endpoints of a port in one family, without their slices. */
export interface PortEndpoints {
  readonly endpoints: readonly Endpoint[]
  /** The port of all of them, or of each. */
  readonly ports: number | readonly number[]
}

const NONE: PortEndpoints = { endpoints: [], ports: 0 }

/** Chooses the endpoints of a port as candidatesOf() does. */
export function endpointsOf(slices: SliceList, wanted: Wanted): PortEndpoints {
  const only = endpointsOfOneSlice(slices, wanted)
  if (only !== undefined) return only
  const candidates = candidatesOf(slices, wanted)
  return {
    endpoints: candidates.map(({ endpoint }) => endpoint),
    ports: candidates.map(({ port }) => port),
  }
}

/**
 * Gives the endpoints of a port without a copy if only one slice has any, as is usual; undefined when several slices have
 * endpoints of the port, or one has an address twice.
 */
function endpointsOfOneSlice(slices: SliceList, wanted: Wanted): PortEndpoints | undefined {
  let only: PortEndpoints = NONE
  for (const slice of slices)
    for (const ports of portsIn(slice, wanted)) {
      if (only !== NONE || !isOnce(slice)) return undefined
      only = { endpoints: slice.endpoints, ports }
    }
  return only
}

/** Tests whether no address is there twice. The endpoints are sorted. */
function isOnce({ endpoints }: EndpointSlice): boolean {
  return endpoints.every(({ ip }, index) => ip !== endpoints[index - 1]?.ip)
}
