import { Pauses, type Steps } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { objectText, type Refusal } from './fields.ts'
import {
  type Cuts,
  costOf,
  cutsOf,
  type DemandChange,
  type Demands,
  demandsAfter,
  FIRM,
  isCut,
  movedBetween,
  NO_CUTS,
  namespaceOf,
  type ServiceCost,
} from './memory-shares.ts'
import { isOurs, type MemoryLimit, type NodeContext } from './node-context.ts'
import { rejecting } from './object-budget.ts'
import type { Service, ServiceKey } from './service.ts'
import type { Snapshot } from './snapshot.ts'

/** A Service that is not resolved, because it would take more memory than its share. */
export interface Oversized {
  /** The Service as the object has it. */
  readonly service: Service
  readonly bytes: number
  /** What it does not fit into. */
  readonly limit: MemoryLimit
  /** What is resolved in its place: nothing but its ClusterIPs, which reject. */
  readonly stub: Service
  readonly refusal: Refusal
}

/** Which Services there is memory for. Immutable; the next one costs what has changed. */
export interface Admission {
  /** The Services as they are to be resolved. */
  readonly services: PersistentMap<Service>
  readonly oversized: PersistentMap<Oversized>
  /** Costs of our Services, in bytes. */
  readonly costs: PersistentMap<number>
  /** Demands without Services that exceed the share of one Service. */
  readonly demands: Demands
  /** The sum of all demands, in bytes. */
  readonly total: number
  readonly cuts: Cuts
  /** As if there was a little less memory: what is refused already has to fit into that. */
  readonly firmCuts: Cuts
}

/** Part of the memory for Services that one may take: a change of the largest one takes its share twice for a moment. */
const SERVICE_SHARE = 0.4

