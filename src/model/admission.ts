import { PersistentMap } from '../base/persistent-map.ts'
import type { Steps } from '../base/steps.ts'
import { costOf, type ServiceCost } from './cost.ts'
import { type Here, isOurs } from './here.ts'
import { objectText, type Refusal } from './refusal.ts'
import type { Service, ServiceKey } from './service.ts'
import type { Snapshot } from './snapshot.ts'

/** A Service that is not resolved, because it would take more memory than its share. */
export interface Oversized {
  /** As the object says. */
  readonly service: Service
  readonly bytes: number
  /** What it does not fit into. */
  readonly limit: Limit
  /** What is resolved in its place: nothing but its ClusterIPs, which reject. */
  readonly stub: Service
  readonly refusal: Refusal
}

/** Which Services there is memory for. Immutable; the next one costs what has changed. */
export interface Admission {
  /** As they are to be resolved. */
  readonly services: PersistentMap<Service>
  readonly oversized: ReadonlyMap<ServiceKey, Oversized>
  /** Of our Services, bytes. */
  readonly costs: PersistentMap<number>
  /** By namespace, and of all of them under ALL: bytes by class of cost. */
  readonly sums: PersistentMap<ClassSums>
  /** By namespace, and of all of them under ALL; of those alone that ask for too much. */
  readonly cuts: Cuts
}

type ClassSums = ReadonlyMap<number, number>

/** No name of a namespace. */
const ALL = ''

/**
 * Shares of the memory for Services. The smallest are served first, so that many small Services are served whatever one
 * asks for; a change of the largest one takes its share twice for a moment.
 */
const SERVICE_SHARE = 0.4
const NAMESPACE_SHARE = 1 / 2

export interface AdmissionInput {
  readonly here: Here
  /** Undefined to start anew: every key then has to be touched. */
  readonly previous: Admission | undefined
  readonly snapshot: Snapshot
  /** Services that may have changed, or whose slices may have. */
  readonly touched: readonly ServiceKey[]
}

export interface AdmissionUpdate {
  readonly admission: Admission
  /** Services beside the touched ones that are served from now on, or no longer. */
  readonly affected: ReadonlySet<ServiceKey>
}

/** Says which Services are resolved. Undefined where nobody knows how much memory there is. */
export function* admit(input: AdmissionInput): Steps<AdmissionUpdate | undefined> {
  const { here, previous, snapshot } = input
  const { memory } = here.options
  if (memory === undefined) return undefined
  const memoryBytes = memory.bytes
  const draft = yield* weigh(input, memoryBytes)
  const costs = (previous?.costs ?? PersistentMap.empty<number>()).withOwn(draft.costs)
  const sums = (previous?.sums ?? PersistentMap.empty<ClassSums>()).withOwn(draft.sums)
  const weighed = { ...input, costs, sums, memoryBytes }
  const cuts = draft.sums.size === 0 ? (previous?.cuts ?? NO_CUTS) : cutsOf(weighed, draft.sums)
  const judging = { ...weighed, cuts }
  const moved = movedKeys(previous?.cuts ?? NO_CUTS, judging)
  const oversized = new Map(previous?.oversized)
  const affected = new Set<ServiceKey>()
  for (const key of moved.length === 0 ? input.touched : new Set([...input.touched, ...moved])) {
    const before = oversized.get(key)
    const now = judged(judging, key, before)
    if (now === before) continue
    affected.add(key)
    if (now === undefined) oversized.delete(key)
    else oversized.set(key, now)
  }
  const stubs = [...oversized].map(([key, { stub }]): [ServiceKey, Service] => [key, stub])
  const services = stubs.length === 0 ? snapshot.services : snapshot.services.with(stubs)
  return { admission: { services, oversized, costs, sums, cuts }, affected }
}

interface Draft {
  readonly costs: Map<ServiceKey, number | undefined>
  readonly sums: Map<string, Map<number, number> | undefined>
}

/** Services between two offers to pause. */
const YIELD_EVERY = 500

