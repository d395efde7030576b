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

/** What stands before the first NUL, or everything when there is none. */
export function cString(octets: Octets): Octets {
  const end = octets.indexOf('\0')
  return end < 0 ? octets : octets.slice(0, end)
}

/** One character a byte. */
export function octetsFromBytes(bytes: Uint8Array): Octets {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1')
}

/** One byte a character. */
export function bytesFromOctets(octets: Octets): Uint8Array {
  return Buffer.from(octets, 'latin1')
}

/** Lower-case hexadecimal, two digits a byte. */
export function hex(octets: Octets): string {
  return Buffer.from(octets, 'latin1').toString('hex')
}
