import { PersistentMap } from '../base/collections.ts'
import { compareTexts } from '../base/text.ts'
import { balanceSettings } from './balance.ts'
import { objectText, type Refusal } from './fields.ts'
import { isOurs, type NodeContext, type ServiceMemory } from './node-context.ts'
import type { Balancing, CostRates, Service, ServiceKey, ServicePortSpec, SliceList } from './service.ts'
import type { Snapshot } from './snapshot.ts'

/** A Service that is over a cap: it is not served. */
export interface RefusedService {
  readonly service: Service
  readonly bytes: number
  readonly cap: MemoryCap
  readonly refusal: Refusal
  /** Resolved in place of the Service: its ClusterIPs alone, which reject, so that no other Service gets them. */
  readonly stub: Service
}

/** The cap of one Service, or the cap of all Services together. */
type MemoryCap = 'one' | 'all'

/** The Services that there is memory for. Immutable; the next one costs what has changed while all Services fit. */
export interface CappedServices {
  /** The Services to resolve, with a stub in place of each refused one. */
  readonly services: PersistentMap<Service>
  readonly refused: PersistentMap<RefusedService>
  /** Bytes of each Service within the cap of one Service, and of all these. */
  readonly costs: PersistentMap<number>
  readonly total: number
  /** The keys of `costs`, the oldest Service first; undefined while all fit. */
  readonly byAge: readonly ServiceKey[] | undefined
  /** The keys of `costs` that do not fit beside older Services. */
  readonly overAll: ReadonlySet<ServiceKey>
}

interface CapsInput {
  readonly here: NodeContext
  /** Undefined to start anew: every key then has to be touched. */
  readonly previous: CappedServices | undefined
  readonly snapshot: Snapshot
  /** Services that may have changed, or whose slices may have. */
  readonly touched: readonly ServiceKey[]
}

const NOTHING: CappedServices = {
  services: PersistentMap.empty(),
  refused: PersistentMap.empty(),
  costs: PersistentMap.empty(),
  total: 0,
  byAge: undefined,
  overAll: new Set(),
}

/**
 * Refuses each Service that costs more than one may, and of the others each one that does not fit beside the older ones.
 * The result follows from the objects alone. `affected` are the Services that are served from now on, or no longer.
 */
export function withinCaps(input: CapsInput): {
  readonly caps: CappedServices
  readonly affected: ReadonlySet<ServiceKey>
} {
  const { here, previous = NOTHING, snapshot, touched } = input
  const { memory } = here.options
  if (memory === undefined) return { caps: { ...NOTHING, services: snapshot.services }, affected: new Set() }
  const { costs, total, isSameOrder } = costsAfter(input, memory, previous)
  const isWithin = total <= memory.bytes
  const byAge = isWithin ? undefined : (isSameOrder && previous.byAge) || oldestFirst(costs, snapshot)
  const overAll = byAge === undefined ? NOTHING.overAll : newestBeyond(byAge, costs, memory.bytes)
  const changes = new Map<ServiceKey, RefusedService | undefined>()
  const moved = [...previous.overAll, ...overAll].filter(
    key => previous.overAll.has(key) !== overAll.has(key),
  )
  for (const key of new Set([...touched, ...moved])) {
    const before = previous.refused.get(key)
    const isServed = costs.has(key) && !overAll.has(key)
    const now = isServed ? undefined : refusedNow(input, { key, memory, before })
    if (now !== before) changes.set(key, now)
  }
  const affected = new Set(changes.keys())
  const refused = previous.refused.withOwn(changes)
  const services = servicesAfter(input, refused, affected)
  return { caps: { services, refused, costs, total, byAge, overAll }, affected }
}

/** Gives the Snapshot that is resolved: Services that there is no memory for stand in it as stubs. */
export function cappedSnapshot(snapshot: Snapshot, { services }: CappedServices): Snapshot {
  return { ...snapshot, services }
}

