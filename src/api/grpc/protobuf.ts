/** A field as it stands on the wire: of kind 2 its bytes, of kind 0 its number. Others are left out. */
interface WireField {
  readonly number: number
  readonly value: number | Buffer
}

const VARINT = 0
const FIXED64 = 1
const BYTES = 2
const FIXED32 = 5
const VARINT_BYTES_MAX = 10

export class MalformedMessage extends Error {}

/** Small messages: what clients ask. Throws MalformedMessage. */
export function* readFields(message: Buffer): Iterable<WireField> {
  let at = 0
  while (at < message.length) {
    const tag = readVarint(message, at)
    const number = Math.floor(tag.value / 8)
    if (number === 0) throw new MalformedMessage('a field has number 0')
    at = tag.end
    switch (tag.value % 8) {
      case VARINT: {
        const { value, end } = readVarint(message, at)
        yield { number, value }
        at = end
        break
      }
      case BYTES: {
        const length = readVarint(message, at)
        at = length.end + length.value
        if (at > message.length) throw new MalformedMessage('a field is longer than its message')
        yield { number, value: message.subarray(length.end, at) }
        break
      }
      case FIXED64:
        at += 8
        break
      case FIXED32:
        at += 4
        break
      default:
        throw new MalformedMessage(`a field has the wire type ${tag.value % 8}`)
    }
  }
  if (at > message.length) throw new MalformedMessage('the last field is truncated')
}

/** The last field of that number, as text; empty when there is none. */
export function readText(message: Buffer, number: number): string {
  let text = ''
  for (const field of readFields(message))
    if (field.number === number && typeof field.value !== 'number') text = field.value.toString('utf8')
  return text
}

function readVarint(message: Buffer, start: number): { readonly value: number; readonly end: number } {
  let value = 0
  for (let at = start; at < Math.min(message.length, start + VARINT_BYTES_MAX); at++) {
    const byte = message[at] ?? 0
    value += (byte & 0x7f) * 2 ** (7 * (at - start))
    if (byte < 0x80) return { value, end: at + 1 }
  }
  throw new MalformedMessage('a number is truncated or too long')
}

/** A field that is text, bytes or a message within a message. */
export function bytesField(number: number, content: string | Uint8Array): Buffer {
  const bytes = typeof content === 'string' ? Buffer.from(content, 'utf8') : content
  return Buffer.concat([varint(number * 8 + BYTES), varint(bytes.length), bytes])
}

/** Like bytesField(), for several parts in a row. */
export function messageField(number: number, fields: readonly Uint8Array[]): Buffer {
  return bytesField(number, Buffer.concat(fields))
}

/** A field that is a number, an enum or a bool. Whole and not negative; 0 is left out, as proto3 wants it. */
export function numberField(number: number, value: number): Buffer {
  return value === 0 ? Buffer.alloc(0) : Buffer.concat([varint(number * 8), varint(value)])
}

/** Empty text is left out. */
export function textField(number: number, text: string): Buffer {
  return text === '' ? Buffer.alloc(0) : bytesField(number, text)
}

function varint(value: number): Buffer {
  const bytes: number[] = []
  let rest = value
  for (; rest > 0x7f; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128)
  bytes.push(rest)
  return Buffer.from(bytes)
}
