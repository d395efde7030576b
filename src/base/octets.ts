/**
 * Bytes as a value: a string whose every character is one byte (Latin-1). Unlike a Uint8Array it is immutable,
 * compares with ===, serves as a Map key, and costs a third of the memory.
 */
export type Octets = string

/** `value` as 4 bytes in network order. */
export function u32be(value: number): Octets {
  return String.fromCharCode((value >>> 24) & 255, (value >>> 16) & 255, (value >>> 8) & 255, value & 255)
}

/** `value` as 4 bytes in host order; the ABI of every platform we build for is little-endian. */
export function u32host(value: number): Octets {
  return String.fromCharCode(value & 255, (value >>> 8) & 255, (value >>> 16) & 255, (value >>> 24) & 255)
}

export function u16be(value: number): Octets {
  return String.fromCharCode((value >>> 8) & 255, value & 255)
}

/** The unsigned 32-bit number at `offset`, in host (little-endian) order. */
export function readU32host(octets: Octets, offset = 0): number {
  return (
    (octets.charCodeAt(offset) |
      (octets.charCodeAt(offset + 1) << 8) |
      (octets.charCodeAt(offset + 2) << 16) |
      (octets.charCodeAt(offset + 3) << 24)) >>>
    0
  )
}

export function readU32be(octets: Octets, offset = 0): number {
  return (
    ((octets.charCodeAt(offset) << 24) |
      (octets.charCodeAt(offset + 1) << 16) |
      (octets.charCodeAt(offset + 2) << 8) |
      octets.charCodeAt(offset + 3)) >>>
    0
  )
}

export function readU16be(octets: Octets, offset = 0): number {
  return (octets.charCodeAt(offset) << 8) | octets.charCodeAt(offset + 1)
}

export function zeros(length: number): Octets {
  return '\0'.repeat(length)
}

/** Gives the number of leading ones of a mask; undefined where ones follow a zero. */
export function prefixBits(mask: Octets): number | undefined {
  let bits = 0
  while (bits < mask.length * 8 && isOne(mask, bits)) bits++
  for (let at = bits; at < mask.length * 8; at++) if (isOne(mask, at)) return undefined
  return bits
}

function isOne(mask: Octets, bit: number): boolean {
  return (mask.charCodeAt(bit >> 3) & (0x80 >> (bit & 7))) !== 0
}

/** Returns the bytes before the first NUL, or all bytes if there is none. */
export function cString(octets: Octets): Octets {
  const end = octets.indexOf('\0')
  return end < 0 ? octets : octets.slice(0, end)
}

/** Makes one character of each byte. */
export function octetsFromBytes(bytes: Uint8Array): Octets {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1')
}

/** Makes one byte of each character. */
export function bytesFromOctets(octets: Octets): Uint8Array {
  return Buffer.from(octets, 'latin1')
}

/** Lower-case hexadecimal, two digits a byte. */
export function hex(octets: Octets): string {
  return Buffer.from(octets, 'latin1').toString('hex')
}

/**
 * Bytes that arrive in pieces: each piece is parsed in place, and only an unfinished rest is copied.
 * The caller bounds the rest; memory of a large rest is released once the rest is consumed.
 */
export class Rest {
  #store: Buffer = EMPTY
  #start = 0
  #end = 0
  #isStored = false

  /** Returns the rest followed by this piece. The result is valid until the next call. */
  with(piece: Uint8Array): Buffer {
    this.#isStored = this.#end > this.#start
    if (!this.#isStored) return Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength)
    this.#reserve(piece.length)
    this.#store.set(piece, this.#end)
    this.#end += piece.length
    return this.#store.subarray(this.#start, this.#end)
  }

  /** Keeps `bytes`, the result of with(), but for its first `done` bytes. */
  leave(bytes: Buffer, done: number): void {
    if (this.#isStored) {
      this.#start += done
      if (this.#start === this.#end && this.#store.length > CHUNK_BYTES) this.#store = EMPTY
    } else if (done < bytes.length) {
      this.#start = 0
      this.#end = 0
      this.#reserve(bytes.length - done)
      this.#end = bytes.copy(this.#store, 0, done)
    }
  }

  get length(): number {
    return this.#end - this.#start
  }

  #reserve(count: number): void {
    if (this.#end + count <= this.#store.length) return
    const { length } = this
    const room = length + count
    const store = room <= this.#store.length / 2 ? this.#store : Buffer.allocUnsafeSlow(2 * room)
    this.#store.copy(store, 0, this.#start, this.#end)
    this.#store = store
    this.#start = 0
    this.#end = length
  }
}

const EMPTY: Readonly<Buffer> = Buffer.alloc(0)
/** What a file is read in, and the room that is kept although nothing is left. */
const CHUNK_BYTES = 256 * 1024

/** A FileHandle of node:fs/promises. */
interface OpenFile {
  read(
    into: Uint8Array,
    offset: number,
    length: number,
    position: null,
  ): Promise<{ readonly bytesRead: number }>
}

/** Reads a file of about `size` bytes to its end; undefined for more than `bytesMax`. */
export async function readToEnd(file: OpenFile, bytesMax: number, size = 0): Promise<Buffer | undefined> {
  let bytes = Buffer.allocUnsafe(Math.min(size, bytesMax) + CHUNK_BYTES)
  let length = 0
  while (Math.max(size, length) <= bytesMax) {
    if (bytes.length - length < CHUNK_BYTES) bytes = Buffer.concat([bytes], 2 * bytes.length)
    const { bytesRead } = await file.read(bytes, length, CHUNK_BYTES, null)
    if (bytesRead === 0) return bytes.subarray(0, length)
    length += bytesRead
  }
  return undefined
}