/** `isSameOrder`: no Service has come, gone or been created anew. */
function costsAfter(
  { here, snapshot, touched }: CapsInput,
  memory: ServiceMemory,
  previous: CappedServices,
): Pick<CappedServices, 'costs' | 'total'> & { readonly isSameOrder: boolean } {
  const changes = new Map<ServiceKey, number | undefined>()
  let { total } = previous
  let isSameOrder = true
  for (const key of touched) {
    const before = previous.costs.get(key)
    const bytes = costIn(here, snapshot, key)?.bytes
    const now = bytes === undefined || bytes > serviceCap(memory) ? undefined : bytes
    const isSameAge =
      previous.services.get(key)?.creationTimestamp === snapshot.services.get(key)?.creationTimestamp
    if ((before === undefined) !== (now === undefined) || !isSameAge) isSameOrder = false
    if (now === before) continue
    changes.set(key, now)
    total += (now ?? 0) - (before ?? 0)
  }
  return { costs: previous.costs.withOwn(changes), total, isSameOrder }
}

function costIn(here: NodeContext, { services, slices }: Snapshot, key: ServiceKey): ServiceCost | undefined {
  const service = services.get(key)
  const { memory } = here.options
  if (service === undefined || memory === undefined || !isOurs(here, service)) return undefined
  return costOf(service, slices.get(key) ?? [], { rates: memory.rates, balancing: here.options.balancing })
}

/** The memory that one Service may take: a change of the largest one takes it twice for a moment. */
function serviceCap({ bytes }: ServiceMemory): number {
  return bytes * 0.4
}

/** Services without a creation time come last: they have no seniority to show. */
function oldestFirst(costs: PersistentMap<number>, { services }: Snapshot): readonly ServiceKey[] {
  const born = costs.keys().map(key => ({ key, at: services.get(key)?.creationTimestamp || LAST }))
  return born.sort((a, b) => compareTexts(a.at, b.at) || compareTexts(a.key, b.key)).map(({ key }) => key)
}

/** Sorts behind every time. */
const LAST = '~'

function newestBeyond(
  byAge: readonly ServiceKey[],
  costs: PersistentMap<number>,
  bytes: number,
): ReadonlySet<ServiceKey> {
  const beyond = new Set<ServiceKey>()
  let left = bytes
  for (const key of byAge) {
    const its = costs.get(key) ?? 0
    if (its <= left) left -= its
    else beyond.add(key)
  }
  return beyond
}

interface Judged {
  readonly key: ServiceKey
  readonly memory: ServiceMemory
  readonly before: RefusedService | undefined
}

/** Undefined for a Service that is gone or another proxy's; `before` where nothing about it has changed. */
function refusedNow(
  { here, snapshot }: CapsInput,
  { key, memory, before }: Judged,
): RefusedService | undefined {
  const service = snapshot.services.get(key)
  const cost = costIn(here, snapshot, key)
  if (service === undefined || cost === undefined) return undefined
  const { bytes } = cost
  const cap = bytes > serviceCap(memory) ? 'one' : 'all'
  if (before?.service === service && before.bytes === bytes && before.cap === cap) return before
  const refusal: Refusal = {
    object: objectText('Service', key),
    field: 'spec.ports',
    value: `${cost.ports}`,
    reason: reasonOf(cost, cap, memory),
  }
  return { service, bytes, cap, refusal, stub: rejecting(service, [...service.refusals, refusal]) }
}

/** Names no figure of another Service, so that the text changes only with this one. */
function reasonOf(
  { ports, addresses, endpoints, bytes }: ServiceCost,
  cap: MemoryCap,
  memory: ServiceMemory,
): string {
  const figures = `${ports} ports, ${addresses} addresses, ${endpoints} endpoints over all ports`
  const limit =
    cap === 'one'
      ? `a Service may take ${mib(serviceCap(memory))} MiB`
      : `older Services use the rest of the ${mib(memory.bytes)} MiB for all Services`
  return (
    `needs about ${mib(bytes)} MiB (${figures}), and ${limit}; kprobe serves none of its ports; ` +
    'reduce them, or raise the memory limit'
  )
}

function mib(bytes: number): number {
  return Math.round(bytes / (1 << 20))
}

