import {
  type Call,
  framed,
  type Method,
  OK,
  RESOURCE_EXHAUSTED,
  takingOne,
  UNIMPLEMENTED,
} from '../api/grpc/rpc.ts'
import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Revisions } from '../source/source.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import type { RelayLink } from './connection.ts'
import type { KnownNode } from './judgement.ts'
import { decodeReport } from './node-report.ts'
import { status } from './schema.ts'
import { STATUS_METHOD } from './types.ts'

type RelayStatus = MessageOf<typeof status.RelayStatus>

/** Requests of this time get one answer. */
const ANSWER_MS = 250
/** Answers that their clients have not read: with 15,000 nodes each has 5 MB. */
const UNREAD_MAX = 16

/** Answers `kprobe status`. An answer is encoded once for all who ask at its time, and a client that does not read gives way. */
export class StatusAnswers {
  readonly #clock: Clock
  readonly #status: () => RelayStatus
  #last: { readonly atMs: number; readonly bytes: Buffer } | undefined
  /** Oldest first. */
  readonly #unread = new Set<Call>()
  readonly #answers = takingOne(status.StatusRequest, call => {
    if (call.write(this.#bytes())) call.end(OK)
    else this.#wait(call)
  })

  constructor(clock: Clock, status: () => RelayStatus) {
    this.#clock = clock
    this.#status = status
  }

  readonly answer: Method = call => ({
    ...this.#answers(call),
    drained: () => call.end(OK),
    closed: () => void this.#unread.delete(call),
  })

  #bytes(): Buffer {
    const nowMs = this.#clock.nowMs()
    if (this.#last === undefined || nowMs - this.#last.atMs >= ANSWER_MS)
      this.#last = { atMs: nowMs, bytes: framed(status.RelayStatus, this.#status()) }
    return this.#last.bytes
  }

  #wait(call: Call): void {
    const [oldest] = this.#unread
    if (oldest !== undefined && this.#unread.size >= UNREAD_MAX) {
      this.#unread.delete(oldest)
      oldest.end(RESOURCE_EXHAUSTED, 'the answer was not read, and other clients wait')
    }
    this.#unread.add(call)
  }
}

export interface RelayAnswer {
  readonly cluster: string
  /** Its state is that of the API server, as far as it knows. */
  readonly isServing: boolean
  /** Nodes that are not listed do not exist. */
  readonly knowsNodes: boolean
  readonly revisions: Revisions
  readonly changed: Revisions
  readonly nodes: readonly KnownNode[]
}

const ANSWER_MS_MAX = 10_000

/** Reads the reports of a relay's nodes. Rejects with the reason if it does not answer. */
export function askStatus(link: RelayLink, clock: Clock): Promise<RelayAnswer> {
  return new Promise((resolve, reject) => {
    let answer: RelayAnswer | undefined
    const call = link.call(STATUS_METHOD, {
      message(bytes) {
        try {
          answer = read(bytes)
        } catch (error) {
          end(`cannot read its answer: ${errorOf(error).message}`)
        }
      },
      ended(code, text) {
        if (code === OK && answer !== undefined) {
          cancel()
          resolve(answer)
        } else end(code === UNIMPLEMENTED ? 'its version takes no reports' : text)
      },
    })
    const end = (why: string): void => {
      cancel()
      call.cancel()
      reject(new Error(why))
    }
    const cancel = clock.after(ANSWER_MS_MAX, () => end(`no answer within ${ANSWER_MS_MAX / 1_000} s`))
    call.send(framed(status.StatusRequest, {}))
    call.finish()
  })
}

function read(bytes: Buffer): RelayAnswer {
  const message = decodeMessage(status.RelayStatus, bytes)
  const { kinds = [], nodes = [] } = message
  const revisionsOf = (field: 'revision' | 'changed'): Revisions => {
    const of = (kind: string): string => kinds.find(each => each.kind === kind)?.[field] ?? ''
    return { Service: of('Service'), EndpointSlice: of('EndpointSlice') }
  }
  return {
    cluster: message.cluster ?? '',
    isServing: message.serving ?? false,
    knowsNodes: message.knows_nodes ?? false,
    revisions: revisionsOf('revision'),
    changed: revisionsOf('changed'),
    nodes: nodes.map(({ name = '', report = '', age_ms = 0, behind_ms = 0, elsewhere = false }) => ({
      name,
      report: report === '' ? undefined : decodeReport(report),
      ageMs: age_ms,
      behindMs: behind_ms,
      isElsewhere: elsewhere,
    })),
  }
}
