import { errnoName } from '../../src/netlink/errors.ts'
import type { Transport } from '../../src/netlink/transport.ts'

/**
 * Messages built byte by byte, by other means than the product's: an error there cannot hide here. Numbers are those of
 * linux/netlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.
 */
export const REQUEST = 0x1
export const ACK = 0x4
export const DUMP = 0x300
export const EXCL = 0x200
export const CREATE = 0x400
export const APPEND = 0x800

export const BATCH_BEGIN = 0x10
export const BATCH_END = 0x11
const NFTABLES = 10

export const MSG = {
  newTable: 0,
  getTable: 1,
  delTable: 2,
  newChain: 3,
  getChain: 4,
  delChain: 5,
  newRule: 6,
  getRule: 7,
  delRule: 8,
  newSet: 9,
  getSet: 10,
  delSet: 11,
  newElem: 12,
  getElem: 13,
  delElem: 14,
  getGen: 16,
} as const

/** One message but for its sequence number. */
export interface Raw {
  readonly type: number
  readonly flags: number
  readonly family: number
  readonly body: Buffer
}

export function nft(kind: number, flags: number, ...attributes: readonly Buffer[]): Raw {
  return { type: (NFTABLES << 8) | kind, flags: flags | REQUEST, family: 2, body: Buffer.concat(attributes) }
}

export function attribute(type: number, payload: Buffer): Buffer {
  const out = Buffer.alloc(4 + ((payload.length + 3) & ~3))
  out.writeUInt16LE(4 + payload.length, 0)
  out.writeUInt16LE(type, 2)
  payload.copy(out, 4)
  return out
}

export function u32(type: number, value: number): Buffer {
  const payload = Buffer.alloc(4)
  payload.writeUInt32BE(value >>> 0)
  return attribute(type, payload)
}

export function u64(type: number, value: number): Buffer {
  const payload = Buffer.alloc(8)
  payload.writeBigUInt64BE(BigInt(value))
  return attribute(type, payload)
}

export function str(type: number, text: string): Buffer {
  return attribute(type, Buffer.from(`${text}\0`))
}

export function nest(type: number, ...parts: readonly Buffer[]): Buffer {
  return attribute(type | 0x8000, Buffer.concat(parts))
}

export function encoded(message: Raw, sequence: number): Buffer {
  const out = Buffer.alloc(20)
  out.writeUInt32LE(20 + message.body.length, 0)
  out.writeUInt16LE(message.type, 4)
  out.writeUInt16LE(message.flags, 6)
  out.writeUInt32LE(sequence, 8)
  out[16] = message.family
  // The resource id of a batch's frame is its subsystem.
  if (message.type < 0x100) out.writeUInt16BE(NFTABLES, 18)
  return Buffer.concat([out, message.body])
}

export interface BatchOptions {
  readonly generation?: number
  readonly beginFlags?: number
  readonly endFlags?: number
  /** A batch that is cut off. */
  readonly endless?: boolean
}

/** Begin is number 1, the messages are 2 and up, end comes last. */
export function batch(messages: readonly Raw[], options: BatchOptions = {}): Buffer {
  const { generation, beginFlags = 0, endFlags = 0, endless = false } = options
  const frame = { family: 0, body: Buffer.alloc(0) }
  const genid = generation === undefined ? frame.body : u32(1, generation)
  const begin = { ...frame, type: BATCH_BEGIN, flags: REQUEST | beginFlags, body: genid }
  const end = { ...frame, type: BATCH_END, flags: REQUEST | endFlags }
  const all = [begin, ...messages, ...(endless ? [] : [end])]
  return Buffer.concat(all.map((message, i) => encoded(message, i + 1)))
}

/** What waits on a socket, in words: `2 OK`, `3 ENOENT @28`, `DONE`, `message 2563`, and system errors as they are. */
export function received(transport: Transport, limit = 100_000): string[] {
  const words: string[] = []
  for (const datagram of datagrams(transport, limit)) {
    if (typeof datagram === 'string') words.push(datagram)
    else for (const message of messagesIn(datagram)) words.push(wordsFor(message))
  }
  return words
}

/** Waiting datagrams; a failed read gives its error's name. */
export function* datagrams(transport: Transport, limit = 100_000): IterableIterator<Buffer | string> {
  const into = Buffer.alloc(1 << 18)
  for (let count = 0; count < limit; count++) {
    try {
      const length = transport.receive(into)
      if (length === undefined) return
      yield Buffer.from(into.subarray(0, length))
    } catch (error) {
      yield error instanceof Error && 'code' in error ? String(error.code) : String(error)
    }
  }
}

export function messagesIn(datagram: Buffer): Buffer[] {
  const messages: Buffer[] = []
  for (let at = 0; at + 16 <= datagram.length; ) {
    const length = datagram.readUInt32LE(at)
    messages.push(datagram.subarray(at, at + length))
    at += (length + 3) & ~3
  }
  return messages
}

function wordsFor(message: Buffer): string {
  const type = message.readUInt16LE(4)
  if (type === 3) return 'DONE'
  if (type !== 2) return `message ${type & 255}`
  const errno = -message.readInt32LE(16)
  const offset = offsetIn(message)
  const name = errno === 0 ? 'OK' : errnoName(errno)
  return `${message.readUInt32LE(8)} ${name}${offset === undefined ? '' : ` @${offset}`}`
}

/** NLMSGERR_ATTR_OFFS behind the repeated header. */
function offsetIn(message: Buffer): number | undefined {
  if ((message.readUInt16LE(6) & 0x200) === 0) return undefined
  for (let at = 36; at + 8 <= message.length; at += (message.readUInt16LE(at) + 3) & ~3) {
    if (message.readUInt16LE(at + 2) === 2) return message.readUInt32LE(at + 4)
  }
  return undefined
}

/** NFT_MSG_GETGEN. */
export function generationOf(transport: Transport): number {
  transport.sendSync(
    encoded({ type: (NFTABLES << 8) | MSG.getGen, flags: REQUEST, family: 0, body: Buffer.alloc(0) }, 99),
  )
  for (const datagram of datagrams(transport, 100)) {
    if (typeof datagram !== 'string' && datagram.readUInt32LE(8) === 99) return datagram.readUInt32BE(24)
  }
  throw new Error('the kernel did not tell its generation')
}
