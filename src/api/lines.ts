import { inPieces } from '../base/text.ts'
import { type ApiObject, type ApiOperation, type ApiState, difference } from './state.ts'

/**
 * The whole state as KPNG's JSON back ends print it: one line a Service, with its endpoints; both sorted by path. An
 * empty state has no lines.
 */
export function* stateLines(state: ApiState): Iterable<string> {
  const endpoints = new Map<string, ApiObject[]>()
  for (const object of state.endpoints.values()) {
    const service = object.path.slice(0, object.path.lastIndexOf('/'))
    const list = endpoints.get(service)
    if (list === undefined) endpoints.set(service, [object])
    else list.push(object)
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
 * What leads from one state to another, a line an operation, named as the fields of localv1.OpItem are:
 * `{"Set":{"Ref":{"Set":1,"Path":"ns/web"},"Service":{…}}}`, `{"Delete":{"Set":2,"Path":"ns/web/10.1.0.1"}}`, and
 * `{"Sync":{}}` at the end. The state is held while this is read.
 */
export function* differenceLines(before: ApiState | undefined, after: ApiState): Iterable<string> {
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
