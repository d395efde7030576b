import { finishInSlices, Slice, type Slicing } from '../base/clock.ts'
import { append, PersistentMap } from '../base/collections.ts'
import { type NodeContext, nodeContextOf, type ResolveOptions } from '../model/node-context.ts'
import { API_SERVICE } from '../model/reserved.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { ServiceKey, SliceList } from '../model/service.ts'
import type { NodeInfo, Snapshot } from '../model/snapshot.ts'
import { type ApiProjection, nextApiState, StateDraft, touchedBetween, viewIn } from './next-state.ts'
import { isNamedIn, NO_NODE, nodesOf, resolveFor } from './shared-view.ts'
import { type ApiObject, type ApiState, isSameFrame, type OwnObjects } from './state.ts'

interface ResolvedProjection extends ApiProjection {
  readonly resolved: Resolved
}

/** The state that nodes share now, and its differences from the previous one. */
export interface SharedStep {
  readonly before: ResolvedProjection | undefined
  readonly now: ResolvedProjection
  /** Services that have changed, with the nodes from whose point of view they differ; empty at the first step. */
  readonly touched: ReadonlyMap<ServiceKey, ReadonlySet<string>>
}

/** The state that all nodes of a zone share: everything but the endpoints that are a node's own. */
export class SharedState {
  readonly #options: ResolveOptions
  readonly #node: NodeInfo
  #lender: SharedState | undefined
  step: SharedStep | undefined

  /** `node` is the point of view: see nodeIn(). Objects that `lender` has already are not made again. */
  constructor(options: ResolveOptions, node: NodeInfo, lender?: SharedState) {
    this.#options = { ...options, nodeName: NO_NODE }
    this.#node = { ...node, name: NO_NODE }
    this.#lender = lender
  }

  /** Follows a snapshot, and pauses between objects. */
  async next(shared: Snapshot, slicing: Slicing): Promise<void> {
    const before = this.step?.now
    if (before?.resolved.snapshot.number === shared.number) return
    const snapshot = { ...shared, node: this.#node }
    const lent = before ?? lentBy(this.#lender?.step?.now)
    const resolved = await finishInSlices(resolve(this.#options, lent?.resolved, snapshot), slicing)
    const { state } = await nextApiState(lent, resolved, slicing)
    const now = { state, resolved }
    const touched = new Map<ServiceKey, ReadonlySet<string>>()
    if (before !== undefined)
      for (const key of touchedBetween(before.resolved, resolved)) {
        const slices = [before.resolved, resolved].map(
          ({ snapshot }) => snapshot.slices.get(key) ?? NO_SLICES,
        )
        touched.set(key, nodesOf(slices.flat()))
      }
    this.#lender = undefined
    this.step = { before, now, touched }
  }
}

const NO_SLICES: SliceList = []

/** Copies the maps: reading two versions of one map in turn would convert each into the other. */
function lentBy(lender: ResolvedProjection | undefined): ResolvedProjection | undefined {
  if (lender === undefined) return undefined
  const { state, resolved } = lender
  const { number, services, endpoints } = state
  return {
    state: { number, services: copyOf(services), endpoints: copyOf(endpoints) },
    resolved: {
      ...resolved,
      table: {
        ...resolved.table,
        services: copyOf(resolved.table.services),
        localBackends: PersistentMap.empty(),
      },
    },
  }
}

function copyOf<V>(map: PersistentMap<V>): PersistentMap<V> {
  return PersistentMap.from(map.entries())
}

const NO_OBJECTS: OwnObjects = { services: PersistentMap.empty(), endpoints: PersistentMap.empty() }

/** One node's state, as a difference from that of its zone: its cost follows the Services that name the node. */
export class NodeState {
  readonly #options: ResolveOptions
  #shared: ResolvedProjection | undefined
  #node: NodeInfo | undefined
  #here: NodeContext | undefined
  #apiSlices: SliceList | undefined
  /** Paths of its own endpoints by Service: only Services that name the node have some. */
  #paths = new Map<ServiceKey, string[]>()
  /** Undefined before the first step. */
  state: ApiState | undefined

  constructor(options: ResolveOptions) {
    this.#options = options
  }

  /** Follows a step of what it shares: another SharedState where the node has moved, or its addresses matter. */
  async next(
    { before, now, touched }: SharedStep,
    node: NodeInfo | undefined,
    slicing: Slicing,
  ): Promise<void> {
    if (this.#shared === now) return
    const isNext = before !== undefined && this.#shared === before
    const { nodeName } = this.#options
    const named = isNext
      ? [...touched].flatMap(([key, nodes]) => (nodes.has(nodeName) ? [key] : []))
      : servicesNaming(nodeName, now.resolved.snapshot)
    const here = this.#hereOf(now.resolved.snapshot, node)
    if (!isNext) this.#paths = new Map()
    const known = (isNext ? this.state?.own : undefined) ?? NO_OBJECTS
    if (named.length === 0) this.#become(now, known)
    else {
      const draft = new StateDraft(now)
      const slice = new Slice(slicing)
      for (const [key, its] of resolveFor(here, now.resolved, named))
        for (const _ of draft.restate(key, viewIn(now.resolved.snapshot, key, its)))
          if (slice.isOver) await slice.next()
      this.#become(now, this.#restated(known, named, draft))
    }
    this.#shared = now
    this.#node = node
  }

  #hereOf(snapshot: Snapshot, node: NodeInfo | undefined): NodeContext {
    const apiSlices = snapshot.slices.get(API_SERVICE)
    if (this.#here === undefined || this.#node !== node || this.#apiSlices !== apiSlices)
      this.#here = nodeContextOf(this.#options, { ...snapshot, node })
    this.#apiSlices = apiSlices
    return this.#here
  }

  #restated(
    known: OwnObjects,
    named: readonly ServiceKey[],
    objects: { readonly [Set in keyof OwnObjects]: ReadonlyMap<string, ApiObject | undefined> },
  ): OwnObjects {
    const services = new Map<string, ApiObject | null | undefined>(named.map(key => [key, undefined]))
    const endpoints = new Map<string, ApiObject | null | undefined>()
    for (const key of named) {
      for (const path of this.#paths.get(key) ?? []) endpoints.set(path, undefined)
      this.#paths.delete(key)
    }
    const settled = (was: ApiObject | null | undefined, now: ApiObject | undefined): ApiObject | null =>
      now !== undefined && was && isSameFrame(was, now) ? was : (now ?? null)
    for (const [path, object] of objects.services)
      services.set(path, settled(known.services.get(path), object))
    for (const [path, object] of objects.endpoints) {
      endpoints.set(path, settled(known.endpoints.get(path), object))
      append(this.#paths, path.split('/', 2).join('/'), path)
    }
    return { services: known.services.withOwn(services), endpoints: known.endpoints.withOwn(endpoints) }
  }

  #become({ state: { services, endpoints } }: ResolvedProjection, own: OwnObjects): void {
    const was = this.state
    const isSame =
      was?.services === services &&
      was.endpoints === endpoints &&
      was.own?.services === own.services &&
      was.own.endpoints === own.endpoints
    if (!isSame) this.state = { number: (was?.number ?? 0) + 1, services, endpoints, own }
  }
}

function servicesNaming(node: string, { slices }: Snapshot): readonly ServiceKey[] {
  return slices.entries().flatMap(([key, list]) => (isNamedIn(list, node) ? [key] : []))
}
