import { Slice, slicingOf } from '../base/clock.ts'
import { type ByteView, ByteWriter, viewOf } from './attribute.ts'
import { type Connection, type Sender, sendDatagram } from './connection.ts'
import { type Burst, type BurstReplies, unknownOutcome } from './conversation.ts'
import { errnoNumber, type NetlinkError } from './errors.ts'
import { type Acknowledgement, Batch, type Message, readMessages } from './message.ts'
import { isNetlinkFailure, type Transport } from './transport.ts'

/** Writes and sends messages that the kernel carries out independently. */
export interface Sending<T> {
  /** The subject of all messages, for errors: `ipsets`. */
  readonly object: string
  readonly write: (batch: Batch<T>, tag: T) => void
  /** Returns the maximum length of the message of a tag. */
  readonly bytesMax: (tag: T) => number
  /** Maximum messages per datagram: each may produce an error, and all errors wait in the receive buffer. */
  readonly messagesMax: number
  /** Maximum bytes per datagram, for a socket with a higher limit. */
  readonly datagramBytesMax?: number
  /** Returns whether the kernel takes so long for a datagram that the thread pool must send it. */
  readonly isLong?: (tags: readonly T[]) => boolean
  readonly onError?: Burst['onError']
  /** Receives the rejections of each datagram and decides what to send again. Without it, every rejection is final. */
  readonly followUp?: (refused: readonly Refused<T>[]) => FollowUp<T>
}

export interface Refused<T> extends Acknowledgement {
  readonly tag: T
  /** Undefined for a message that could not be sent. */
  readonly sequence: number | undefined
}

export interface FollowUp<T> {
  readonly refused: readonly Refused<T>[]
  /** These are sent before all waiting messages. */
  readonly again: readonly T[]
}

export interface Sent<T> {
  /** The messages that the kernel rejected, or that could not be sent. */
  readonly refused: readonly Refused<T>[]
  /** Set when answers were lost: the outcome of their messages is unknown, and later messages were not sent. */
  readonly loss: NetlinkError | undefined
  readonly bytes: number
  readonly messages: number
}

/**
 * Sends a message for each tag, many per datagram. Only the last message of a datagram requests an acknowledgement;
 * without that answer, others may be missing, too. Throws NetlinkError for a message that cannot be encoded.
 */
export async function sendEach<T>(sender: Sender, tags: readonly T[], sending: Sending<T>): Promise<Sent<T>> {
  const { connection, clock } = sender
  const refused: Refused<T>[] = []
  let [waiting, from] = [tags, 0]
  let [bytes, messages] = [0, 0]
  const slice = new Slice(slicingOf(clock))
  while (from < waiting.length) {
    const room = roomFor(waiting, from, { connection, sending })
    const sent = waiting.slice(from, from + room.messages)
    const batch = new Batch<T>(connection.takeSequences(sent.length), new ByteWriter(room.bytes))
    for (const tag of sent) sending.write(batch, tag)
    batch.acknowledgeLast()
    const { object, onError } = sending
    const burst: Burst = {
      bytes: batch.bytes,
      has: sequence => batch.has(sequence),
      ...(onError === undefined ? {} : { onError }),
    }
    const replies = await sendDatagram(sender, burst, { pool: sending.isLong?.(sent) ?? false, object })
    const { unsent } = replies
    if (unsent !== undefined) {
      for (const tag of waiting.slice(from)) refused.push({ tag, ...unsent, sequence: undefined })
      break
    }
    bytes += burst.bytes.length
    messages += sent.length
    from += sent.length
    const answers = refusalsIn(batch, sent, replies)
    const next = sending.followUp?.(answers.refused) ?? { refused: answers.refused, again: [] }
    refused.push(...next.refused)
    const loss = replies.loss ?? (answers.complete ? undefined : missingAnswer(object))
    if (loss !== undefined) return { refused, loss, bytes, messages }
    if (next.again.length > 0) [waiting, from] = [[...next.again, ...waiting.slice(from)], 0]
    if (from < waiting.length && slice.isOver) await slice.next()
  }
  return { refused, loss: undefined, bytes, messages }
}

/** Returns how many waiting messages fit into one datagram: at least one, which the send refuses if it is too long. */
function roomFor<T>(
  waiting: readonly T[],
  from: number,
  { connection, sending }: { readonly connection: Connection; readonly sending: Sending<T> },
): { readonly messages: number; readonly bytes: number } {
  const { datagramBytesMax = Number.POSITIVE_INFINITY, messagesMax, bytesMax } = sending
  const limit = Math.min(connection.sendLimitBytes, datagramBytesMax)
  const most = Math.min(messagesMax, waiting.length - from)
  let [messages, bytes] = [0, 0]
  for (; messages < most; messages++) {
    const tag = waiting[from + messages]
    const more = tag === undefined ? 0 : bytesMax(tag)
    if (bytes + more > limit && messages > 0) break
    bytes += more
  }
  return { messages, bytes }
}

