import { listFor } from '../base/compact.ts'
import type { Family } from '../base/ip.ts'
import { Pauses, type Steps, finish } from '../base/steps.ts'
import type { Endpoint, EndpointSlice, SliceList } from './endpoint.ts'
import type { ServicePortSpec } from './service.ts'

/** An endpoint of one port of a Service, before anything is known about its use. */
interface Candidate {
  readonly endpoint: Endpoint
  readonly port: number
  readonly slice: EndpointSlice
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
      runs.push(slice.endpoints.map(endpoint => ({ endpoint, port, slice })))
      if (pauses.due(slice.endpoints.length)) yield
    }
  }
  return yield* eachOnce(runs)
}

/** All endpoints of a family, sorted by address, each once, whatever ports their slices list; their port is 0. */
export function wholeCandidatesOf(slices: SliceList, family: Family): readonly Candidate[] {
  const runs = slices
    .filter(slice => slice.family === family)
    .map(slice => slice.endpoints.map(endpoint => ({ endpoint, port: 0, slice })))
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
export function isDraining(endpoint: Endpoint): boolean {
  return endpoint.conditions.serving && endpoint.conditions.terminating
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
  let from = 0
  for (let first = sorted[from]; first !== undefined; first = sorted[from]) {
    let to = from + 1
    for (let next = sorted[to]; next !== undefined && compare(first, next) === 0; next = sorted[to]) to++
    once.push(to === from + 1 ? first : best(sorted.slice(from, to), first))
    from = to
  }
  return once
}

/**
 * Which of several entries for one address and port speaks for it. Of one pod that is in two slices, the newer slice
 * knows better. Between pods, a terminating one is a ghost whose address went on to another (k/k#135266), and a ready
 * one is the better bet.
 */
function best(run: readonly Candidate[], first: Candidate): Candidate {
  const newest = new Map<string, number>()
  for (const { endpoint, slice } of run) {
    newest.set(endpoint.targetUid, Math.max(newest.get(endpoint.targetUid) ?? 0, slice.triggerTimeMs))
  }
  let winner: Candidate | undefined
  for (const candidate of run) {
    const { endpoint, slice } = candidate
    const isOutdated =
      endpoint.targetUid !== '' && slice.triggerTimeMs < (newest.get(endpoint.targetUid) ?? 0)
    if (isOutdated) continue
    if (winner === undefined || rank(endpoint) > rank(winner.endpoint)) winner = candidate
  }
  return winner ?? first
}

function rank({ conditions }: Endpoint): number {
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
