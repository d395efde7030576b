import {
  type Call,
  type CallHandler,
  framed,
  INVALID_ARGUMENT,
  OK,
  RESOURCE_EXHAUSTED,
  RpcError,
} from '../api/grpc/rpc.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { status } from './schema.ts'

type RelayStatus = MessageOf<typeof status.RelayStatus>

/** Answers that their clients have not read: with 15,000 nodes each has 5 MB. */
const UNREAD_MAX = 16

/** Answers `kprobe status`. An answer is encoded once for all who ask at its time, and a client that does not read gives way. */
export class StatusAnswers {
  readonly #status: () => RelayStatus
  #last: { readonly status: RelayStatus; readonly bytes: Buffer } | undefined
  /** Oldest first. */
  readonly #unread = new Set<Call>()

  /** `status` gives the same object as long as the answer is the same. */
  constructor(status: () => RelayStatus) {
    this.#status = status
  }

  readonly answer = (call: Call): CallHandler => {
    let request: Buffer | undefined
    return {
      message(bytes) {
        if (request !== undefined) throw new RpcError(INVALID_ARGUMENT, 'this method takes one message')
        request = bytes
      },
      ended: () => {
        if (request === undefined) throw new RpcError(INVALID_ARGUMENT, 'this method takes one message')
        decodeMessage(status.StatusRequest, request)
        if (call.write(this.#bytes())) call.end(OK)
        else this.#wait(call)
      },
      drained: () => call.end(OK),
      closed: () => void this.#unread.delete(call),
    }
  }

  #bytes(): Buffer {
    const now = this.#status()
    if (this.#last?.status !== now) this.#last = { status: now, bytes: framed(status.RelayStatus, now) }
    return this.#last.bytes
  }

  #wait(call: Call): void {
    const [oldest] = this.#unread
    if (oldest !== undefined && this.#unread.size >= UNREAD_MAX) {
      this.#unread.delete(oldest)
      oldest.end(RESOURCE_EXHAUSTED, 'the answer was not read, and others ask')
    }
    this.#unread.add(call)
  }
}