/** What the touched Services cost now, and the sums with them. */
function* weigh({ here, previous, snapshot, touched }: AdmissionInput, memoryBytes: number): Steps<Draft> {
  const draft: Draft = { costs: new Map(), sums: new Map() }
  let untilPause = YIELD_EVERY
  for (const key of touched) {
    if (untilPause-- === 0) {
      yield
      untilPause = YIELD_EVERY
    }
    const before = previous?.costs.get(key)
    const now = costNow(here, snapshot, key)?.bytes
    if (now === before) continue
    draft.costs.set(key, now)
    // What is over the share of a Service is not served whatever else there is.
    for (const scope of [namespaceOf(key), ALL])
      for (const [bytes, sign] of [
        [before, -1],
        [now, 1],
      ] as const)
        if (bytes !== undefined && bytes <= memoryBytes * SERVICE_SHARE)
          addTo(classesOf(draft, previous, scope), classOf(bytes), sign * bytes)
  }
  for (const [scope, classes] of draft.sums) if (classes?.size === 0) draft.sums.set(scope, undefined)
  return draft
}

function costNow(here: Here, { services, slices }: Snapshot, key: ServiceKey): ServiceCost | undefined {
  const service = services.get(key)
  const { memory } = here.options
  if (service === undefined || memory === undefined || !isOurs(here, service)) return undefined
  return costOf(service, slices.get(key) ?? [], memory.rates)
}

function classesOf({ sums }: Draft, previous: Admission | undefined, scope: string): Map<number, number> {
  const known = sums.get(scope)
  if (known !== undefined) return known
  const copy = new Map(previous?.sums.get(scope))
  sums.set(scope, copy)
  return copy
}

function addTo(sums: Map<number, number>, at: number, bytes: number): void {
  const sum = (sums.get(at) ?? 0) + bytes
  if (sum === 0) sums.delete(at)
  else sums.set(at, sum)
}

/** Costs of one class differ by 9 % at most. */
function classOf(bytes: number): number {
  return Math.ceil(8 * Math.log2(bytes))
}

/** From where on a namespace, or all of them, ask for too much. */
interface Cut {
  /** Bytes. */
  readonly limit: number
  /** The class that does not fit as a whole: those above it are not served. */
  readonly at: number
  /** The Services of that class that fit. */
  readonly served: ReadonlySet<ServiceKey>
  /** What those take. */
  readonly servedBytes: number
}

type Cuts = ReadonlyMap<string, Cut>

const NO_CUTS: ReadonlyMap<string, Cut> = new Map()

interface Weighed extends AdmissionInput {
  readonly costs: PersistentMap<number>
  readonly sums: PersistentMap<ClassSums>
  readonly memoryBytes: number
}

/** A namespace may take what others leave, and its share where they leave less. */
function cutsOf(weighed: Weighed, changed: ReadonlyMap<string, unknown>): Cuts {
  const { previous, sums, memoryBytes } = weighed
  const all = new Map(sums.get(ALL))
  const total = totalOf(all)
  if (total <= memoryBytes) return NO_CUTS
  const cuts = new Map<string, Cut>()
  for (const [scope, classes] of sums.entries()) {
    const its = totalOf(classes)
    const limit = Math.max(memoryBytes * NAMESPACE_SHARE, memoryBytes - (total - its))
    if (scope === ALL || its <= limit) continue
    const isIn = (key: ServiceKey): boolean => namespaceOf(key) === scope
    const known = changed.has(scope) ? undefined : previous?.cuts.get(scope)
    const cut = known?.limit === limit ? known : cutWithin(weighed, { sums: classes, limit, isIn })
    if (cut === undefined) continue
    cuts.set(scope, cut)
    for (const [at, bytes] of classes) if (at >= cut.at) addTo(all, at, -bytes)
    addTo(all, cut.at, cut.servedBytes)
  }
  const isIn = (key: ServiceKey, bytes: number): boolean => !isCut(cuts.get(namespaceOf(key)), key, bytes)
  const cut = cutWithin(weighed, { sums: all, limit: memoryBytes, isIn })
  if (cut !== undefined) cuts.set(ALL, cut)
  return cuts
}

function totalOf(sums: ClassSums): number {
  let total = 0
  for (const bytes of sums.values()) total += bytes
  return total
}

interface Scope {
  readonly sums: ClassSums
  /** Bytes. */
  readonly limit: number
  readonly isIn: (key: ServiceKey, bytes: number) => boolean
}