interface AdmissionInput {
  readonly here: NodeContext
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

const NOTHING: Admission = {
  services: PersistentMap.empty(),
  oversized: PersistentMap.empty(),
  costs: PersistentMap.empty(),
  demands: PersistentMap.empty(),
  total: 0,
  cuts: NO_CUTS,
  firmCuts: NO_CUTS,
}

/** Gives a snapshot without the Services that memory has no room for: their ports are not served. */
export function admittedSnapshot(snapshot: Snapshot, admission: Admission | undefined): Snapshot {
  return admission === undefined ? snapshot : { ...snapshot, services: admission.services }
}

/** Decides which Services are resolved. Undefined where the amount of memory is unknown. */
export function* admit(input: AdmissionInput): Steps<AdmissionUpdate | undefined> {
  const { here, previous = NOTHING, touched } = input
  if (here.options.memory === undefined) return undefined
  const memory = here.options.memory.bytes
  const weighed = yield* weigh(input, memory)
  const costs = previous.costs.withOwn(weighed.costs)
  const demands = demandsAfter(previous.demands, weighed.changes)
  const total = previous.total + weighed.growth
  const known = { costs, demands, total }
  const cuts = yield* cutsAfter(input, { ...known, memory, before: previous.cuts })
  const firmCuts = yield* cutsAfter(input, { ...known, memory: FIRM * memory, before: previous.firmCuts })
  const moved = [
    ...(yield* movedBetween(previous.cuts, cuts, demands)),
    ...(yield* movedBetween(previous.firmCuts, firmCuts, demands)),
  ]
  const judging: Judging = { input, costs, cuts, firmCuts, memory }
  const changes = new Map<ServiceKey, Oversized | undefined>()
  const affected = new Set<ServiceKey>()
  const pauses = new Pauses()
  for (const key of moved.length === 0 ? touched : new Set([...touched, ...moved])) {
    if (pauses.due()) yield
    const before = previous.oversized.get(key)
    const now = judged(judging, key, before)
    if (now === before) continue
    affected.add(key)
    changes.set(key, now)
  }
  const oversized = previous.oversized.withOwn(changes)
  const services = servicesAfter(input, oversized, affected)
  return { admission: { services, oversized, ...known, cuts, firmCuts }, affected }
}

/**
 * Beside the snapshot's own versions once there are stubs: what is held of the two would else be changed from one to the
 * other for every stub and every pass.
 */
function servicesAfter(
  { previous, snapshot, touched }: AdmissionInput,
  oversized: PersistentMap<Oversized>,
  affected: ReadonlySet<ServiceKey>,
): PersistentMap<Service> {
  if (oversized.size === 0) return snapshot.services
  const statedOf = (key: ServiceKey): [ServiceKey, Service | undefined] => [
    key,
    oversized.get(key)?.stub ?? snapshot.services.get(key),
  ]
  return previous === undefined || previous.oversized.size === 0
    ? PersistentMap.from(snapshot.services.entries()).with(oversized.keys().map(statedOf))
    : previous.services.with([...touched, ...affected].map(statedOf))
}

interface Weighed {
  readonly costs: Map<ServiceKey, number | undefined>
  readonly changes: readonly DemandChange[]
  /** By how much the sum of all demands grows, in bytes. */
  readonly growth: number
}

/** What the touched Services cost now. */
function* weigh(input: AdmissionInput, memory: number): Steps<Weighed> {
  const { here, previous, snapshot, touched } = input
  const costs = new Map<ServiceKey, number | undefined>()
  const changes: DemandChange[] = []
  let growth = 0
  const pauses = new Pauses()
  for (const key of touched) {
    if (pauses.due()) yield
    const before = previous?.costs.get(key)
    const now = costNow(here, snapshot, key)?.bytes
    // At the same cost, a Service of another age is a demand of its own: of equal ones, the oldest come first.
    if (now === before && (now === undefined || bornOf(snapshot, key) === bornOf(previous, key))) continue
    costs.set(key, now)
    const limit = refusedOver(input, key)
    const isWithin = now !== undefined && now <= serviceShare(memory, limit)
    const change = { key, before: limit === 'Service' ? undefined : before, now: isWithin ? now : undefined }
    changes.push(change)
    growth += (change.now ?? 0) - (change.before ?? 0)
  }
  return { costs, changes, growth }
}

function refusedOver({ here, previous }: AdmissionInput, key: ServiceKey): MemoryLimit | undefined {
  if (previous !== undefined) return previous.oversized.get(key)?.limit
  return here.options.memory?.refused?.get(key)
}

/** What is over it is not served whatever else there is. */
function serviceShare(memory: number, refusedOver?: MemoryLimit): number {
  return memory * SERVICE_SHARE * (refusedOver === 'Service' ? FIRM : 1)
}

function costNow(
  here: NodeContext,
  { services, slices }: Snapshot,
  key: ServiceKey,
): ServiceCost | undefined {
  const service = services.get(key)
  const { memory } = here.options
  if (service === undefined || memory === undefined || !isOurs(here, service)) return undefined
  return costOf(service, slices.get(key) ?? [], memory.rates)
}

function bornOf(held: Pick<Snapshot, 'services'> | undefined, key: ServiceKey): string {
  return held?.services.get(key)?.creationTimestamp ?? ''
}

interface Known extends Pick<Admission, 'costs' | 'demands' | 'total'> {
  readonly memory: number
  /** With the demands of the previous admission. */
  readonly before: Cuts
}

function* cutsAfter(
  { previous = NOTHING, snapshot }: AdmissionInput,
  { costs, demands, total, memory, before }: Known,
): Steps<Cuts> {
  if (total <= memory) return NO_CUTS
  if (demands === previous.demands) return before
  return yield* cutsOf({
    demands,
    memory,
    before,
    costOf: key => costs.get(key) ?? 0,
    bornOf: key => bornOf(snapshot, key),
  })
}

interface Judging {
  readonly input: AdmissionInput
  readonly costs: PersistentMap<number>
  readonly cuts: Cuts
  readonly firmCuts: Cuts
  /** Bytes. */
  readonly memory: number
}

/** Undefined for one that is served; `before` where nothing about it has changed. */
function judged(judging: Judging, key: ServiceKey, before: Oversized | undefined): Oversized | undefined {
  const { input, costs, memory } = judging
  const { here, snapshot } = input
  const service = snapshot.services.get(key)
  const bytes = costs.get(key)
  if (service === undefined || bytes === undefined) return undefined
  const limit = limitOver(judging, { key, bytes, before: refusedOver(input, key) })
  if (limit === undefined) return undefined
  if (before?.service === service && before.bytes === bytes && before.limit === limit) return before
  const cost = costNow(here, snapshot, key)
  if (cost === undefined) return undefined
  const refusal: Refusal = {
    object: objectText('Service', key),
    field: 'spec.ports',
    value: `${cost.ports}`,
    reason: reasonOf(cost, limit, memory),
  }
  return { service, bytes, limit, refusal, stub: rejecting(service, [...service.refusals, refusal]) }
}

interface Asking {
  readonly key: ServiceKey
  readonly bytes: number
  /** What it was refused for. */
  readonly before: MemoryLimit | undefined
}

function limitOver(
  { cuts, firmCuts, memory }: Judging,
  { key, bytes, before }: Asking,
): MemoryLimit | undefined {
  if (bytes > serviceShare(memory, before)) return 'Service'
  const its = before === undefined ? cuts : firmCuts
  return isCut(its.get(namespaceOf(key)), key, bytes) ? 'namespace' : undefined
}

/** Without figures of other Services: the text stays the same while this one does. */
function reasonOf(
  { ports, addresses, endpoints, bytes }: ServiceCost,
  limit: MemoryLimit,
  memory: number,
): string {
  const figures = `${ports} ports, ${addresses} addresses, ${endpoints} endpoints over all ports`
  const onceRefused =
    bytes <= serviceShare(memory) ? `, and ${mib(serviceShare(memory, limit))} MiB after it was refused` : ''
  const share =
    limit === 'Service'
      ? `a Service may take ${mib(serviceShare(memory))} MiB${onceRefused}`
      : `its namespace has used up its share: the namespaces that ask for most divide ${mib(memory)} MiB equally, ` +
        'the smallest Services first'
  return (
    `needs about ${mib(bytes)} MiB (${figures}), and ${share}; no port of it is served; give it fewer of them, ` +
    'or the process a higher memory limit'
  )
}

function mib(bytes: number): number {
  return Math.round(bytes / (1 << 20))
}
