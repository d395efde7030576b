import type { Family } from '../base/ip.ts'
import type { Endpoint, EndpointSlice } from './endpoint.ts'
import type { ServicePortSpec } from './service.ts'

/** An endpoint of one port of a Service, before anything is known about its use. */
export interface Candidate {
  readonly endpoint: Endpoint
  readonly port: number
  readonly slice: EndpointSlice
}

/**
 * The endpoints of a port in one family, sorted by address and port, each once. Ports are joined by name and protocol;
 * the number is the slice's own, so that it may differ between slices.
 */
export function candidatesOf(
  slices: readonly EndpointSlice[],
  port: Pick<ServicePortSpec, 'name' | 'protocol'>,
  family: Family,
): readonly Candidate[] {
  const candidates: Candidate[] = []
  for (const slice of slices) {
    if (slice.family !== family) continue
    for (const { name, protocol, port: number } of slice.ports) {
      if (name !== port.name || protocol !== port.protocol) continue
      for (const endpoint of slice.endpoints) candidates.push({ endpoint, port: number, slice })
    }
  }
  return sortedOnce(candidates)
}

/** As candidatesOf(), without the slices they come from. */
export interface PortEndpoints {
  readonly endpoints: readonly Endpoint[]
  /** The port of all of them, or of each. */
  readonly ports: number | readonly number[]
}

const NOBODY: PortEndpoints = { endpoints: [], ports: 0 }

/** The same choice as candidatesOf(). Where one slice says it all, as it nearly always does, nothing is copied. */
export function endpointsOf(
  slices: readonly EndpointSlice[],
  port: Pick<ServicePortSpec, 'name' | 'protocol'>,
  family: Family,
): PortEndpoints {
  const [slice] = slices
  if (slice === undefined) return NOBODY
  const [its] = slice.ports
  if (slices.length === 1 && slice.ports.length === 1 && its !== undefined && isOnce(slice.endpoints)) {
    const isMeant = slice.family === family && its.name === port.name && its.protocol === port.protocol
    return isMeant ? { endpoints: slice.endpoints, ports: its.port } : NOBODY
  }
  const candidates = candidatesOf(slices, port, family)
  return { endpoints: candidates.map(({ endpoint }) => endpoint), ports: candidates.map(({ port }) => port) }
}

/** Whether the endpoints are sorted by address and each is there once. */
function isOnce(endpoints: readonly Endpoint[]): boolean {
  let last = ''
  for (let index = 0; index < endpoints.length; index++) {
    const ip = endpoints[index]?.ip ?? ''
    if (ip <= last) return false
    last = ip
  }
  return true
}

/** Serves what it has while it goes away. */
export function isDraining(endpoint: Endpoint): boolean {
  return endpoint.conditions.serving && endpoint.conditions.terminating
}

function sortedOnce(candidates: Candidate[]): readonly Candidate[] {
  let isStrictlyUp = true
  for (let index = 1; index < candidates.length && isStrictlyUp; index++) {
    isStrictlyUp = compareAt(candidates, index - 1, index) < 0
  }
  return isStrictlyUp ? candidates : withoutDuplicates(candidates.sort(compare))
}

function compareAt(candidates: readonly Candidate[], left: number, right: number): number {
  const a = candidates[left]
  const b = candidates[right]
  return a === undefined || b === undefined ? 0 : compare(a, b)
}

/** All candidates are of one family, so that addresses compare as text. */
function compare(a: Candidate, b: Candidate): number {
  const left = a.endpoint.ip
  const right = b.endpoint.ip
  return left < right ? -1 : left > right ? 1 : a.port - b.port
}

function withoutDuplicates(sorted: readonly Candidate[]): readonly Candidate[] {
  const once: Candidate[] = []
  let run: Candidate[] = []
  for (const candidate of sorted) {
    const first = run[0]
    if (first !== undefined && compare(first, candidate) !== 0) {
      once.push(best(run, first))
      run = []
    }
    run.push(candidate)
  }
  const first = run[0]
  if (first !== undefined) once.push(best(run, first))
  return once
}

/**
 * Which of several entries for one address and port speaks for it. Of one pod that is in two slices, the newer slice
 * knows better. Between pods, a terminating one is a ghost whose address went on to another (k/k#135266), and a ready
 * one is the better bet.
 */
function best(run: readonly Candidate[], first: Candidate): Candidate {
  if (run.length === 1) return first
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
