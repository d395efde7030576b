import type { Octets } from '../base/octets.ts'

/** From this length on, one call into the runtime writes octets faster than a loop. */
const CALL_LENGTH = 64

/**
 * An append-only buffer that doubles its size when it is full. Host order is little-endian, as on every supported
 * platform. `bytes`, `words` and `view` change identity when it grows: a caller that writes through them calls
 * `reserve` first.
 */
export class ByteWriter {
  bytes: Uint8Array
  /** The same bytes, for aligned access. */
  words: Int32Array
  view: DataView
  length = 0
  #buffer: Buffer | undefined

  constructor(capacity = 4096) {
    this.bytes = new Uint8Array(align4(capacity))
    this.words = new Int32Array(this.bytes.buffer)
    this.view = new DataView(this.bytes.buffer)
  }

  /** Makes room for `count` more bytes. */
  reserve(count: number): void {
    const needed = this.length + count
    if (needed <= this.bytes.length) return
    const grown = new Uint8Array(align4(Math.max(needed, this.bytes.length * 2)))
    grown.set(this.bytes.subarray(0, this.length))
    this.bytes = grown
    this.words = new Int32Array(grown.buffer)
    this.view = new DataView(grown.buffer)
  }

  u8(value: number): void {
    this.reserve(1)
    this.bytes[this.length++] = value
  }

  u16(value: number): void {
    this.reserve(2)
    this.view.setUint16(this.length, value, true)
    this.length += 2
  }

  u16be(value: number): void {
    this.reserve(2)
    this.view.setUint16(this.length, value)
    this.length += 2
  }

  u32(value: number): void {
    this.reserve(4)
    this.view.setUint32(this.length, value, true)
    this.length += 4
  }

  u32be(value: number): void {
    this.reserve(4)
    this.view.setUint32(this.length, value)
    this.length += 4
  }

  u64be(value: bigint): void {
    this.reserve(8)
    this.view.setBigUint64(this.length, value)
    this.length += 8
  }

  u64(value: bigint): void {
    this.reserve(8)
    this.view.setBigUint64(this.length, value, true)
    this.length += 8
  }

  octets(value: Octets): void {
    this.reserve(value.length)
    if (value.length > CALL_LENGTH) {
      this.#nodeBuffer().write(value, this.length, 'latin1')
      this.length += value.length
      return
    }
    const bytes = this.bytes
    let at = this.length
    for (let i = 0; i < value.length; i++) bytes[at++] = value.charCodeAt(i)
    this.length = at
  }

  /** Appends bytes unchanged. */
  raw(value: Uint8Array): void {
    this.reserve(value.length)
    this.bytes.set(value, this.length)
    this.length += value.length
  }

  #nodeBuffer(): Buffer {
    if (this.#buffer?.buffer !== this.bytes.buffer) this.#buffer = Buffer.from(this.bytes.buffer)
    return this.#buffer
  }

  utf8(text: string): void {
    // A UTF-16 unit takes at most three bytes of UTF-8.
    this.reserve(text.length * 3)
    const start = this.length
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i)
      if (code > 0x7f) {
        this.length = start
        this.#encode(text)
        return
      }
      this.bytes[this.length++] = code
    }
  }

  #encode(text: string): void {
    this.length += new TextEncoder().encodeInto(text, this.bytes.subarray(this.length)).written
  }

  zeros(count: number): void {
    this.reserve(count)
    for (let i = 0; i < count; i++) this.bytes[this.length++] = 0
  }

  /** Appends zeros up to the next multiple of four. */
  align(): void {
    const padding = -this.length & 3
    if (padding > 0) this.zeros(padding)
  }

  patchU16(offset: number, value: number): void {
    this.view.setUint16(offset, value, true)
  }

  patchU32(offset: number, value: number): void {
    this.view.setUint32(offset, value, true)
  }

  /** Returns the written bytes, without a copy. */
  written(): Uint8Array {
    return this.bytes.subarray(0, this.length)
  }
}

/** Bytes to decode. Readers check their bounds against their own `end` before they access them. */
export interface ByteView {
  readonly bytes: Buffer
  readonly data: DataView
}

/** Returns the same bytes with a DataView over them. */
export function viewOf(bytes: Uint8Array): ByteView {
  return {
    bytes: Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength),
    data: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength),
  }
}

export function align4(length: number): number {
  return (length + 3) & ~3
}
