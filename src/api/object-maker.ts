import { ProtobufEncoder } from '../wire/protobuf/encoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { FrameEncoder } from './frame.ts'
import { localv1 } from './schema.ts'
import { type ApiObject, type ApiRef, type Frame, type Run, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

const SHARED_BYTES = 64 * 1024
const TABLES = { [SET_SERVICES]: localv1.Service, [SET_ENDPOINTS]: localv1.Endpoint } as const

interface GrowingRun extends Run {
  end: number
  operations: number
}

/**
 * Makes the objects of one state. In a whole state (`isWhole`) the objects of a set share memory in order, which is sent as it
 * is to a reader of all of them. Each later change has memory of its own, so that it retains no other object's.
 */
export class ObjectMaker {
  readonly #messages = new ProtobufEncoder()
  readonly #frames = new FrameEncoder()
  readonly #isWhole: boolean
  readonly #runs: Readonly<Record<ApiRef['set'], GrowingRun[]>> = { [SET_SERVICES]: [], [SET_ENDPOINTS]: [] }

  constructor({ isWhole }: { readonly isWhole: boolean }) {
    this.#isWhole = isWhole
  }

  /** The frames of a whole state: Services and then endpoints, each in the order in which they were made. */
  get runs(): readonly Run[] {
    return [...this.#runs[SET_SERVICES], ...this.#runs[SET_ENDPOINTS]]
  }

  /** `known` itself when it says the same: its bytes are the same exactly when the messages are. */
  make({ set, path }: ApiRef, json: MessageOf<(typeof TABLES)[ApiRef['set']]>, known?: ApiObject): ApiObject {
    const Bytes = this.#messages.encode(TABLES[set], json)
    const frame = this.#frames.encode(localv1.OpItem, { Set: { Ref: { Set: set, Path: path }, Bytes } })
    if (known !== undefined && frame.compare(known.memory, known.start, known.end) === 0) return known
    const { memory, start, end } = this.#isWhole
      ? this.#placeInRun(set, frame.length)
      : this.#placeAlone(frame.length)
    frame.copy(memory, start)
    return { path, json, memory, start, end }
  }

  #placeAlone(length: number): Frame {
    return { memory: Buffer.allocUnsafeSlow(length), start: 0, end: length }
  }

  #placeInRun(set: ApiRef['set'], length: number): Frame {
    const runs = this.#runs[set]
    const last = runs.at(-1)
    if (last === undefined || last.end + length > last.memory.length) {
      const memory = Buffer.allocUnsafeSlow(Math.max(SHARED_BYTES, length))
      runs.push({ memory, start: 0, end: length, operations: 1 })
      return { memory, start: 0, end: length }
    }
    const start = last.end
    last.end += length
    last.operations++
    return { memory: last.memory, start, end: last.end }
  }
}
