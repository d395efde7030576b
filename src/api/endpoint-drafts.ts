import type { Ip } from '../base/ip.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { SliceList } from '../model/endpoint.ts'
import type { Backend, ServiceFrontends } from '../model/frontend.ts'
import { usesOf } from './port-uses.ts'

/** An address behind a Service, with all that its lists say about it. */
export interface EndpointDraft {
  readonly local: boolean
  internal: boolean
  external: boolean
  /** Port numbers by the name of the service port, mostly one. */
  readonly ports: Map<string, Set<number>>
}

/** All addresses behind a Service; where `only` is given those, which costs their number and not the Service's. */
export function* draftsOf(
  frontends: ServiceFrontends,
  only: ReadonlySet<Ip> | undefined,
): Steps<ReadonlyMap<Ip, EndpointDraft>> {
  const drafts = new Map<Ip, EndpointDraft>()
  for (const { name, ...lists } of usesOf(frontends))
    for (const scope of ['internal', 'external'] as const) {
      const pauses = new Pauses()
      for (const backend of among(lists[scope], only)) {
        take(drafts, scope, { name, backend })
        if (pauses.due()) yield
      }
    }
  return drafts
}

/** The back ends of a list, sorted by address, that have one of the addresses. */
function* among(list: readonly Backend[], only: ReadonlySet<Ip> | undefined): Iterable<Backend> {
  if (only === undefined) {
    yield* list
    return
  }
  for (const ip of only) {
    let index = firstAt(list, ip)
    for (let backend = list[index]; backend?.ip === ip; backend = list[index]) {
      yield backend
      index++
    }
  }
}

/** Finds the first back end of the address. */
function firstAt(list: readonly Backend[], ip: Ip): number {
  let from = 0
  let to = list.length
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((list[middle]?.ip ?? '') < ip) from = middle + 1
    else to = middle
  }
  return from
}

interface Found {
  /** The name of the service port. */
  readonly name: string | undefined
  readonly backend: Backend
}

function take(
  drafts: Map<Ip, EndpointDraft>,
  scope: 'internal' | 'external',
  { name, backend: { ip, port, local } }: Found,
): void {
  const draft = drafts.get(ip) ?? { local, internal: false, external: false, ports: new Map() }
  drafts.set(ip, draft)
  draft[scope] = true
  if (name !== undefined) draft.ports.set(name, (draft.ports.get(name) ?? new Set()).add(port))
}

/**
 * By address: the first slice that has a name for it counts. Of each slice the names are walked, or the addresses if they
 * are fewer.
 */
export function* hostnamesOf(
  slices: SliceList,
  addresses: ReadonlyMap<Ip, unknown>,
): Steps<ReadonlyMap<Ip, string>> {
  const found = new Map<Ip, string>()
  for (const { hostnames, endpoints } of slices) {
    if (hostnames === undefined) continue
    for (const ip of addresses.size < endpoints.length ? addresses.keys() : Object.keys(hostnames)) {
      const hostname = hostnames[ip]
      if (hostname !== undefined && !found.has(ip)) found.set(ip, hostname)
    }
    yield
  }
  return found
}
