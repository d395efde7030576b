import type { Clock } from '../base/clock.ts'
import { append } from '../base/collections.ts'
import { inPieces } from '../base/text.ts'
import type { ApiFeed } from './feed.ts'
import { type ApiObject, type ApiOperation, type ApiState, difference } from './state.ts'

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
      // 10 ms between two looks at what is not read yet.
      await new Promise<void>(done => clock.after(10, done))
    }
  }
}
