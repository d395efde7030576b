import { framed, OK, UNIMPLEMENTED } from '../api/grpc/rpc.ts'
import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Revisions } from '../source/source.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { RelayLink } from './connection.ts'
import type { KnownNode } from './judgement.ts'
import { decodeReport } from './node-report.ts'
import { status } from './schema.ts'
import { STATUS_METHOD } from './types.ts'

/** What one relay knows of its nodes. */
export interface RelayAnswer {
  readonly cluster: string
  readonly upMs: number
  /** Its state is that of the API server, as far as it knows. */
  readonly isServing: boolean
  /** Nodes that are not listed do not exist. */
  readonly knowsNodes: boolean
  /** What it has read. */
  readonly revisions: Revisions
  /** The revisions of the last changes. */
  readonly changed: Revisions
  readonly nodes: readonly KnownNode[]
}

const ANSWER_MS_MAX = 10_000

/** Asks a relay what its nodes have reported. Rejects with an Error that says why it does not answer. */
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
        } else end(code === UNIMPLEMENTED ? 'it is of a version that takes no reports' : text)
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
    upMs: message.up_ms ?? 0,
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