/** Undefined when all fit. */
function cutWithin({ costs, snapshot, memoryBytes }: Weighed, { sums, limit, isIn }: Scope): Cut | undefined {
  let left = limit
  for (const [at, bytes] of [...sums].sort(([a], [b]) => a - b)) {
    if (bytes <= left) {
      left -= bytes
      continue
    }
    const ofClass = costs
      .entries()
      .filter(([key, its]) => its <= memoryBytes * SERVICE_SHARE && classOf(its) === at && isIn(key, its))
    const born = (key: ServiceKey): string => snapshot.services.get(key)?.creationTimestamp ?? ''
    const served = new Set<ServiceKey>()
    const before = left
    for (const [key, its] of ofClass.toSorted(([a], [b]) => compare(born(a), born(b)) || compare(a, b))) {
      if (its > left) break
      left -= its
      served.add(key)
    }
    return { limit, at, served, servedBytes: before - left }
  }
  return undefined
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

function isCut(cut: Cut | undefined, key: ServiceKey, bytes: number): boolean {
  if (cut === undefined) return false
  const at = classOf(bytes)
  return at > cut.at || (at === cut.at && !cut.served.has(key))
}

/** Services of namespaces that ask for too much, or did before; of all, where all of them do. */
function movedKeys(before: Cuts, { cuts, costs }: Judging): readonly ServiceKey[] {
  const scopes = [...new Set([...before.keys(), ...cuts.keys()])]
  const moved = new Set(scopes.filter(scope => before.get(scope) !== cuts.get(scope)))
  if (moved.size === 0) return []
  return costs.keys().filter(key => moved.has(ALL) || moved.has(namespaceOf(key)))
}

interface Judging extends Weighed {
  readonly cuts: Cuts
}

/** Undefined for one that is served; `before` where nothing about it has changed. */
function judged(judging: Judging, key: ServiceKey, before: Oversized | undefined): Oversized | undefined {
  const { here, snapshot, costs, memoryBytes } = judging
  const service = snapshot.services.get(key)
  const bytes = costs.get(key)
  if (service === undefined || bytes === undefined) return undefined
  const limit = limitOver(judging, key, bytes)
  if (limit === undefined) return undefined
  if (before?.service === service && before.bytes === bytes && before.limit === limit) return before
  const cost = costNow(here, snapshot, key)
  if (cost === undefined) return undefined
  const refusal: Refusal = {
    object: objectText('Service', key),
    field: 'spec.ports',
    value: `${cost.ports}`,
    reason: reasonOf(cost, limit, memoryBytes),
  }
  return { service, bytes, limit, refusal, stub: stubOf(service, refusal) }
}

type Limit = 'a Service' | 'a namespace' | 'all Services together'

function limitOver({ cuts, memoryBytes }: Judging, key: ServiceKey, bytes: number): Limit | undefined {
  if (bytes > memoryBytes * SERVICE_SHARE) return 'a Service'
  if (isCut(cuts.get(namespaceOf(key)), key, bytes)) return 'a namespace'
  return isCut(cuts.get(ALL), key, bytes) ? 'all Services together' : undefined
}

const SHARES: Readonly<Record<Limit, number>> = {
  'a Service': SERVICE_SHARE,
  'a namespace': NAMESPACE_SHARE,
  'all Services together': 1,
}

/** Without figures of other Services: the text stays the same while this one does. */
function reasonOf({ ports, addresses, endpoints, bytes }: ServiceCost, limit: Limit, memory: number): string {
  const figures = `${ports} ports, ${addresses} addresses, ${endpoints} endpoints over all ports`
  return (
    `needs about ${mib(bytes)} MiB (${figures}), and ${limit} may take ${mib(memory * SHARES[limit])} MiB, the smallest ` +
    'first; no port of it is served; give it fewer of them, or the process a higher memory limit'
  )
}

function mib(bytes: number): number {
  return Math.round(bytes / (1 << 20))
}

/** Its ClusterIPs stay its own: connections to them are rejected, and nobody else takes them. */
function stubOf(service: Service, refusal: Refusal): Service {
  return {
    ...service,
    ports: [],
    externalIps: [],
    loadBalancerIps: [],
    healthCheckNodePort: 0,
    headless: undefined,
    refusals: [...service.refusals, refusal],
  }
}

function namespaceOf(key: ServiceKey): string {
  return key.slice(0, key.indexOf('/'))
}
