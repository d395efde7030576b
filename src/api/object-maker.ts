import { Encoder } from './encode.ts'
import { ENDPOINT, SERVICE } from './localv1.ts'
import { roomFor, writeSet } from './op-item.ts'
import { type ApiObject, type ApiRef, type Frame, type Run, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

const SHARED_BYTES = 64 * 1024
const TABLES = { [SET_SERVICES]: SERVICE, [SET_ENDPOINTS]: ENDPOINT } as const

interface GrowingRun extends Run {
  end: number
  operations: number
}

/**
 * Makes the objects of one state. In a whole state (`isWhole`) the objects of a set share memory in order, which is sent as it
 * is to a reader of all of them. Each later change has memory of its own, so that it retains no other object's.
 */
export class ObjectMaker {
  readonly #encoder = new Encoder()
  readonly #isWhole: boolean
  readonly #runs: Readonly<Record<ApiRef['set'], GrowingRun[]>> = { [SET_SERVICES]: [], [SET_ENDPOINTS]: [] }
  #written = Buffer.allocUnsafeSlow(4_096)

  constructor({ isWhole }: { readonly isWhole: boolean }) {
    this.#isWhole = isWhole
  }

  /** The frames of a whole state: Services and then endpoints, each in the order in which they were made. */
  get runs(): readonly Run[] {
    return [...this.#runs[SET_SERVICES], ...this.#runs[SET_ENDPOINTS]]
  }

  /** `known` itself when it says the same: its bytes are the same exactly when the messages are. */
  make(ref: ApiRef, json: object, known?: ApiObject): ApiObject {
    const message = this.#encoder.encode(TABLES[ref.set], json)
    const room = roomFor(ref.path, message.length)
    if (room > this.#written.length) this.#written = Buffer.allocUnsafeSlow(room * 2)
    const length = writeSet(this.#written, 0, ref, message)
    if (known !== undefined && this.#written.compare(known.memory, known.start, known.end, 0, length) === 0)
      return known
    const { memory, start, end } = this.#isWhole
      ? this.#placeInRun(ref.set, length)
      : this.#placeAlone(length)
    this.#written.copy(memory, start, 0, length)
    return { path: ref.path, json, memory, start, end }
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
