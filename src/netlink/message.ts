import { AttributeWriter, align4, type ByteView, ByteWriter, forEachAttribute } from './attribute.ts'
import { string, u32host } from './codecs.ts'
import * as netlink from './constants.ts'
import { malformed, NetlinkError } from './errors.ts'

/** One message of a datagram; its payload is between `start` and `end` of its view. */
export interface Message {
  readonly type: number
  /** NLM_F_*. */
  readonly flags: number
  readonly sequence: number
  /** 0 in answers of the kernel; the committer's port in notifications. */
  readonly portId: number
  readonly start: number
  readonly end: number
}

export interface MessageHead {
  readonly type: number
  readonly flags: number
  readonly sequence: number
}

/** Begins a message; closeMessage takes the result. */
export function openMessage(out: ByteWriter, head: MessageHead): number {
  out.reserve(netlink.NLMSG_HDRLEN)
  const start = out.length
  const { words } = out
  const at = start >> 2
  words[at] = 0
  words[at + 1] = head.type | (head.flags << 16)
  words[at + 2] = head.sequence
  words[at + 3] = 0
  out.length = start + netlink.NLMSG_HDRLEN
  return start
}

/** Writes the length of the message that openMessage began at `start`. */
export function closeMessage(out: ByteWriter, start: number): void {
  out.patchU32(start, out.length - start)
  out.align()
}

/** Encodes a single message; `write` appends its payload. */
export function encodeMessage(head: MessageHead, write: (out: AttributeWriter) => void): Uint8Array {
  const out = new AttributeWriter(new ByteWriter(128))
  const start = openMessage(out.out, head)
  write(out)
  closeMessage(out.out, start)
  return out.out.written()
}

const SEQUENCE_OFFSET = 8

/** Writes the sequence number of the first message of an encoded datagram, which it returns. */
export function setSequence(datagram: Uint8Array, sequence: number): Uint8Array {
  new DataView(datagram.buffer, datagram.byteOffset).setUint32(SEQUENCE_OFFSET, sequence, true)
  return datagram
}

/** Adds NLM_F_* to the message that begins at `start`. */
export function addFlags(out: ByteWriter, start: number, flags: number): void {
  out.patchU16(start + 6, out.view.getUint16(start + 6, true) | flags)
}

/** struct nfgenmsg. */
export interface NfGenMsg {
  /** NFPROTO_*. */
  readonly family: number
  readonly resourceId: number
}
export const NFGENMSG_LENGTH = 4

/** Returns the position of the attributes of a message of nfnetlink. */
export function nfSpan({ start, end }: Message): { readonly start: number; readonly end: number } {
  return { start: start + NFGENMSG_LENGTH, end }
}

/** Writes struct nfgenmsg, version 0. */
export function writeNfGenMsg(out: ByteWriter, { family, resourceId }: NfGenMsg): void {
  const resource = (resourceId >> 8) | ((resourceId & 0xff) << 8)
  out.u32(family | (netlink.NFNETLINK_V0 << 8) | (resource << 16))
}

/** Reads struct nfgenmsg after the header. Throws NetlinkError when the message ends before it. */
export function readNfGenMsg(view: ByteView, message: Message): NfGenMsg {
  if (message.end - message.start < NFGENMSG_LENGTH)
    throw malformed('a message without its nfgenmsg', message.start)
  return { family: view.data.getUint8(message.start), resourceId: view.data.getUint16(message.start + 2) }
}

/**
 * Splits a datagram, the first `length` bytes of the view, into messages. Throws NetlinkError when a message is shorter
 * than a header or exceeds the datagram.
 */
export function readMessages(view: ByteView, length: number = view.data.byteLength): Message[] {
  const messages: Message[] = []
  const { data } = view
  let at = 0
  while (at < length) {
    const left = length - at
    if (left < netlink.NLMSG_HDRLEN) throw malformed(`${left} stray bytes after the messages`, at)
    const bytes = data.getUint32(at, true)
    if (bytes < netlink.NLMSG_HDRLEN || bytes > left) throw malformed(`a message of ${bytes} bytes`, at)
    messages.push({
      type: data.getUint16(at + 4, true),
      flags: data.getUint16(at + 6, true),
      sequence: data.getUint32(at + SEQUENCE_OFFSET, true),
      portId: data.getUint32(at + 12, true),
      start: at + netlink.NLMSG_HDRLEN,
      end: at + bytes,
    })
    at += align4(bytes)
  }
  return messages
}

/** The content of NLMSG_ERROR or NLMSG_DONE. */
export interface Acknowledgement {
  /** Positive errno; 0 for success. */
  readonly errno: number
  readonly extendedAck: string | undefined
  /** Offset into the rejected message. */
  readonly offset: number | undefined
}

