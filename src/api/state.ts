import type { Clock } from '../base/clock.ts'
import { append, PersistentMap } from '../base/collections.ts'
import { assert } from '../base/errors.ts'
import { inPieces } from '../base/text.ts'
import { localv1 } from './schema.ts'

/** One message `localv1.OpItem` behind gRPC's prefix: the bytes of `memory` from `start` to before `end`. */
export interface Frame {
  /** May hold others, too; it is no longer written to. */
  readonly memory: Buffer
  readonly start: number
  readonly end: number
}

/** One published object, with the frame that sets it: made once and shared by all readers. */
export interface ApiObject extends Frame {
  /** `namespace/name` of a Service, `namespace/name/key` of an endpoint. */
  readonly path: string
  /** The message Service or Endpoint by KPNG's names; empty fields are undefined. */
  readonly json: object
}

/** Frames that stand behind each other in one memory. */
export interface Run extends Frame {
  readonly operations: number
}

/** The state that one node publishes. Immutable; the next version shares what did not change. */
export interface ApiState {
  /** Grows with every change. */
  readonly number: number
  readonly services: PersistentMap<ApiObject>
  readonly endpoints: PersistentMap<ApiObject>
  /** The frames of a state that was made at once, as few large runs in the order of difference(). */
  readonly runs?: readonly Run[]
  /** This node's exceptions from `services` and `endpoints`, which it shares with other nodes. */
  readonly own?: OwnObjects
}

/** Objects by path that take the place of shared ones; null where there is none. */
export interface OwnObjects {
  readonly services: PersistentMap<ApiObject | null>
  readonly endpoints: PersistentMap<ApiObject | null>
}

type SetName = keyof OwnObjects
const SET_NAMES: readonly SetName[] = ['services', 'endpoints']

export const { ServicesSet: SET_SERVICES, EndpointsSet: SET_ENDPOINTS } = localv1.Set
type ApiSet = typeof SET_SERVICES | typeof SET_ENDPOINTS

/** An upper bound of the number of objects that differ between two versions that are held. */
export function distance(from: ApiState, to: ApiState): number {
  return SET_NAMES.reduce(
    (sum, set) =>
      sum +
      PersistentMap.distance(from[set], to[set]) +
      PersistentMap.distance(from.own?.[set] ?? NOTHING, to.own?.[set] ?? NOTHING),
    0,
  )
}

const NOTHING = PersistentMap.empty<ApiObject | null>()

/** Lets `older` differ from `newest` directly; see PersistentMap.skip(). */
function skipState(older: ApiState, between: ApiState, newest: ApiState): void {
  for (const set of SET_NAMES) {
    skip(older[set], between[set], newest[set])
    skip(older.own?.[set] ?? NOTHING, between.own?.[set] ?? NOTHING, newest.own?.[set] ?? NOTHING)
  }
}

function skip<V>(older: PersistentMap<V>, between: PersistentMap<V>, newest: PersistentMap<V>): void {
  if (between !== older && between !== newest) PersistentMap.skip(older, between, newest)
}

/** The object at a path, from the point of view of the node. */
function objectAt(state: ApiState, set: SetName, path: string): ApiObject | undefined {
  const own = state.own?.[set].get(path)
  return own === undefined ? state[set].get(path) : (own ?? undefined)
}

function objectsOf(state: ApiState, set: SetName): readonly ApiObject[] {
  const { own } = state
  if (own === undefined || own[set].size === 0) return state[set].values()
  const shared = state[set].keys().flatMap(path => objectAt(state, set, path) ?? [])
  const more = own[set].entries().flatMap(([path, object]) => (state[set].has(path) ? [] : (object ?? [])))
  return [...shared, ...more]
}

/** localv1.Ref. */
export interface ApiRef {
  readonly set: ApiSet
  readonly path: string
}

export type ApiOperation =
  | { readonly kind: 'set'; readonly set: ApiSet; readonly object: ApiObject }
  | { readonly kind: 'delete'; readonly set: ApiSet; readonly path: string }

/**
 * Lists the operations that lead from one version to another (undefined: from nothing). No endpoint is ever without its
 * Service: Services and then endpoints are set, endpoints and then Services are deleted. Costs what changed in between.
 */
export function* difference(before: ApiState | undefined, after: ApiState): Iterable<ApiOperation> {
  const { services, endpoints } = changesBetween(before, after)
  for (const object of services.set) yield { kind: 'set', set: SET_SERVICES, object }
  for (const object of endpoints.set) yield { kind: 'set', set: SET_ENDPOINTS, object }
  for (const path of endpoints.deleted) yield { kind: 'delete', set: SET_ENDPOINTS, path }
  for (const path of services.deleted) yield { kind: 'delete', set: SET_SERVICES, path }
}

interface ObjectChanges {
  readonly set: readonly ApiObject[]
  /** Paths. */
  readonly deleted: readonly string[]
}

