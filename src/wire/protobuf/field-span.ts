import { WireError } from '../wire-error.ts'
import { FIXED32, FIXED64, LENGTH, VARINT } from './table.ts'

/** The position of a field that may not have arrived entirely. */
export interface FieldSpan {
  readonly tag: number
  /** The start of its contents, behind tag and length. */
  readonly start: number
  /** Bytes of its contents. */
  readonly length: number
}

/** The field at `at`; undefined when too few bytes have arrived. Throws WireError. */
export function fieldAt(bytes: Buffer, at: number): FieldSpan | undefined {
  const tag = varintAt(bytes, at)
  if (tag === undefined) return undefined
  switch (tag.value & 7) {
    case LENGTH: {
      const length = varintAt(bytes, tag.end)
      return length && { tag: tag.value, start: length.end, length: length.value }
    }
    case VARINT: {
      const value = varintAt(bytes, tag.end)
      return value && { tag: tag.value, start: tag.end, length: value.end - tag.end }
    }
    case FIXED32:
      return { tag: tag.value, start: tag.end, length: 4 }
    case FIXED64:
      return { tag: tag.value, start: tag.end, length: 8 }
    default:
      throw new WireError(`a field of the wire type ${tag.value & 7}`)
  }
}

interface Varint {
  /** Inexact beyond 2^53. */
  readonly value: number
  readonly end: number
}

const VARINT_BYTES_MAX = 10

function varintAt(bytes: Buffer, at: number): Varint | undefined {
  let value = 0
  for (let index = 0; index < VARINT_BYTES_MAX; index++) {
    const byte = bytes[at + index]
    if (byte === undefined) return undefined
    value += (byte & 0x7f) * 2 ** (7 * index)
    if (byte < 0x80) return { value, end: at + index + 1 }
  }
  throw new WireError('a number of more than 64 bits')
}
