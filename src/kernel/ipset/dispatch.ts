import type { Clock } from '../../base/clock.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { type Connection, REQUEST_SEQUENCE_MAX } from '../../netlink/connection.ts'
import { NLM_F_CAPPED, NLMSG_HDRLEN } from '../../netlink/constants.ts'
import { type BurstReplies, unknownOutcome } from '../../netlink/conversation.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { patientBurst } from '../../netlink/patient-burst.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { SystemError } from '../../netlink/transport.ts'
import {
  encodeParcel,
  entriesIn,
  entryPieces,
  MESSAGES_PER_PARCEL,
  type Parcel,
  type Piece,
} from './parcel.ts'
import { REFUSED } from './schema.ts'

export interface DispatcherOptions {
  readonly connection: Connection
  readonly clock: Clock
  /** As Transport says it. */
  readonly sendLimitBytes: number
}

/** A piece that the kernel refused; of entries the culprit alone, where the kernel tells which it is. */
export interface Refusal {
  readonly piece: Piece
  readonly errno: number
  readonly extendedAck: string | undefined
}

export interface Dispatched {
  readonly refusals: readonly Refusal[]
  /** Set when answers were lost: what comes behind those was not sent. */
  readonly loss: Error | undefined
  readonly bytes: number
  readonly messages: number
}

const SEQUENCE_FIRST = REQUEST_SEQUENCE_MAX + 1
const SEQUENCE_MAX = 0xffff_ffff
/** So many entries take a fraction of a millisecond, unless a set has to be made larger meanwhile. */
const SYNC_ENTRIES_MAX = 256
const SLICE_MS = 5
const OBJECT = 'ipsets'
const EPERM = errnoNumber('EPERM')
const ENOENT = errnoNumber('ENOENT')

/** Sends pieces, many a datagram, and goes on behind those that the kernel refuses. */
export class Dispatcher {
  readonly #options: DispatcherOptions
  #sequence = SEQUENCE_FIRST

  constructor(options: DispatcherOptions) {
    this.#options = options
  }

  /**
   * The kernel leaves a message at the first entry that it refuses: what is behind that one is sent again in smaller
   * messages, before anything else, so that no entry suffers from another, and a set that is full takes a few messages
   * an entry at most. Throws NetlinkError for what cannot be encoded.
   */
  async send(pieces: readonly Piece[]): Promise<Dispatched> {
    const { clock } = this.#options
    const refusals: Refusal[] = []
    let waiting = pieces
    let [bytes, messages] = [0, 0]
    let loss: Error | undefined
    let sliceEnd = clock.nowMs() + SLICE_MS
    while (waiting.length > 0 && loss === undefined) {
      const parcel = this.#encode(waiting)
      const answers = await this.#sendOne(parcel)
      if (answers instanceof SystemError) {
        const errno = errnoNumber(answers.code) || Math.abs(answers.errno)
        const extendedAck = `nothing was sent (${answers.message})`
        refusals.push(...waiting.map(piece => ({ piece, errno, extendedAck })))
        break
      }
      bytes += parcel.bytes.length
      messages += parcel.pieces.length
      const { refused, again } = followUp(parcel, answers)
      refusals.push(...refused)
      waiting = [...again, ...waiting.slice(parcel.pieces.length)]
      loss = lossOf(parcel, answers)
      if (clock.nowMs() < sliceEnd) continue
      await clock.breathe()
      sliceEnd = clock.nowMs() + SLICE_MS
    }
    return { refusals, loss, bytes, messages }
  }

