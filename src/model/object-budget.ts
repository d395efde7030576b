import { PersistentMap } from '../base/persistent-map.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import { FIRM, levelOf, namespaceOf } from './memory-shares.ts'
import {
  type CountedEvent,
  type CountedObject,
  isReducible,
  leavingOut,
  partsOf,
  wholePartsOf,
} from './object-parts.ts'
import { applyEvents, type Snapshot } from './snapshot.ts'

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

  /** `limit` is what there is room for at the moment, at most `partsMax`. */
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
    this.#move(namespaceOf(key), before, -1)
    this.#move(namespaceOf(key), value, 1)
  }

  get held(): number {
    return this.#held
  }

  /** Whether more parts are held than the limit allows, and some can be left out. */
  get isOver(): boolean {
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
      const list = byNamespace.get(namespace)
      if (list === undefined) byNamespace.set(namespace, [{ event, parts }])
      else list.push({ event, parts })
    }
    return byNamespace
  }

  #move(namespace: string, object: CountedObject | undefined, sign: 1 | -1): void {
    if (object === undefined) return
    const parts = sign * partsOf(object)
    const { held, asked } = this.#holding(namespace)
    const after = { held: held + parts, asked: asked + sign * wholePartsOf(object) }
    this.#holdings.set(namespace, after.held === 0 ? undefined : after)
    this.#held += parts
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

export interface BudgetInput {
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
    return { its, growth: object === undefined ? 0 : wholePartsOf(object) - partsOf(object) }
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
