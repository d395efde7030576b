import type { Steps } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { compareTexts } from '../base/text.ts'
import type { Service, ServiceKey, ServicePortSpec, SliceList } from './service.ts'

/** What the Services of one namespace ask for. */
interface Demand {
  readonly bytes: number
  /** Demands by class of cost. */
  readonly classes: ReadonlyMap<number, ClassDemand>
}

interface ClassDemand {
  readonly bytes: number
  readonly keys: PersistentMap<true>
}

/** Demands by namespace. */
export type Demands = PersistentMap<Demand>

/** A change of what one Service asks for, bytes; undefined where it asks for nothing. */
export interface DemandChange {
  readonly key: ServiceKey
  readonly before: number | undefined
  readonly now: number | undefined
}

/** The limit beyond which a namespace asks for too much. */
interface Cut {
  /** Bytes that it may take. */
  readonly level: number
  readonly demand: Demand
  /** The class that does not fit as a whole: those above it are not served. */
  readonly at: number
  /** The Services of that class that fit. */
  readonly served: ReadonlySet<ServiceKey>
}

/** Limits by namespace, for those that ask for too much. */
export type Cuts = ReadonlyMap<string, Cut>

/** A refused object is accepted again only within this part: else it would come and go with small changes elsewhere. */
export const FIRM = 0.95

export const NO_CUTS: ReadonlyMap<string, Cut> = new Map()

/** The demands after these changes; costs what has changed. */
export function demandsAfter(demands: Demands, changes: readonly DemandChange[]): Demands {
  const drafts = new Map<string, Map<number, ClassDraft>>()
  for (const { key, before, now } of changes) {
    if (before !== undefined) enter(drafts, key, { bytes: before, sign: -1 })
    if (now !== undefined) enter(drafts, key, { bytes: now, sign: 1 })
  }
  const next = new Map<string, Demand | undefined>()
  for (const [namespace, draft] of drafts) next.set(namespace, demandAfter(demands.get(namespace), draft))
  return demands.withOwn(next)
}

interface ClassDraft {
  bytes: number
  readonly keys: Map<ServiceKey, true | undefined>
}

function enter(
  drafts: Map<string, Map<number, ClassDraft>>,
  key: ServiceKey,
  { bytes, sign }: { readonly bytes: number; readonly sign: 1 | -1 },
): void {
  const namespace = namespaceOf(key)
  const classes = drafts.get(namespace) ?? new Map<number, ClassDraft>()
  drafts.set(namespace, classes)
  const draft = classes.get(classOf(bytes)) ?? { bytes: 0, keys: new Map() }
  classes.set(classOf(bytes), draft)
  draft.bytes += sign * bytes
  draft.keys.set(key, sign > 0 ? true : undefined)
}

function demandAfter(demand: Demand | undefined, draft: ReadonlyMap<number, ClassDraft>): Demand | undefined {
  const classes = new Map(demand?.classes)
  let total = demand?.bytes ?? 0
  for (const [at, { bytes, keys }] of draft) {
    const before = classes.get(at)
    const now = (before?.keys ?? PersistentMap.empty<true>()).withOwn(keys)
    total += bytes
    if (now.size === 0) classes.delete(at)
    else classes.set(at, { bytes: (before?.bytes ?? 0) + bytes, keys: now })
  }
  return classes.size === 0 ? undefined : { bytes: total, classes }
}

interface CutInput {
  readonly demands: Demands
  /** Bytes. */
  readonly memory: number
  readonly costOf: (key: ServiceKey) => number
  readonly bornOf: (key: ServiceKey) => string
  readonly before: Cuts
}

/**
 * Divides the memory: each namespace may take as much as any other (max-min fairness), and what it leaves is for those
 * that ask for more. Costs the number of namespaces, and the Services of one class of each whose demand or level changed.
 */
export function* cutsOf(input: CutInput): Steps<Cuts> {
  const { demands, before } = input
  const asked = demands.values().map(({ bytes }) => bytes)
  const level = levelOf(asked, input.memory)
  const cuts = new Map<string, Cut>()
  for (const [namespace, demand] of demands.entries()) {
    if (demand.bytes <= level) continue
    const known = before.get(namespace)
    if (known?.demand === demand && known.level === level) cuts.set(namespace, known)
    else {
      yield
      cuts.set(namespace, cutWithin(input, demand, level))
    }
  }
  return cuts
}

/** The level in steps of 0.8 %: cuts of other namespaces stay as they are while one changes a little. */
const STEPS_AN_OCTAVE = 128

/**
 * Computes the share that one of several may have of `all` (max-min fairness): L, such that the sum of min(asked, L) is
 * `all` or a little less; infinite when `all` covers everything asked.
 */