  #encode(pieces: readonly Piece[]): Parcel {
    const firstSequence = this.#sequence
    const parcel = encodeParcel(pieces, { firstSequence, limitBytes: this.#options.sendLimitBytes })
    const next = firstSequence + parcel.pieces.length
    this.#sequence = next + MESSAGES_PER_PARCEL > SEQUENCE_MAX ? SEQUENCE_FIRST : next
    return parcel
  }

  async #sendOne({ bytes, firstSequence, pieces, entries }: Parcel): Promise<Answers | SystemError> {
    const lines = new Map<number, number>()
    const has = (sequence: number): boolean =>
      sequence >= firstSequence && sequence < firstSequence + pieces.length
    const onError = (view: ByteView, message: Message): void => {
      const line = refusedLine(view, message)
      if (line > 0) lines.set(message.sequence, line)
    }
    const pool = entries > SYNC_ENTRIES_MAX || pieces.some(isSlow)
    const replies = await patientBurst(this.#options, { bytes, has, onError }, { pool, object: OBJECT })
    return replies instanceof SystemError ? replies : { ...plain(replies), lines }
  }
}

interface Answers extends BurstReplies {
  /** By sequence number: which entry of the message the kernel refused, counted from 1. */
  readonly lines: ReadonlyMap<number, number>
}

function plain({ errors, acknowledged, loss }: BurstReplies): BurstReplies {
  return { errors, acknowledged, loss }
}

/** The kernel waits until no packet uses the set any more (synchronize_rcu). */
function isSlow(piece: Piece): boolean {
  return piece.kind === 'set' && (piece.operation.verb === 'swap' || piece.operation.verb === 'destroy')
}

/**
 * ipset answers a message of several entries with a copy in which IPSET_ATTR_LINENO is that of the culprit (call_ad in
 * net/netfilter/ipset/ip_set_core.c), even where nobody wants copies (NLM_F_CAPPED). 0 when the error is about the
 * whole message, or the copy cannot be read.
 */
function refusedLine(view: ByteView, message: Message): number {
  if ((message.flags & NLM_F_CAPPED) !== 0) return 0
  const start = message.start + 4 + NLMSG_HDRLEN + NFGENMSG_LENGTH
  try {
    return start > message.end ? 0 : (readAttributes(view, REFUSED, { start, end: message.end }).line ?? 0)
  } catch (error) {
    if (error instanceof NetlinkError) return 0
    throw error
  }
}

interface FollowUp {
  readonly refused: readonly Refusal[]
  readonly again: readonly Piece[]
}

/** What is sent again after a refusal goes in messages of so many times fewer entries. */
const SHRINK = 8

function followUp({ pieces, firstSequence }: Parcel, { errors, lines }: Answers): FollowUp {
  const refused: Refusal[] = []
  const again: Piece[] = []
  const denied = errors.find(({ errno }) => errno === EPERM)
  if (denied !== undefined) {
    // Whoever lacks CAP_NET_ADMIN gets one answer for the whole datagram.
    const { errno, extendedAck } = denied
    return { refused: pieces.map(piece => ({ piece, errno, extendedAck })), again }
  }
  for (const { sequence, errno, extendedAck } of errors) {
    const piece = pieces[sequence - firstSequence]
    if (piece === undefined) continue
    const [culprit, rest] = culpritOf(piece, { errno, line: lines.get(sequence) ?? 0 })
    if (culprit !== undefined) refused.push({ piece: culprit, errno, extendedAck })
    again.push(...rest)
  }
  return { refused, again }
}

/** What of a piece the kernel refused, and what of it must be sent again. */
function culpritOf(
  piece: Piece,
  { errno, line }: { readonly errno: number; readonly line: number },
): readonly [Piece | undefined, readonly Piece[]] {
  const count = entriesIn(piece)
  // Without the set, every entry is refused.
  if (piece.kind === 'set' || count <= 1 || errno === ENOENT) return [piece, []]
  const most = Math.max(1, Math.floor(count / SHRINK))
  if (line < 1 || line > count) return [undefined, entryPieces(piece, most)]
  const at = piece.from + line - 1
  return [{ ...piece, from: at, to: at + 1 }, entryPieces({ ...piece, from: at + 1 }, most)]
}

/** The last message always has an answer: when it has none, others may lack theirs, too. */
function lossOf({ pieces, firstSequence }: Parcel, replies: BurstReplies): Error | undefined {
  if (replies.loss !== undefined) return replies.loss
  const last = firstSequence + pieces.length - 1
  const { acknowledged, errors } = replies
  const isAnswered =
    acknowledged > 0 || errors.some(({ sequence, errno }) => sequence === last || errno === EPERM)
  return isAnswered ? undefined : unknownOutcome({ operation: 'commit', object: OBJECT }, 'ENODATA')
}