/**
 * Reads NLMSG_ERROR: struct nlmsgerr, the rejected message's payload unless NLM_F_CAPPED, then attributes if
 * NLM_F_ACK_TLVS is set (net/netlink/af_netlink.c, netlink_ack). Successes never repeat the message.
 */
export function readError(view: ByteView, message: Message): Acknowledgement {
  const errno = readErrno(view, message)
  const echoAt = message.start + 4
  if (message.end - echoAt < netlink.NLMSG_HDRLEN)
    throw malformed('an error without the header it is about', message.start)
  const echoed = view.data.getUint32(echoAt, true)
  const capped = errno === 0 || (message.flags & netlink.NLM_F_CAPPED) !== 0
  const attributesAt =
    echoAt + (capped ? netlink.NLMSG_HDRLEN : Math.max(align4(echoed), netlink.NLMSG_HDRLEN))
  return acknowledgementOf(errno, { view, message, start: attributesAt })
}

/** Reads NLMSG_DONE: an errno (absent in old protocols), then attributes if NLM_F_ACK_TLVS is set. */
export function readDone(view: ByteView, message: Message): Acknowledgement {
  if (message.end === message.start) return { errno: 0, extendedAck: undefined, offset: undefined }
  return acknowledgementOf(readErrno(view, message), { view, message, start: message.start + 4 })
}

function readErrno(view: ByteView, message: Message): number {
  if (message.end - message.start < 4) throw malformed('an error without its number', message.start)
  const errno = -view.data.getInt32(message.start, true)
  if (errno < 0) throw malformed(`an error with the number ${-errno}`, message.start)
  return errno === 0 ? 0 : errno
}

interface ExtendedAck {
  readonly view: ByteView
  readonly message: Message
  /** The attributes start at this offset. */
  readonly start: number
}

/** Ignores an unreadable explanation: the error still has its number. */
function acknowledgementOf(errno: number, { view, message, start }: ExtendedAck): Acknowledgement {
  let extendedAck: string | undefined
  let offset: number | undefined
  if ((message.flags & netlink.NLM_F_ACK_TLVS) === 0) return { errno, extendedAck, offset }
  try {
    forEachAttribute(view, start, message.end, (type, from, to) => {
      if (type === netlink.NLMSGERR_ATTR_MSG) extendedAck = string.read(view, from, to, 0)
      if (type === netlink.NLMSGERR_ATTR_OFFS) offset = u32host.read(view, from, to, 0)
    })
  } catch (error) {
    if (!(error instanceof NetlinkError)) throw error
    extendedAck = `unreadable extended acknowledgement (${error.extendedAck})`
  }
  return { errno, extendedAck, offset }
}

/** A message of a batch: its tag and its position. */
export interface BatchMessage<T> {
  readonly tag: T
  readonly start: number
  readonly end: number
}

/** Messages of one datagram, with consecutive sequence numbers. The tag of each identifies its subject. */
export class Batch<T> {
  readonly firstSequence: number
  readonly out: AttributeWriter
  // A full load has tens of thousands of messages, so messages are positions and not objects.
  readonly #starts: number[] = []
  readonly #tags: T[] = []
  #openedAt = 0

  /** `out` is empty. */
  constructor(firstSequence: number, out = new ByteWriter()) {
    this.firstSequence = firstSequence
    this.out = new AttributeWriter(out)
  }

  get messages(): number {
    return this.#starts.length
  }

  get bytes(): Uint8Array {
    return this.out.out.written()
  }

  /** Begins a message; the bytes written to `out` until `close` are its payload. */
  open(type: number, flags = 0): void {
    const sequence = this.firstSequence + this.#starts.length
    this.#openedAt = openMessage(this.out.out, { type, flags: flags | netlink.NLM_F_REQUEST, sequence })
  }

  close(tag: T): void {
    closeMessage(this.out.out, this.#openedAt)
    this.#starts.push(this.#openedAt)
    this.#tags.push(tag)
  }

  /** Requests an acknowledgement of the last message, also on success. */
  acknowledgeLast(): void {
    addFlags(this.out.out, this.#openedAt, netlink.NLM_F_ACK)
  }

  has(sequence: number): boolean {
    return sequence >= this.firstSequence && sequence < this.firstSequence + this.#starts.length
  }

  tagOf(sequence: number): T | undefined {
    return this.#tags[sequence - this.firstSequence]
  }

  at(sequence: number): BatchMessage<T> | undefined {
    const index = sequence - this.firstSequence
    const start = this.#starts[index]
    const tag = this.#tags[index]
    if (start === undefined || tag === undefined) return undefined
    return { tag, start, end: this.#starts[index + 1] ?? this.out.out.length }
  }
}