export function levelOf(asked: readonly number[], all: number): number {
  const inOrder = Float64Array.from(asked).sort()
  let left = all
  for (let index = 0; index < inOrder.length; index++) {
    const its = inOrder[index] ?? 0
    const equal = left / (inOrder.length - index)
    if (its > equal) {
      const step = 2 ** Math.floor(Math.log2(equal)) / STEPS_AN_OCTAVE
      return Math.floor(equal / step) * step
    }
    left -= its
  }
  return Number.POSITIVE_INFINITY
}

function cutWithin({ costOf, bornOf }: CutInput, demand: Demand, level: number): Cut {
  const served = new Set<ServiceKey>()
  let left = level
  for (const [at, { bytes, keys }] of [...demand.classes].sort(([a], [b]) => a - b)) {
    if (bytes <= left) {
      left -= bytes
      continue
    }
    const inOrder = keys.keys().map(key => ({ key, born: bornOf(key) }))
    inOrder.sort((a, b) => compareTexts(a.born, b.born) || compareTexts(a.key, b.key))
    for (const { key } of inOrder) {
      left -= costOf(key)
      if (left < 0) break
      served.add(key)
    }
    return { level, demand, at, served }
  }
  return { level, demand, at: Number.POSITIVE_INFINITY, served }
}

export function isCut(cut: Cut | undefined, key: ServiceKey, bytes: number): boolean {
  return cut !== undefined && isCutAt(cut, key, classOf(bytes))
}

function isCutAt(cut: Cut, key: ServiceKey, at: number): boolean {
  return at > cut.at || (at === cut.at && !cut.served.has(key))
}

/** Services that one of the cuts leaves out and the other does not; costs the classes between the two. */
export function* movedBetween(before: Cuts, cuts: Cuts, demands: Demands): Steps<readonly ServiceKey[]> {
  const moved: ServiceKey[] = []
  for (const namespace of new Set([...before.keys(), ...cuts.keys()])) {
    const [from, to] = [before.get(namespace), cuts.get(namespace)]
    if (from === to) continue
    yield
    const [a, b] = [from?.at ?? Number.POSITIVE_INFINITY, to?.at ?? Number.POSITIVE_INFINITY]
    for (const [at, { keys }] of demands.get(namespace)?.classes ?? [])
      if (at >= Math.min(a, b) && at <= Math.max(a, b))
        for (const key of keys.keys()) {
          const was = from !== undefined && isCutAt(from, key, at)
          if (was !== (to !== undefined && isCutAt(to, key, at))) moved.push(key)
        }
  }
  return moved
}

/** Costs of one class differ by 9 % at most. */
function classOf(bytes: number): number {
  return Math.ceil(8 * Math.log2(bytes))
}

export function namespaceOf(key: ServiceKey): string {
  return key.slice(0, key.indexOf('/'))
}

/** What a Service asks for, by counts alone: its cost is known before anything of it is resolved. */
export interface ServiceCost {
  readonly ports: number
  /** ClusterIPs, externalIPs and load-balancer addresses. */
  readonly addresses: number
  /** Endpoints of each port, summed over the ports. */
  readonly endpoints: number
  /** Memory that it takes at the peak of a first sync: model, rendered state, messages, the kernel's copy. */
  readonly bytes: number
}

/** What a mode takes for a part of a Service, bytes, as growth of the peak. */
export interface CostRates {
  readonly frontend: number
  /** An endpoint of a slice, beside those of its ports; 0 where they include it. */
  readonly sliceEndpoint: number
  /** An endpoint of a port. */
  readonly endpoint: number
  /** Each frontend has endpoints of its own, as virtual servers of IPVS have. */
  readonly perFrontend: boolean
}

/** Whatever the mode is. */
const SERVICE_BYTES = 1_536
const RANGE_BYTES = 64
/** A client's endpoint is looked up in a second map. */
const AFFINITY_FACTOR = 1.75

export function costOf(service: Service, slices: SliceList, rates: CostRates): ServiceCost {
  const { ports, clusterIps, externalIps, loadBalancerIps, sourceRanges } = service
  const addresses = clusterIps.length + externalIps.length + loadBalancerIps.length
  // A headless Service without ports is reached at its addresses as a whole.
  const frontends = Math.max(1, ports.length) * addresses + count(ports, hasNodePort) * clusterIps.length
  const endpoints = endpointsOf(ports, slices)
  const lists =
    (rates.perFrontend ? Math.max(1, addresses) : 1) * (service.affinityTimeoutS > 0 ? AFFINITY_FACTOR : 1)
  const ranges = ports.length * loadBalancerIps.length * sourceRanges.length
  const once = rates.sliceEndpoint * sum(slices, slice => slice.endpoints.length)
  const bytes =
    SERVICE_BYTES +
    rates.frontend * frontends +
    once +
    rates.endpoint * endpoints * lists +
    RANGE_BYTES * ranges
  return { ports: ports.length, addresses, endpoints, bytes: Math.ceil(bytes) }
}

