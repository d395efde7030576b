import type { Octets } from '../base/octets.ts'
import { ATTRIBUTE_LENGTH_MAX, type AttributeWriter, NESTING_MAX } from './attribute.ts'
import type { ByteWriter } from './bytes.ts'
import { type Codec, type WordCodec, wordOf } from './codec.ts'
import { NLA_HDRLEN } from './constants.ts'
import { unencodable } from './errors.ts'

/** Appends the attributes of a table from a source. */
export type Writer<S> = (out: AttributeWriter, source: S) => void

/** One step of a writer; all steps have the same fields, so that one loop handles them. */
export interface Step<S> {
  readonly kind: 'number' | 'octets' | 'other' | 'nest' | 'end'
  /** The attribute's type, with NLA_F_*. */
  readonly type: number
  /** For octets: the type of the nest that contains only them; 0 for none. */
  readonly around: number
  readonly word: WordCodec
  readonly codec: Codec<unknown>
  /** Length to which shorter octets are padded. */
  readonly padTo: number
  readonly numberOf: (source: S) => number | undefined
  readonly octetsOf: (source: S) => Octets | undefined
  readonly valueOf: (source: S) => unknown
}

/** The codec writes longer octets. */
const OCTETS_MAX = 64

/**
 * Compiles steps to a writer. Most of a full load is written before the JIT compiler has optimized the code. So one
 * loop with few calls writes numbers, octets and nests, which are nearly all of it, directly into the buffer.
 */
export function flatWriter<S>(steps: readonly Step<S>[]): Writer<S> {
  const starts = new Array<number>(NESTING_MAX).fill(0)
  return (out, source) => {
    const buffer = out.out
    let depth = 0
    for (let i = 0; i < steps.length; i++) {
      const step = steps[i]
      if (step === undefined) break
      if (step.kind === 'number') {
        const value = step.numberOf(source)
        if (value === undefined) continue
        if (buffer.bytes.length - buffer.length < 8) buffer.reserve(8)
        const at = buffer.length >> 2
        buffer.words[at] = (step.type << 16) | (NLA_HDRLEN + step.word.bytes)
        buffer.words[at + 1] = wordOf(step.word, value)
        buffer.length += 8
      } else if (step.kind === 'octets') {
        const value = step.octetsOf(source)
        if (value === undefined) continue
        if (value.length > OCTETS_MAX) writeLong(out, step, value)
        else writeOctets(buffer, step, value)
      } else if (step.kind === 'nest') {
        if (buffer.bytes.length - buffer.length < NLA_HDRLEN) buffer.reserve(NLA_HDRLEN)
        starts[depth++] = buffer.length
        buffer.words[buffer.length >> 2] = step.type << 16
        buffer.length += NLA_HDRLEN
      } else if (step.kind === 'end') {
        const start = starts[--depth] ?? 0
        const length = buffer.length - start
        if (length > ATTRIBUTE_LENGTH_MAX) throw unencodable(`a nest of ${length} bytes`)
        // The type is already written, and the length is still 0.
        if (length > NLA_HDRLEN) buffer.view.setUint16(start, length, true)
        else buffer.length = start
      } else {
        const value = step.valueOf(source)
        if (value !== undefined) step.codec.write(out, step.type, value)
      }
    }
  }
}

function writeOctets<S>(buffer: ByteWriter, { type, around, padTo }: Step<S>, value: Octets): void {
  if (buffer.bytes.length - buffer.length < OCTETS_MAX + 12) buffer.reserve(OCTETS_MAX + 12)
  const { length } = value
  const { bytes, words } = buffer
  const size = NLA_HDRLEN + (length > padTo ? length : padTo)
  let at = buffer.length
  if (around !== 0) {
    words[at >> 2] = (around << 16) | (NLA_HDRLEN + ((size + 3) & ~3))
    at += NLA_HDRLEN
  }
  const end = at + size
  words[at >> 2] = (type << 16) | size
  at += NLA_HDRLEN
  for (let i = 0; i < length; i++) bytes[at++] = value.charCodeAt(i)
  while (at < end || (at & 3) !== 0) bytes[at++] = 0
  buffer.length = at
}

function writeLong<S>(out: AttributeWriter, { type, around, codec }: Step<S>, value: Octets): void {
  if (around !== 0) out.open(around)
  codec.write(out, type, value)
  if (around !== 0) out.close()
}