/** Gives the changes of each set by itself. */
export function changesBetween(
  before: ApiState | undefined,
  after: ApiState,
): Readonly<Record<SetName, ObjectChanges>> {
  return {
    services: changesOf(before, after, 'services'),
    endpoints: changesOf(before, after, 'endpoints'),
  }
}

function changesOf(before: ApiState | undefined, after: ApiState, set: SetName): ObjectChanges {
  if (before === undefined) return { set: objectsOf(after, set), deleted: [] }
  const changed: ApiObject[] = []
  const deleted: string[] = []
  for (const path of changedPaths(before, after, set)) {
    const [was, now] = [objectAt(before, set, path), objectAt(after, set, path)]
    if (was === now) continue
    if (now === undefined) deleted.push(path)
    else if (was === undefined || !isSameFrame(was, now)) changed.push(now)
  }
  return { set: changed, deleted }
}

function changedPaths(before: ApiState, after: ApiState, set: SetName): Iterable<string> {
  const shared = PersistentMap.changes(before[set], after[set])
  const own = PersistentMap.changes(before.own?.[set] ?? NOTHING, after.own?.[set] ?? NOTHING)
  return own.length === 0 ? shared : new Set([...shared, ...own])
}

/** Compares the bytes; a node that moves to another zone shares other objects. */
export function isSameFrame(a: Frame, b: Frame): boolean {
  return a.memory.compare(b.memory, b.start, b.end, a.start, a.end) === 0
}

export interface FeedSource {
  /** Parts that have not been read entirely even once. */
  readonly missing: readonly string[]
  /** Monotonic milliseconds of the last word from the part that has been silent longest. */
  readonly heardMs: number | undefined
  /** The present problem, one line for people. */
  readonly trouble: string | undefined
}

interface FeedOptions {
  readonly clock: Pick<Clock, 'nowMs'>
  /** Undefined before there is one. */
  readonly source: () => FeedSource | undefined
}

export interface FeedStatus {
  /** The number of the newest state; 0 before the first. */
  readonly number: number
  readonly services: number
  readonly endpoints: number
  /** The time since the state last changed; undefined when there is none yet. */
  readonly sinceMs: number | undefined
  /** The time since the last word of the source's most silent part: it bounds the age of the state. */
  readonly silentMs: number | undefined
  /** The source is complete and has no problem now. */
  readonly sourceConnected: boolean
  readonly trouble: string | undefined
}

/**
 * Publishes the newest state to servers and programs. A reader asks when it is ready and gets the newest state then, never
 * one twice. The feed keeps only what differs between the state that a reader holds and the newest.
 */
export class ApiFeed {
  readonly #options: FeedOptions
  /** States that readers hold, oldest first, and the newest. */
  #positions: readonly Position[] = []
  #changedMs: number | undefined
  readonly #waiting = new Set<Waiting>()

  constructor(options: FeedOptions) {
    this.#options = options
  }

  /** Undefined until everything that exists is known. */
  get current(): ApiState | undefined {
    return this.#positions.at(-1)?.state
  }

  /** Takes the next state; the same one again changes nothing. */
  offer(state: ApiState): void {
    const before = this.#positions.at(-1)
    if (before?.state === state) return
    assert(before === undefined || before.state.number < state.number, 'states come in their order')
    this.#positions = [...this.#positions, { state, holders: 0 }]
    this.#changedMs = this.#options.clock.nowMs()
    if (before?.holders === 0) this.#forget(before)
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (const { signal, aborted, resolve } of waiting) {
      signal.removeEventListener('abort', aborted)
      resolve(state)
    }
  }

  /** The newest state once its number is above `seen` (0: any). Rejects with the signal's reason. */
  newer(seen: number, signal: AbortSignal): Promise<ApiState> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const { current } = this
      if (current !== undefined && current.number > seen) {
        resolve(current)
        return
      }
      const waiting: Waiting = {
        signal,
        resolve,
        aborted: () => {
          this.#waiting.delete(waiting)
          reject(signal.reason)
        },
      }
      this.#waiting.add(waiting)
      signal.addEventListener('abort', waiting.aborted, { once: true })
    })
  }

  /**
   * Says that `state` (one that came from here) will be compared with a newer one: until it is released as often, what
   * differs is remembered, once for all holders. Pass only held states to difference().
   */
  hold(state: ApiState): void {
    const position = this.#positions.find(its => its.state === state)
    assert(position !== undefined, 'a state is held while it is the newest, or while others hold it')
    position.holders++
  }

  release(state: ApiState): void {
    const position = this.#positions.find(its => its.state === state)
    assert(position !== undefined && position.holders > 0, 'a state is released as often as it was held')
    position.holders--
    if (position.holders === 0 && state !== this.current) this.#forget(position)
  }

  /** States that are kept: those that readers hold, and the newest. */
  get kept(): number {
    return this.#positions.length
  }

  status(): FeedStatus {
    const { clock, source } = this.#options
    const { current } = this
    const its = source()
    const nowMs = clock.nowMs()
    return {
      number: current?.number ?? 0,
      services: current?.services.size ?? 0,
      endpoints: current?.endpoints.size ?? 0,
      sinceMs: this.#changedMs === undefined ? undefined : nowMs - this.#changedMs,
      silentMs: its?.heardMs === undefined ? undefined : nowMs - its.heardMs,
      sourceConnected: its !== undefined && its.trouble === undefined && its.missing.length === 0,
      trouble: its?.trouble,
    }
  }

  /** The changes to a state that is no longer held go into those of the state before it. */
  #forget(position: Position): void {
    const at = this.#positions.indexOf(position)
    const [older, newer, newest] = [this.#positions[at - 1], this.#positions[at + 1], this.#positions.at(-1)]
    this.#positions = this.#positions.filter(its => its !== position)
    if (older === undefined || newer === undefined || newest === undefined) return
    skipState(older.state, position.state, newest.state)
  }
}

