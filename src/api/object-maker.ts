import { ProtobufEncoder } from '../wire/protobuf/encoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { FrameEncoder } from './grpc/rpc.ts'
import { localv1 } from './schema.ts'
import { type ApiObject, type ApiRef, type Frame, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

const TABLES = { [SET_SERVICES]: localv1.Service, [SET_ENDPOINTS]: localv1.Endpoint } as const

/**
 * Makes the objects of one state. In a whole state (`isWhole`) the objects of a set share memory in order, which is sent as it
 * is to a reader of all of them. Each later change has memory of its own, so that it retains no other object's.
 */
export class ObjectMaker {
  readonly #messages = new ProtobufEncoder()
  readonly #frames = new FrameEncoder()
  readonly #isWhole: boolean
  /** The memory that objects of a set share, as far as it is filled. */
  readonly #shared = new Map<ApiRef['set'], Frame>()

  constructor({ isWhole }: { readonly isWhole: boolean }) {
    this.#isWhole = isWhole
  }

  /** Gives `known` itself if its bytes are the same, which they are exactly when the messages are. */
  make({ set, path }: ApiRef, json: MessageOf<(typeof TABLES)[ApiRef['set']]>, known?: ApiObject): ApiObject {
    const Bytes = this.#messages.encode(TABLES[set], json)
    const frame = this.#frames.encode(localv1.OpItem, { Set: { Ref: { Set: set, Path: path }, Bytes } })
    if (known !== undefined && frame.compare(known.memory, known.start, known.end) === 0) return known
    const { memory, start, end } = this.#isWhole
      ? this.#placeBehind(set, frame.length)
      : this.#placeAlone(frame.length)
    frame.copy(memory, start)
    return { path, json, memory, start, end }
  }

  #placeAlone(length: number): Frame {
    return { memory: Buffer.allocUnsafeSlow(length), start: 0, end: length }
  }

  /** Behind the last object of the set; in new memory where no room is left. */
  #placeBehind(set: ApiRef['set'], length: number): Frame {
    const last = this.#shared.get(set)
    const hasRoom = last !== undefined && last.end + length <= last.memory.length
    // 64 KiB, which are sent as they are: the 9 MB of 10,000 Services x 10 take 143 writes.
    const memory = hasRoom ? last.memory : Buffer.allocUnsafeSlow(Math.max(64 * 1024, length))
    const start = hasRoom ? last.end : 0
    const place = { memory, start, end: start + length }
    this.#shared.set(set, place)
    return place
  }
}