const EPERM = errnoNumber('EPERM')

/** Returns the rejections of a datagram, and whether the kernel has answered all of it. */
function refusalsIn<T>(
  batch: Batch<T>,
  tags: readonly T[],
  { errors, acknowledged }: BurstReplies,
): { readonly refused: readonly Refused<T>[]; readonly complete: boolean } {
  const { firstSequence } = batch
  const last = firstSequence + batch.messages - 1
  const complete = acknowledged > 0 || errors.some(({ sequence }) => sequence === last)
  // Without CAP_NET_ADMIN, nfnetlink answers only the first message and drops the whole datagram.
  const denied = errors.find(({ errno, sequence }) => errno === EPERM && sequence === firstSequence)
  if (!complete && denied !== undefined)
    return { refused: tags.map(tag => ({ ...denied, tag })), complete: true }
  const refused = errors.flatMap(error => {
    const tag = batch.tagOf(error.sequence)
    return tag === undefined ? [] : [{ ...error, tag }]
  })
  return { refused, complete }
}

function missingAnswer(object: string): NetlinkError {
  return unknownOutcome({ operation: 'commit', object }, 'ENODATA')
}

interface ReceiveOptions {
  /** A dedicated socket: what the kernel sends unasked would fill the queue of any other. */
  readonly transport: Transport
  /** Takes one message, whose bytes are valid until it returns. */
  readonly take: (view: ByteView, message: Message) => void
  /** Called when the kernel dropped messages because they were not read in time, or when one is unreadable. */
  readonly lost: (error: Error) => void
}

/** Maximum length of a datagram of notifications: the kernel fills a page or two. */
const DATAGRAM_BYTES = 32 * 1024
/** Datagrams of the greatest length that one call of the addon may read; usual ones are much shorter. */
const DATAGRAMS_A_CALL = 4

/**
 * Makes a function that reads what the kernel sends unasked, and gives how many messages it took: fewer than
 * `messagesMax` when nothing more is waiting, or can be received. Other errors than those of the socket and of messages
 * are thrown.
 */
export function messageReceiver({ transport, take, lost }: ReceiveOptions) {
  const buffer = new Uint8Array(DATAGRAMS_A_CALL * DATAGRAM_BYTES)
  const view = viewOf(buffer)
  /** Undefined for a failure, which is reported. */
  const attempt = <T>(work: () => T): T | undefined => {
    try {
      return work()
    } catch (error) {
      if (!isNetlinkFailure(error)) throw error
      lost(error)
      return undefined
    }
  }
  return (messagesMax: number): number => {
    let [count, isMore, failures] = [0, true, 0]
    const read = () => {
      failures++
      const length = transport.receive(buffer, DATAGRAM_BYTES)
      failures = 0
      isMore = length !== undefined
      return readMessages(view, length ?? 0)
    }
    // A receive that fails twice in a row fails again: the next turn continues.
    while (count < messagesMax && failures < 2) {
      const messages = attempt(read)
      if (!isMore) break
      // A message that `take` cannot read loses no other.
      for (const message of messages ?? []) attempt(() => take(view, message))
      count += Math.max(1, messages?.length ?? 1)
    }
    return count
  }
}

interface WatchOptions extends ReceiveOptions {
  /** Multicast groups of the protocol. */
  readonly groups: readonly number[]
  /** Bounds the time until other work of the process has its turn. */
  readonly messagesPerTurn: number
  /** Called after each turn; `isDrained` unless more may be waiting. */
  readonly turned?: (isDrained: boolean) => void
}

/**
 * Joins the groups and reads what the kernel sends to them, until the returned function is called. The socket stays
 * open. Throws a SystemError for a group that cannot be joined.
 */
export function watchGroups({ groups, messagesPerTurn, turned, ...options }: WatchOptions): () => void {
  const { transport } = options
  const receive = messageReceiver(options)
  for (const group of groups) transport.join(group)
  const unwatch = transport.watch(() => {
    const count = receive(messagesPerTurn)
    turned?.(count < messagesPerTurn)
  })
  let isOn = true
  return () => {
    if (!isOn) return
    isOn = false
    unwatch()
    for (const group of groups) transport.leave(group)
  }
}
