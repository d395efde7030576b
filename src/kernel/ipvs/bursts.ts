import type { Clock } from '../../base/clock.ts'
import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { type Connection, REQUEST_SEQUENCE_MAX } from '../../netlink/connection.ts'
import { NLM_F_ACK } from '../../netlink/constants.ts'
import { type BurstError, type BurstReplies, unknownOutcome } from '../../netlink/conversation.ts'
import { errnoName } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { addFlags } from '../../netlink/message.ts'
import { patientBurst } from '../../netlink/patient-burst.ts'
import { SystemError } from '../../netlink/transport.ts'
import { IPVS_CMD_NEW_SERVICE, IPVS_CMD_SET_SERVICE } from './constants.ts'
import { describeOperation } from './describe.ts'
import type { Refusal } from './follow-up.ts'
import { type Step, writeStep } from './messages.ts'

export interface BurstsOptions {
  readonly connection: Connection
  readonly clock: Clock
  /** As Transport says it. */
  readonly sendLimitBytes: number
  /** Each message of a datagram may be answered by an error, and all of these wait in the receive buffer. */
  readonly messagesMax: number
}

export interface Sent {
  readonly refusals: readonly Refusal[]
  /** Set when answers were lost; what comes behind those was not sent. */
  readonly loss: Error | undefined
  readonly bytes: number
  readonly messages: number
}

const SEQUENCE_FIRST = REQUEST_SEQUENCE_MAX + 1
const SEQUENCE_MAX = 0xffff_ffff
/** So many changes of real servers take a fraction of a millisecond. */
const SYNC_MESSAGES_MAX = 64
const OBJECT = 'virtual servers and real servers'

/** Sends steps, many a datagram, and tells which of them the kernel refused. */
export class Bursts {
  readonly #options: BurstsOptions
  #sequence = SEQUENCE_FIRST

  constructor(options: BurstsOptions) {
    this.#options = options
  }

  async send(steps: readonly Step[], family: number): Promise<Sent> {
    const refusals: Refusal[] = []
    let [bytes, messages] = [0, 0]
    let loss: Error | undefined
    while (messages < steps.length && loss === undefined) {
      const datagram = this.#encode(steps, { from: messages, family })
      const replies = await this.#sendOne(datagram)
      if (replies instanceof SystemError) {
        for (const step of steps.slice(messages)) refusals.push({ step, code: replies.code, error: replies })
        break
      }
      for (const error of replies.errors) refusals.push(refusalOf(datagram, error))
      bytes += datagram.bytes.length
      messages += datagram.steps.length
      loss = lossOf(datagram, replies)
    }
    return { refusals, loss, bytes, messages }
  }

  #encode(
    steps: readonly Step[],
    { from, family }: { readonly from: number; readonly family: number },
  ): Datagram {
    const { sendLimitBytes, messagesMax } = this.#options
    const firstSequence = this.#takeSequences(messagesMax)
    const out = new ByteWriter()
    const attributes = new AttributeWriter(out)
    let [count, last] = [0, 0]
    for (; count < messagesMax && from + count < steps.length; count++) {
      const step = steps[from + count]
      if (step === undefined) break
      const start = writeStep(attributes, step, { family, flags: 0, sequence: firstSequence + count })
      // A single message that is too long is refused by the send.
      if (out.length > sendLimitBytes && count > 0) {
        out.length = start
        break
      }
      last = start
    }
    addFlags(out, last, NLM_F_ACK)
    return { bytes: out.written(), firstSequence, steps: steps.slice(from, from + count) }
  }

  #takeSequences(count: number): number {
    if (this.#sequence + count > SEQUENCE_MAX) this.#sequence = SEQUENCE_FIRST
    const first = this.#sequence
    this.#sequence += count
    return first
  }

  #sendOne({ bytes, firstSequence, steps }: Datagram): Promise<BurstReplies | SystemError> {
    const has = (sequence: number): boolean =>
      sequence >= firstSequence && sequence < firstSequence + steps.length
    const pool = steps.length > SYNC_MESSAGES_MAX || steps.some(isSlow)
    return patientBurst(this.#options, { bytes, has }, { pool, object: OBJECT })
  }
}

interface Datagram {
  readonly bytes: Uint8Array
  readonly firstSequence: number
  readonly steps: readonly Step[]
}

/** A module may be loaded, and another scheduler is waited for until no packet uses the old one (synchronize_rcu). */
function isSlow({ command }: Step): boolean {
  return command === IPVS_CMD_SET_SERVICE || command === IPVS_CMD_NEW_SERVICE
}

function refusalOf({ steps, firstSequence }: Datagram, reply: BurstError): Refusal {
  const step = steps[reply.sequence - firstSequence]
  if (step === undefined) throw new Error(`netlink reply with unknown sequence ${reply.sequence}`)
  const { errno, offset, sequence } = reply
  const code = errnoName(errno)
  const extendedAck = reply.extendedAck ?? explanationOf(step, code)
  const error = new NetlinkError({
    ...describeOperation(step.operation),
    errno,
    extendedAck,
    offset,
    sequence,
  })
  return { step, code, error }
}

/** What is not plain from the errno; the kernel itself says nothing more. */
function explanationOf({ operation }: Step, code: string): string | undefined {
  const { verb, server } = operation
  if (code === 'ESRCH') return 'there is no such virtual server'
  if (code === 'EPERM') return 'IPVS takes CAP_NET_ADMIN of the first user namespace'
  return verb === 'set-server' && code === 'ENOENT'
    ? `the kernel has no scheduler ${server.scheduler} (module ip_vs_${server.scheduler})`
    : undefined
}

/** The last message always has an answer: when it has none, others may lack theirs, too. */
function lossOf({ steps, firstSequence }: Datagram, replies: BurstReplies): Error | undefined {
  if (replies.loss !== undefined) return replies.loss
  const last = firstSequence + steps.length - 1
  const isAnswered = replies.acknowledged > 0 || replies.errors.some(({ sequence }) => sequence === last)
  return isAnswered ? undefined : unknownOutcome({ operation: 'commit', object: OBJECT }, 'ENODATA')
}
