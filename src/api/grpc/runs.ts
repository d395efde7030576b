import { roomFor, writeDelete } from '../op-item.ts'
import {
  type ApiObject,
  type ApiRef,
  type ApiState,
  changesBetween,
  type Run,
  SET_ENDPOINTS,
  SET_SERVICES,
} from '../state.ts'

/** The frames of the result of difference(), in its order; a whole state that was made at once is few runs. */
export function* runsBetween(before: ApiState | undefined, after: ApiState): Iterable<Run> {
  if (before === undefined && after.runs !== undefined) {
    yield* after.runs
    return
  }
  const { services, endpoints } = changesBetween(before, after)
  yield* setRuns(services.set)
  yield* setRuns(endpoints.set)
  for (const path of endpoints.deleted) yield deleteRun({ set: SET_ENDPOINTS, path })
  for (const path of services.deleted) yield deleteRun({ set: SET_SERVICES, path })
}

function* setRuns(objects: readonly ApiObject[]): Iterable<Run> {
  let run: { memory: Buffer; start: number; end: number; operations: number } | undefined
  for (const { memory, start, end } of objects) {
    if (run !== undefined && run.memory === memory && run.end === start) {
      run.end = end
      run.operations++
      continue
    }
    if (run !== undefined) yield run
    run = { memory, start, end, operations: 1 }
  }
  if (run !== undefined) yield run
}

function deleteRun(ref: ApiRef): Run {
  const memory = Buffer.allocUnsafe(roomFor(ref.path))
  return { memory, start: 0, end: writeDelete(memory, 0, ref), operations: 1 }
}
