import {
  type ApiProjection,
  type ResolvedView,
  StateDraft,
  touchedViews,
} from '../../../src/api/next-state.ts'
import type { ApiState } from '../../../src/api/state.ts'
import { finish } from '../../../src/base/clock.ts'
import { isRefusal } from '../../../src/model/fields.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { parseObject } from '../../../src/model/parse.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import { OPTIONS } from '../model/objects.ts'

export function detailed(object: unknown): SourceEvent {
  const event = parseObject(object, undefined, { details: true, headlessSlices: true })
  if (event === undefined || isRefusal(event)) throw new Error(`no event: ${JSON.stringify(event)}`)
  return event
}

/** A node that is told of one set of events after the other. */
export class Viewer {
  #resolved: Resolved | undefined
  #projection: ApiProjection | undefined
  readonly #options: ResolveOptions

  constructor(options: Partial<ResolveOptions> = {}) {
    this.#options = { ...OPTIONS, ...options }
  }

  take(events: Iterable<SourceEvent>): ApiState {
    const snapshot = applyEvents(this.#resolved?.snapshot ?? EMPTY_SNAPSHOT, events)
    this.#resolved = finish(resolve(this.#options, this.#resolved, snapshot))
    this.#projection = projectionAfter(this.#projection, this.#resolved)
    return this.#projection.state
  }

  /** The same, computed from nothing. */
  anew(): ApiState {
    return viewOf(this.#resolved?.snapshot ?? EMPTY_SNAPSHOT, this.#options)
  }
}

/** What a node publishes, computed from nothing. */
export function viewOf(snapshot: Snapshot, options: Partial<ResolveOptions>): ApiState {
  const resolved = finish(resolve({ ...OPTIONS, ...options }, undefined, snapshot))
  return projectionAfter(undefined, resolved).state
}

/** The result of nextApiState(), without a pause. */
function projectionAfter(before: ApiProjection | undefined, resolved: ResolvedView): ApiProjection {
  const draft = new StateDraft(before)
  for (const [key, view] of touchedViews(before?.resolved, resolved)) Array.from(draft.restate(key, view))
  return draft.projectionOf(resolved)
}

export function stateOf(objects: readonly unknown[], options: Partial<ResolveOptions> = {}): ApiState {
  return new Viewer(options).take(objects.map(detailed))
}

/** By path, as plain JSON. */
export function shownObjects(state: ApiState): { services: object; endpoints: object } {
  const [services, endpoints] = [state.services, state.endpoints].map(map =>
    Object.fromEntries(map.values().map(({ path, json }) => [path, JSON.parse(JSON.stringify(json))])),
  )
  return { services: services ?? {}, endpoints: endpoints ?? {} }
}
