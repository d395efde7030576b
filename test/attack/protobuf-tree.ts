/*
 * Protobuf without tables, for mutations that keep the lengths around them right. It shares nothing with the decoder
 * under attack.
 */

export interface Field {
  readonly number: number
  readonly wire: number
  /** Of wire type 2, octets or a message; of others the value's octets. */
  readonly value: Buffer | Message
}

export interface Message {
  /** Octets before the fields: `k8s` and NUL, or nothing. */
  readonly prefix: Buffer
  readonly fields: readonly Field[]
}

const MAGIC = Buffer.from('k8s\0', 'latin1')
const NOTHING = Buffer.alloc(0)
const DEPTH_MAX = 24

/** The message that these octets are; undefined when they are none. */
export function messageIn(bytes: Buffer, depth = 0): Message | undefined {
  const prefix = bytes.subarray(0, MAGIC.length).equals(MAGIC) ? MAGIC : NOTHING
  const fields: Field[] = []
  let at = prefix.length
  while (at < bytes.length) {
    const tag = varintAt(bytes, at)
    if (tag === undefined || tag.value < 8) return undefined
    const wire = tag.value % 8
    const span = spanOf(bytes, tag.end, wire)
    if (span === undefined || span.end > bytes.length) return undefined
    const octets = bytes.subarray(span.start, span.end)
    const nested =
      wire === 2 && octets.length > 1 && depth < DEPTH_MAX ? messageIn(octets, depth + 1) : undefined
    fields.push({ number: Math.floor(tag.value / 8), wire, value: nested ?? octets })
    at = span.end
  }
  return { prefix, fields }
}

function spanOf(bytes: Buffer, at: number, wire: number): { start: number; end: number } | undefined {
  if (wire === 1) return { start: at, end: at + 8 }
  if (wire === 5) return { start: at, end: at + 4 }
  const varint = varintAt(bytes, at)
  if (varint === undefined) return undefined
  if (wire === 0) return { start: at, end: varint.end }
  return wire === 2 ? { start: varint.end, end: varint.end + varint.value } : undefined
}

function varintAt(bytes: Buffer, at: number): { value: number; end: number } | undefined {
  let value = 0
  for (let index = 0; index < 5 && at + index < bytes.length; index++) {
    const byte = bytes[at + index] ?? 0
    value += (byte & 0x7f) * 2 ** (7 * index)
    if (byte < 0x80) return { value, end: at + index + 1 }
  }
  return undefined
}

export function varint(value: number): Buffer {
  const octets: number[] = []
  let rest = value
  for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) octets.push((rest % 0x80) | 0x80)
  return Buffer.from([...octets, rest])
}

export function bytesOf({ prefix, fields }: Message): Buffer {
  return Buffer.concat([prefix, ...fields.flatMap(fieldBytes)])
}

function fieldBytes({ number, wire, value }: Field): readonly Buffer[] {
  const octets = Buffer.isBuffer(value) ? value : bytesOf(value)
  const tag = varint(number * 8 + wire)
  return wire === 2 ? [tag, varint(octets.length), octets] : [tag, octets]
}
