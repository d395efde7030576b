import type { ApiRef } from './state.ts'

/**
 * Messages `localv1.OpItem` behind gRPC's prefix (a byte that says "not compressed", and four of length), written where
 * they are sent from: one block holds many.
 */
const PREFIX_BYTES = 5
const TAG_SYNC = 0x0a
const TAG_SET = 0x12
const TAG_DELETE = 0x1a
const TAG_RESET = 0x22
/** Tags of the first and the second field, within Ref and Value. */
const TAG_NUMBER = 0x08
const TAG_FIRST = 0x0a
const TAG_SECOND = 0x12

/** Length of `OpItem{Sync: {}}` with its prefix. */
export const SYNC_BYTES = PREFIX_BYTES + 2

/** Bytes that an operation takes at most, without those of its path and message. */
const FRAMING_MAX = PREFIX_BYTES + 4 * (1 + 5) + 2
/** Maximum length of one UTF-16 unit in UTF-8. */
const UNIT_BYTES_MAX = 3

/** An upper bound of the bytes of an operation. */
export function roomFor(path: string, messageBytes = 0): number {
  return FRAMING_MAX + path.length * UNIT_BYTES_MAX + messageBytes
}

/** Writes SYNC_BYTES; returns where they ended. */
export function writeSync(block: Buffer, start: number): number {
  return writeEmpty(block, start, TAG_SYNC)
}

/** `OpItem{Reset: {}}` behind its prefix. */
export function resetFrame(): Buffer {
  const frame = Buffer.alloc(PREFIX_BYTES + 2)
  writeEmpty(frame, 0, TAG_RESET)
  return frame
}

function writeEmpty(block: Buffer, start: number, tag: number): number {
  const at = writePrefix(block, start, 2)
  block[at] = tag
  block[at + 1] = 0
  return at + 2
}

/** `OpItem{Set}` at `start`, where roomFor() bytes are free, of an encoded message; returns where it ended. */
export function writeSet(block: Buffer, start: number, { set, path }: ApiRef, bytes: Uint8Array): number {
  const pathBytes = Buffer.byteLength(path)
  const refBytes = 3 + varintBytes(pathBytes) + pathBytes
  const objectBytes = bytes.length === 0 ? 0 : 1 + varintBytes(bytes.length) + bytes.length
  const valueBytes = 1 + varintBytes(refBytes) + refBytes + objectBytes
  let at = writePrefix(block, start, 1 + varintBytes(valueBytes) + valueBytes)
  block[at] = TAG_SET
  at = writeVarint(block, at + 1, valueBytes)
  block[at] = TAG_FIRST
  at = writeVarint(block, at + 1, refBytes)
  at = writeRef(block, at, set, path, pathBytes)
  if (bytes.length === 0) return at
  block[at] = TAG_SECOND
  at = writeVarint(block, at + 1, bytes.length)
  block.set(bytes, at)
  return at + bytes.length
}

/** `OpItem{Delete}` at `start`, where roomFor() bytes are free; returns where it ended. */
export function writeDelete(block: Buffer, start: number, { set, path }: ApiRef): number {
  const pathBytes = Buffer.byteLength(path)
  const refBytes = 3 + varintBytes(pathBytes) + pathBytes
  let at = writePrefix(block, start, 1 + varintBytes(refBytes) + refBytes)
  block[at] = TAG_DELETE
  at = writeVarint(block, at + 1, refBytes)
  return writeRef(block, at, set, path, pathBytes)
}

function writePrefix(block: Buffer, at: number, messageBytes: number): number {
  block[at] = 0
  block[at + 1] = messageBytes >>> 24
  block[at + 2] = messageBytes >>> 16
  block[at + 3] = messageBytes >>> 8
  block[at + 4] = messageBytes
  return at + PREFIX_BYTES
}

function writeRef(block: Buffer, start: number, set: number, path: string, pathBytes: number): number {
  block[start] = TAG_NUMBER
  block[start + 1] = set
  block[start + 2] = TAG_SECOND
  const at = writeVarint(block, start + 3, pathBytes)
  if (pathBytes === path.length) block.write(path, at, 'latin1')
  else block.write(path, at, 'utf8')
  return at + pathBytes
}

function varintBytes(value: number): number {
  if (value < 0x80) return 1
  if (value < 0x4000) return 2
  if (value < 0x200000) return 3
  return value < 0x10000000 ? 4 : 5
}

function writeVarint(block: Buffer, start: number, value: number): number {
  let at = start
  let rest = value
  for (; rest > 0x7f; rest >>>= 7) block[at++] = (rest & 0x7f) | 0x80
  block[at] = rest
  return at + 1
}
