import { type Clock, Pauses, type Steps } from '../base/clock.ts'
import { append, PersistentMap } from '../base/collections.ts'
import { objectText, type Refusal } from './fields.ts'
import { FIRM, levelOf, namespaceOf } from './memory-shares.ts'
import { type EndpointSlice, NO_HINTS, type Service } from './service.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from './snapshot.ts'

/** Counts the parts of the objects of one namespace. */
interface Holding {
  readonly held: number
  /** Parts, including those of objects that are left out. */
  readonly asked: number
}

/** Names an object that is left out, like an event that deletes it. */
export type LeftOut = Pick<CountedEvent, 'kind' | 'key'>

/** The parts that are held of all objects. Immutable; the next one costs what has changed. */
export interface ObjectBudget {
  readonly holdings: PersistentMap<Holding>
  /** Parts of all namespaces. */
  readonly held: number
  /** Parts that are held above the limit, because no more objects can be left out. */
  readonly tolerated: number
  readonly leftOut: PersistentMap<LeftOut>
}

export const NOTHING_HELD: ObjectBudget = {
  holdings: PersistentMap.empty(),
  held: 0,
  tolerated: 0,
  leftOut: PersistentMap.empty(),
}

/** Counts parts by namespace, and leaves out the largest objects of the namespaces that hold most. */
export class PartsLedger {
  readonly #partsMax: number
  readonly #budget: ObjectBudget
  readonly #holdings = new Map<string, Holding | undefined>()
  readonly #leftOut = new Map<string, LeftOut | undefined>()
  readonly #limit: () => number
  #held: number
  #tolerated: number

  /** `limit` is what there is room for at the moment, LEAST_SHARE of `partsMax` to all of it. */
  constructor(partsMax: number, budget = NOTHING_HELD, limit = () => partsMax) {
    this.#partsMax = partsMax
    this.#limit = limit
    this.#budget = budget
    this.#held = budget.held
    this.#tolerated = budget.tolerated
  }

  /** Counts the event instead of `before`. */
  put({ kind, key, value }: CountedEvent, before: CountedObject | undefined): void {
    if (value?.leftOut !== undefined) this.#leftOut.set(`${kind}/${key}`, { kind, key })
    else if (before?.leftOut !== undefined) this.#leftOut.set(`${kind}/${key}`, undefined)
    const namespace = namespaceOf(key)
    this.#move(namespace, before, -1)
    this.#move(namespace, value, 1)
  }

  get held(): number {
    return this.#held
  }