function rejecting(service: Service, refusals: readonly Refusal[]): Service {
  return {
    ...service,
    ports: [],
    externalIps: [],
    loadBalancerIps: [],
    healthCheckNodePort: 0,
    headless: undefined,
    refusals,
  }
}

/**
 * A map with stubs follows from the previous map with stubs. If it were derived from that of the Snapshot each time, the
 * PersistentMap would have to go back and forth between the two, over all stubs, in every pass.
 */
function servicesAfter(
  { previous, snapshot, touched }: CapsInput,
  refused: PersistentMap<RefusedService>,
  affected: ReadonlySet<ServiceKey>,
): PersistentMap<Service> {
  if (refused.size === 0) return snapshot.services
  const resolvedOf = (key: ServiceKey): [ServiceKey, Service | undefined] => [
    key,
    refused.get(key)?.stub ?? snapshot.services.get(key),
  ]
  return previous === undefined || previous.refused.size === 0
    ? PersistentMap.from(snapshot.services.entries()).with(refused.keys().map(resolvedOf))
    : previous.services.with([...touched, ...affected].map(resolvedOf))
}

/** The cost of a Service. It follows from counts alone, so that it is known before anything of the Service is resolved. */
interface ServiceCost {
  readonly ports: number
  /** ClusterIPs, externalIPs and load-balancer addresses. */
  readonly addresses: number
  /** Endpoints of each port, summed over the ports. */
  readonly endpoints: number
  /** Memory that it takes at the peak of a first sync: model, rendered state, messages, the kernel's copy. */
  readonly bytes: number
}

/** Taken in every mode. */
const SERVICE_BYTES = 1_536
const RANGE_BYTES = 64
/** A client's endpoint is looked up in a second map. */
const AFFINITY_FACTOR = 1.75

interface CostsOf {
  readonly rates: CostRates
  readonly balancing: Balancing | undefined
}

function costOf(service: Service, slices: SliceList, { rates, balancing }: CostsOf): ServiceCost {
  const { ports, clusterIps, externalIps, loadBalancerIps, sourceRanges } = service
  const addresses = clusterIps.length + externalIps.length + loadBalancerIps.length
  // A headless Service without ports is reached at its addresses as a whole.
  const nodePorts = ports.filter(({ nodePort }) => nodePort !== 0).length
  const frontends = Math.max(1, ports.length) * addresses + nodePorts * clusterIps.length
  const byPort = endpointsByPort(ports, slices)
  const endpoints = sum(byPort, count => count)
  const settings = rates.slotsMax && balanceSettings(service, balancing)
  const slots =
    settings === undefined ? endpoints : sum(byPort, count => rates.slotsMax?.(count, settings) ?? count)
  const lists =
    (rates.perFrontend ? Math.max(1, addresses) : 1) * (service.affinityTimeoutS > 0 ? AFFINITY_FACTOR : 1)
  const ranges = ports.length * loadBalancerIps.length * sourceRanges.length
  const once = rates.sliceEndpoint * sum(slices, slice => slice.endpoints.length)
  const bytes =
    SERVICE_BYTES + rates.frontend * frontends + once + rates.endpoint * slots * lists + RANGE_BYTES * ranges
  return { ports: ports.length, addresses, endpoints, bytes: Math.ceil(bytes) }
}

/** Takes time linear in ports and slices, not in their product: both come from untrusted objects. */
function endpointsByPort(ports: readonly ServicePortSpec[], slices: SliceList): readonly number[] {
  if (ports.length === 0) return [sum(slices, ({ endpoints }) => endpoints.length)]
  const byPort = new Map<string, number>()
  for (const { ports: its, endpoints } of slices)
    for (const port of its) byPort.set(keyOf(port), (byPort.get(keyOf(port)) ?? 0) + endpoints.length)
  return ports.map(port => byPort.get(keyOf(port)) ?? 0)
}

function keyOf({ name, protocol }: Pick<ServicePortSpec, 'name' | 'protocol'>): string {
  return `${name}/${protocol}`
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  return list.reduce((total, item) => total + of(item), 0)
}
