import { formatIp, type Ip } from '../base/ip.ts'
import type { PersistentMap } from '../base/persistent-map.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { EndpointSlice, SliceList } from './endpoint.ts'
import { addRefusal, type Findings } from './refusal.ts'
import type { Service, ServiceKey } from './service.ts'

interface SliceChange {
  /** All slices, by slice key, before the change. */
  readonly before: PersistentMap<EndpointSlice>
  /** The changed slices by key: the former value when it is equal, undefined when the slice is deleted. */
  readonly changes: ReadonlyMap<string, EndpointSlice | undefined>
  /** Slices by Service key, before the change. */
  readonly groups: PersistentMap<SliceList>
}

/** The slices by Service after a change. Lists of Services that it does not touch stay the same. */
export function* regrouped(change: SliceChange): Steps<PersistentMap<SliceList>> {
  const draft: Draft = { ...change, lists: new Map(), open: new Set() }
  const keys = [...change.changes.keys()]
  const slices = [...change.changes.values()]
  const pauses = new Pauses()
  for (let index = 0; index < keys.length; index++) {
    restate(draft, keys[index] ?? '', slices[index])
    if (pauses.due()) yield
  }
  for (const service of draft.open) {
    const list = draft.lists.get(service) ?? []
    draft.lists.set(service, list.length === 0 ? undefined : list.toSorted(bySliceKey))
  }
  return change.groups.withOwn(draft.lists)
}

interface Draft extends SliceChange {
  readonly lists: Map<ServiceKey, EndpointSlice[] | undefined>
  /** Services whose list is not in its last form: it may be empty, in disorder, or have room for more. */
  readonly open: Set<ServiceKey>
}

function restate(draft: Draft, key: string, slice: EndpointSlice | undefined): void {
  const known = draft.before.get(key)
  if (known === slice) return
  if (known !== undefined && known.service !== slice?.service) openList(draft, known.service)
  if (slice === undefined) return
  const { service } = slice
  // Most Services have one slice, and most slices are met for the first time.
  if (draft.lists.get(service) === undefined && draft.groups.get(service) === undefined)
    draft.lists.set(service, [slice])
  else openList(draft, service).push(slice)
}

/** The slices of a Service that stay as they are, and those added so far. */
function openList(draft: Draft, service: ServiceKey): EndpointSlice[] {
  const { lists, groups, changes, open } = draft
  open.add(service)
  const started = lists.get(service)
  if (started !== undefined) return started
  const before = groups.get(service) ?? []
  const list = before.filter(slice => !changes.has(slice.key) || changes.get(slice.key) === slice)
  lists.set(service, list)
  return list
}

function bySliceKey(a: EndpointSlice, b: EndpointSlice): number {
  return a.key < b.key ? -1 : 1
}

/**
 * The slices without endpoints that are ClusterIPs of their own Service: traffic would go in circles (CVE-2021-25740).
 * External and load-balancer addresses may be endpoints: they are the node's own where the pods use its network.
 */
export function withoutLoops(slices: SliceList, service: Service, findings?: Findings): SliceList {
  const own = service.clusterIps
  for (let index = 0; index < slices.length; index++) {
    const slice = slices[index]
    if (slice !== undefined && hasOwn(slice, own)) return slices.map(its => withoutOwn(its, own, findings))
  }
  return slices
}

function hasOwn({ endpoints }: EndpointSlice, own: readonly Ip[]): boolean {
  for (let index = 0; index < endpoints.length; index++)
    if (own.includes(endpoints[index]?.ip ?? '')) return true
  return false
}

function withoutOwn(slice: EndpointSlice, own: readonly Ip[], findings: Findings | undefined): EndpointSlice {
  const endpoints = slice.endpoints.filter(endpoint => {
    if (!own.includes(endpoint.ip)) return true
    if (findings !== undefined) refuseEndpoint(findings, slice, endpoint.ip)
    return false
  })
  return { ...slice, endpoints }
}

function refuseEndpoint(findings: Findings, slice: EndpointSlice, ip: Ip): void {
  addRefusal(findings, {
    object: `EndpointSlice ${slice.key}`,
    field: 'endpoints',
    value: formatIp(ip),
    reason: 'the ClusterIP of the Service itself, to which its traffic would return',
  })
}