function hasNodePort({ nodePort }: ServicePortSpec): boolean {
  return nodePort !== 0
}

/** Linear in what the objects say, however often a port and a slice meet. */
function endpointsOf(ports: readonly ServicePortSpec[], slices: SliceList): number {
  const [first] = ports
  if (first === undefined) return sum(slices, ({ endpoints }) => endpoints.length)
  if (ports.length === 1)
    return sum(slices, slice => slice.endpoints.length * count(slice.ports, port => isSamePort(port, first)))
  const byPort = new Map<string, number>()
  for (const { ports: its, endpoints } of slices)
    for (const port of its) byPort.set(keyOf(port), (byPort.get(keyOf(port)) ?? 0) + endpoints.length)
  return sum(ports, port => byPort.get(keyOf(port)) ?? 0)
}

type PortName = Pick<ServicePortSpec, 'name' | 'protocol'>

function isSamePort(a: PortName, b: PortName): boolean {
  return a.name === b.name && a.protocol === b.protocol
}

function keyOf({ name, protocol }: PortName): string {
  return `${name}/${protocol}`
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  let total = 0
  for (let index = 0; index < list.length; index++) {
    const item = list[index]
    if (item !== undefined) total += of(item)
  }
  return total
}

function count<T>(list: readonly T[], is: (item: T) => boolean): number {
  return sum(list, item => (is(item) ? 1 : 0))
}

/**
 * Counts the objects of one resource by namespace. Where there are `max`, a namespace that has its share gets no further
 * ones. What it has stays: n namespaces that want more than their shares, one after the other, get 1 + 1/2 + … + 1/n
 * times `max` at most. A list divides `max` exactly, as far as its objects are new.
 */
export class ObjectShares {
  readonly max: number
  readonly #counts: Map<string, number>
  /** Objects that were left out, by namespace. */
  readonly #leftOut = new Map<string, number>()
  #total: number
  /** What a namespace may have, computed for this total. */
  #level = Number.POSITIVE_INFINITY
  #levelTotal = -1

  constructor(max: number, counts: ReadonlyMap<string, number> = new Map()) {
    this.max = max
    this.#counts = new Map(counts)
    this.#total = [...counts.values()].reduce((sum, count) => sum + count, 0)
  }

  /** The same counts, without what is left out. */
  copy(): ObjectShares {
    return new ObjectShares(this.max, this.#counts)
  }

  /** Namespaces of which objects are left out. */
  get cut(): Iterable<string> {
    return this.#leftOut.keys()
  }

  get isCut(): boolean {
    return this.#leftOut.size > 0
  }

  isCutAt(key: string): boolean {
    return this.#leftOut.has(namespaceOf(key))
  }

  /** A namespace of which objects are left out may have more again. */
  get hasRoom(): boolean {
    if (!this.isCut) return false
    if (this.#total < FIRM * this.max) return true
    const level = FIRM * this.#levelNow()
    return [...this.cut].some(namespace => this.#countOf(namespace) < level)
  }

  /** Whether there is room for one more object of this key, which is not counted yet. */
  admits(key: string): boolean {
    return this.#total < this.max || this.#countOf(namespaceOf(key)) < this.#levelNow()
  }

  added(key: string): void {
    this.#move(this.#counts, key, 1)
    this.#total++
  }

  removed(key: string): void {
    this.#move(this.#counts, key, -1)
    this.#total--
  }

  /** An object that was not admitted. */
  leftOut(key: string): void {
    this.#move(this.#leftOut, key, 1)
  }

  /** An object that was left out exists no longer. */
  leftOutRemoved(key: string): void {
    this.#move(this.#leftOut, key, -1)
  }

  /** What each namespace may have when all that were left out are counted as well; infinite where all fit. */
  get fairLevel(): number {
    const asked = new Map(this.#counts)
    for (const [namespace, count] of this.#leftOut) asked.set(namespace, this.#countOf(namespace) + count)
    return levelOf([...asked.values()], this.max)
  }

  #countOf(namespace: string): number {
    return this.#counts.get(namespace) ?? 0
  }

  #move(counts: Map<string, number>, key: string, by: 1 | -1): void {
    const namespace = namespaceOf(key)
    const count = (counts.get(namespace) ?? 0) + by
    if (count > 0) counts.set(namespace, count)
    else counts.delete(namespace)
  }

  /** Costs the number of namespaces after each hundredth of change. */
  #levelNow(): number {
    if (this.#levelTotal < 0 || Math.abs(this.#total - this.#levelTotal) > this.max / 100) {
      this.#level = levelOf([...this.#counts.values()], Math.min(this.max, this.#total - 1))
      this.#levelTotal = this.#total
    }
    return this.#level
  }
}