  /** Whether more parts are held than the limit allows, and some can be left out. */
  get isOver(): boolean {
    // Asked at each object of a list, which is far below every limit nearly always.
    if (this.#held <= LEAST_SHARE * this.#partsMax) return false
    return this.#held > Math.max(this.#limit(), this.#tolerated / FIRM)
  }

  /** Leaves out objects until each namespace is within its share. Gives their stubs; `objects` are all objects. */
  *reduce(objects: Iterable<CountedEvent>): Steps<readonly CountedEvent[]> {
    const level = levelOf(
      [...this.#all()].map(({ asked }) => asked),
      FIRM * this.#limit(),
    )
    const stubs: CountedEvent[] = []
    for (const list of (yield* this.#candidates(objects, level)).values()) {
      yield
      list.sort((a, b) => b.parts - a.parts || (a.event.key < b.event.key ? 1 : -1))
      for (const { event } of list) {
        if (this.#holding(namespaceOf(event.key)).held <= level) break
        const stub = leavingOut(event, this.#partsMax)
        this.put(stub, event.value)
        stubs.push(stub)
      }
    }
    this.#tolerated = this.#held > FIRM * this.#limit() ? this.#held : 0
    return stubs
  }

  get budget(): ObjectBudget {
    return {
      holdings: this.#budget.holdings.withOwn(this.#holdings),
      held: this.#held,
      tolerated: this.#held > this.#partsMax ? this.#tolerated : 0,
      leftOut: this.#budget.leftOut.withOwn(this.#leftOut),
    }
  }

  /** Finds the objects that can be left out, in namespaces that hold more than the level. */
  *#candidates(objects: Iterable<CountedEvent>, level: number): Steps<ReadonlyMap<string, Candidate[]>> {
    const byNamespace = new Map<string, Candidate[]>()
    const pauses = new Pauses()
    for (const event of objects) {
      if (pauses.due()) yield
      const namespace = namespaceOf(event.key)
      if (event.value === undefined || this.#holding(namespace).held <= level) continue
      const parts = partsOf(event.value)
      if (!isReducible(parts)) continue
      append(byNamespace, namespace, { event, parts })
    }
    return byNamespace
  }

  #move(namespace: string, object: CountedObject | undefined, sign: 1 | -1): void {
    if (object === undefined) return
    const parts = partsOf(object)
    const { held, asked } = this.#holding(namespace)
    const after = { held: held + sign * parts, asked: asked + sign * (object.leftOut ?? parts) }
    this.#holdings.set(namespace, after.held === 0 ? undefined : after)
    this.#held += sign * parts
  }

  #holding(namespace: string): Holding {
    const own = this.#holdings
    return (own.has(namespace) ? own.get(namespace) : this.#budget.holdings.get(namespace)) ?? NOTHING
  }

  *#all(): Generator<Holding> {
    for (const [namespace, holding] of this.#budget.holdings.entries())
      if (!this.#holdings.has(namespace)) yield holding
    for (const holding of this.#holdings.values()) if (holding !== undefined) yield holding
  }
}

interface Candidate {
  readonly event: CountedEvent
  readonly parts: number
}

const NOTHING: Holding = { held: 0, asked: 0 }

interface BudgetInput {
  readonly partsMax: number
  readonly budget: ObjectBudget
  /** The snapshot that the budget counts. */
  readonly before: Snapshot
  readonly after: Snapshot
}

/** Leaves the objects out of a later snapshot that do not fit into the budget. */
export function* withinBudget({
  partsMax,
  budget,
  before,
  after,
}: BudgetInput): Steps<{ readonly snapshot: Snapshot; readonly budget: ObjectBudget }> {
  if (before.services === after.services && before.sliceByKey === after.sliceByKey)
    return { snapshot: after, budget }
  const ledger = new PartsLedger(partsMax, budget)
  const pauses = new Pauses()
  for (const [was, event] of changesBetween(before, after)) {
    if (pauses.due()) yield
    ledger.put(event, was)
  }
  if (!ledger.isOver) return { snapshot: after, budget: ledger.budget }
  const stubs = yield* ledger.reduce(objectsOf(after))
  const { number } = after
  return { snapshot: { ...applyEvents(after, stubs), number }, budget: ledger.budget }
}

/** The same of a snapshot that follows none. */
export function* wholeWithinBudget(
  after: Snapshot,
  partsMax = Number.POSITIVE_INFINITY,
): ReturnType<typeof withinBudget> {
  return yield* withinBudget({ partsMax, budget: NOTHING_HELD, before: EMPTY_SNAPSHOT, after })
}

function* changesBetween(
  before: Snapshot,
  after: Snapshot,
): Generator<readonly [CountedObject | undefined, CountedEvent]> {
  for (const [key, was, value] of PersistentMap.differences(before.services, after.services))
    yield [was, { kind: 'Service', key, value }]
  for (const [key, was, value] of PersistentMap.differences(before.sliceByKey, after.sliceByKey))
    yield [was, { kind: 'EndpointSlice', key, value }]
}

function* objectsOf({ services, sliceByKey }: Snapshot): Generator<CountedEvent> {
  for (const value of services.values()) yield { kind: 'Service', key: value.key, value }
  for (const value of sliceByKey.values()) yield { kind: 'EndpointSlice', key: value.key, value }
}

/** Finds the objects that are left out and fit now, the smallest first. */
export function fitting({
  partsMax,
  budget,
  snapshot,
}: Omit<BudgetInput, 'before' | 'after'> & { readonly snapshot: Snapshot }): readonly LeftOut[] {
  const { holdings, leftOut } = budget
  const level = levelOf(
    holdings.values().map(({ asked }) => asked),
    FIRM * partsMax,
  )
  const found = leftOut.values().map(its => {
    const object = (its.kind === 'Service' ? snapshot.services : snapshot.sliceByKey).get(its.key)
    return { its, growth: object?.leftOut === undefined ? 0 : object.leftOut - partsOf(object) }
  })
  const held = new Map<string, number>()
  return found
    .sort((a, b) => a.growth - b.growth)
    .flatMap(({ its, growth }) => {
      const namespace = namespaceOf(its.key)
      const after = (held.get(namespace) ?? holdings.get(namespace)?.held ?? 0) + growth
      if (growth === 0 || after > level) return []
      held.set(namespace, after)
      return [its]
    })
}

/** An event about an object that may be large. */
export type CountedEvent = Extract<SourceEvent, { readonly kind: 'Service' | 'EndpointSlice' }>
export type CountedObject = Service | EndpointSlice

export function isCounted(event: { readonly kind: string }): event is CountedEvent {
  return event.kind === 'Service' || event.kind === 'EndpointSlice'
}

/** Parts of an object besides its ports, addresses and endpoints. */
export const OBJECT_PARTS = 4
const REFUSAL_PARTS = 2
/** Text that counts as one part. */
const TEXT_LENGTH = 128
/** Text of an endpoint that its own part covers, of its node, and the UID and name of its pod. */
const ENDPOINT_TEXT_LENGTH = 32
/** A hint, beside its name. */
const HINT_LENGTH = 32
/** Parts of an object that is left out: its names and the refusal. */
const STUB_PARTS = 8

/** Counts the memory of a held object, in parts of at most 128 B: a port, an address and an endpoint are one each. */
export function partsOf(object: CountedObject): number {
  if (object.leftOut !== undefined) return STUB_PARTS
  const own = 'endpoints' in object ? endpointParts(object) : addressParts(object)
  return Math.ceil(OBJECT_PARTS + object.ports.length + REFUSAL_PARTS * object.refusals.length + own)
}

/** Tests whether an object of so many parts takes less memory when it is left out. */
function isReducible(parts: number): boolean {
  return parts > STUB_PARTS
}

function addressParts(service: Service): number {
  const { externalIps, loadBalancerIps, sourceRanges, writtenRanges, details } = service
  const ips = externalIps.length + loadBalancerIps.length + sourceRanges.length + writtenRanges.length
  if (details === undefined) return ips
  const { labels, annotations, targetPorts } = details
  return ips + (textLength(labels) + textLength(annotations) + textLength(targetPorts)) / TEXT_LENGTH
}

function endpointParts({ endpoints, targetNames = '', targetUids = '', hostnames }: EndpointSlice): number {
  let text = targetNames.length + textLength(hostnames)
  if (targetUids !== '') text += targetUids.length - (endpoints.length - 1)
  for (let index = 0; index < endpoints.length; index++) {
    const traits = endpoints[index]?.traits
    if (traits === undefined) continue
    text += traits.nodeName.length
    if (traits.hints === NO_HINTS) continue
    for (const name of traits.hints.forZones) text += HINT_LENGTH + name.length
    for (const name of traits.hints.forNodes) text += HINT_LENGTH + name.length
  }
  return endpoints.length + Math.max(0, text - ENDPOINT_TEXT_LENGTH * endpoints.length) / TEXT_LENGTH
}

function textLength(texts: Readonly<Record<string, string | number>> = {}): number {
  let length = 0
  for (const name in texts) length += name.length + String(texts[name]).length
  return length
}

/**
 * Reduces the object of an event to its stub: a Service keeps its ClusterIPs, which reject, and a slice has no endpoints.
 * `partsMax` is for the text of the refusal.
 */
function leavingOut(event: CountedEvent, partsMax: number): CountedEvent {
  const { kind, key, value } = event
  if (value === undefined || !isReducible(partsOf(value))) return event
  const leftOut = partsOf(value)
  if (kind === 'EndpointSlice') {
    const { targetNames: _names, targetUids: _uids, hostnames: _hostnames, ...slice } = value
    const { ports, endpoints } = slice
    const reason = `holds ${leftOut} parts (${ports.length} ports, ${endpoints.length} endpoints), ${over(partsMax)}; no endpoint of it is used; ${ADVICE}`
    const refusal = {
      object: objectText(kind, key),
      field: 'endpoints',
      value: `${endpoints.length}`,
      reason,
    }
    return { kind, key, value: { ...slice, ports: [], endpoints: [], refusals: [refusal], leftOut } }
  }
  const { details: _details, ...service } = value
  const { ports, clusterIps, externalIps, loadBalancerIps } = service
  const addresses = clusterIps.length + externalIps.length + loadBalancerIps.length
  const reason = `holds ${leftOut} parts (${ports.length} ports, ${addresses} addresses), ${over(partsMax)}; no port of it is served; ${ADVICE}`
  const refusal = { object: objectText(kind, key), field: 'spec.ports', value: `${ports.length}`, reason }
  const stub = { ...rejecting(service, [refusal]), sourceRanges: [], writtenRanges: [], leftOut }
  return { kind, key, value: stub }
}

/** Names no figures of other objects, so that the text changes only with the object. */
function over(partsMax: number): string {
  return (
    'more than fits into the share of its namespace: the namespaces that hold most divide ' +
    `${Math.floor(partsMax)} parts (ports, addresses, endpoints) equally, the smallest objects first`
  )
}

const ADVICE = 'give it fewer of them, or the process a higher memory limit'

/** Reduces a Service to its ClusterIPs: connections to them are rejected, and no other Service gets them. */
export function rejecting(service: Service, refusals: readonly Refusal[]): Service {
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

/** Holds parts of objects: the Snapshot of a daemon, a list that arrives. */
export interface PartsHolder {
  readonly parts: number
}

/** A list that arrives may have so much even where everything else is full: else nothing could ever be read again. */
const LEAST_SHARE = 0.25

/** One limit for all parts that this process holds: of its objects, and of the lists that arrive. */
export class PartsRoom {
  readonly partsMax: number
  readonly #holders = new Set<PartsHolder>()

  constructor(partsMax: number) {
    this.partsMax = partsMax
  }

  enter(holder: PartsHolder): void {
    this.#holders.add(holder)
  }

  leave(holder: PartsHolder): void {
    this.#holders.delete(holder)
  }

  /** Computes how many parts a list may hold beside all other holders. */
  limitOf(list: PartsHolder): number {
    let left = this.partsMax
    for (const holder of this.#holders) if (holder !== list) left -= holder.parts
    return Math.max(left, LEAST_SHARE * this.partsMax)
  }
}

/** Minimum time between two lists, and its addition for each object; doubles each time. */
const REREAD_MS = 30_000
const REREAD_OBJECT_MS = 5
const REREAD_MS_MAX = 3_600_000

/** Spaces the lists that read again what was left out for want of memory: they may leave it out again. */
export class RereadPace {
  readonly #clock: Pick<Clock, 'nowMs'>
  /** Monotonic milliseconds. */
  #nextMs = 0
  #rereads = 0

  constructor(clock: Pick<Clock, 'nowMs'>) {
    this.#clock = clock
  }

  /** Milliseconds until the next list may begin. */
  get waitMs(): number {
    return Math.max(0, this.#nextMs - this.#clock.nowMs())
  }

  /** Counts a list of so many objects that begins now. */
  began(objects: number): void {
    const nowMs = this.#clock.nowMs()
    if (nowMs - this.#nextMs > REREAD_MS_MAX) this.#rereads = 0
    const distanceMs = (REREAD_MS + REREAD_OBJECT_MS * objects) * 2 ** this.#rereads++
    this.#nextMs = nowMs + Math.min(distanceMs, REREAD_MS_MAX)
  }

  /** Nothing is left out any more. */
  reset(): void {
    this.#rereads = 0
  }
}

/** A refusal that no Service reports, and the resource that it is of. */
interface Orphan {
  readonly location: string
  readonly refusal: Refusal
}

/** Refusals that are reported, each by its object. */
const ORPHANS_MAX = 1_000

/** Finds slices that are left out and have no Service that could report them. */
export function orphansIn({ services, sliceByKey }: Snapshot, { leftOut }: ObjectBudget): readonly Orphan[] {
  const orphans: Orphan[] = []
  for (const { kind, key } of leftOut.values()) {
    const slice = kind === 'EndpointSlice' ? sliceByKey.get(key) : undefined
    const service = slice === undefined ? undefined : services.get(slice.service)
    if (service !== undefined && service.type !== 'ExternalName') continue
    for (const refusal of slice?.refusals ?? [])
      if (orphans.length < ORPHANS_MAX) orphans.push({ location: 'endpointslices', refusal })
  }
  return orphans
}