interface Position {
  readonly state: ApiState
  holders: number
}

interface Waiting {
  readonly signal: AbortSignal
  readonly aborted: () => void
  readonly resolve: (state: ApiState) => void
}

/**
 * The whole state as KPNG's JSON back ends print it: one line a Service, with its endpoints; both sorted by path. An
 * empty state has no lines.
 */
export function* stateLines(state: ApiState): Iterable<string> {
  const endpoints = new Map<string, ApiObject[]>()
  for (const object of state.endpoints.values()) {
    const service = object.path.slice(0, object.path.lastIndexOf('/'))
    append(endpoints, service, object)
  }
  for (const { path, json } of state.services.values().toSorted(byPath)) {
    const its = endpoints
      .get(path)
      ?.sort(byPath)
      .map(object => object.json)
    yield `${JSON.stringify({ Service: json, ...(its === undefined ? {} : { Endpoints: its }) })}\n`
  }
}

function byPath(a: ApiObject, b: ApiObject): number {
  return a.path < b.path ? -1 : 1
}

const KINDS = { 1: 'Service', 2: 'Endpoint' } as const

/**
 * Writes one line for each operation that leads from one state to another, named as the fields of localv1.OpItem are:
 * `{"Set":{"Ref":{"Set":1,"Path":"ns/web"},"Service":{…}}}`, `{"Delete":{"Set":2,"Path":"ns/web/10.1.0.1"}}`, and
 * `{"Sync":{}}` at the end. The state is held while this is read.
 */
function* differenceLines(before: ApiState | undefined, after: ApiState): Iterable<string> {
  for (const operation of difference(before, after)) yield `${JSON.stringify(operationJson(operation))}\n`
  yield '{"Sync":{}}\n'
}

function operationJson(operation: ApiOperation): object {
  if (operation.kind === 'delete') return { Delete: { Set: operation.set, Path: operation.path } }
  const { set, object } = operation
  return { Set: { Ref: { Set: set, Path: object.path }, [KINDS[set]]: object.json } }
}

/** Characters that are written in one go. */
const CHUNK = 65_536

/** A write for each line would cost more than the line. */
export function inChunks(lines: Iterable<string>): Iterable<string> {
  return inPieces(lines, CHUNK)
}

interface PrintOptions {
  readonly feed: ApiFeed
  readonly clock: Clock
  readonly write: (text: string) => void
  /** Bytes that were written and not read yet. */
  readonly backlogBytes: () => number
  /** `state`: once. `states`: again at each change, an empty line behind each. `differences`: from nothing on. */
  readonly what: 'state' | 'states' | 'differences'
}

/** A reader that has more than this before it is not given more: it gets the newest state once it has read on. */
const BACKLOG_MAX = 1 << 20
const LOOK_MS = 10

/** Prints what the feed has, until aborted, or once. A slow reader misses states, but never a part of one. */
export async function printFeed(options: PrintOptions, signal: AbortSignal): Promise<void> {
  const { feed, what } = options
  let seen: ApiState | undefined
  try {
    do {
      const newer = await feed.newer(seen?.number ?? 0, signal)
      // A newer state may have come during the wait.
      const state = feed.current ?? newer
      feed.hold(state)
      try {
        const lines = what === 'differences' ? differenceLines(seen, state) : stateLines(state)
        await writeAll(options, lines, signal)
        if (what === 'states') options.write('\n')
      } finally {
        if (seen !== undefined) feed.release(seen)
        seen = state
      }
    } while (what !== 'state')
  } catch (error) {
    if (!signal.aborted) throw error
  } finally {
    if (seen !== undefined) feed.release(seen)
  }
}

async function writeAll(
  { clock, write, backlogBytes }: PrintOptions,
  lines: Iterable<string>,
  signal: AbortSignal,
): Promise<void> {
  for (const chunk of inChunks(lines)) {
    write(chunk)
    await clock.breathe()
    while (backlogBytes() > BACKLOG_MAX) {
      signal.throwIfAborted()
      await new Promise<void>(done => clock.after(LOOK_MS, done))
    }
  }
}
