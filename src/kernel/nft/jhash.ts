import { type Octets, readU32host } from '../../base/octets.ts'

/*
 * The hash of `jhash` in nf_tables: lookup3 by Bob Jenkins, as the kernel has it (jhash() of include/linux/jhash.h). It
 * reads the last 12 bytes in one byte order on every machine, and those before them in that of the host.
 */
const INITVAL = 0xdeadbeef
const BLOCK = 12

/** Gives the number that the kernel scales a hash to: below `modulus`, by reciprocal_scale() of linux/kernel.h. */
export function scaledHash(octets: Octets, seed: number, modulus: number): number {
  return Number((BigInt(jhash(octets, seed)) * BigInt(modulus)) >> 32n)
}

/** Hashes words of four bytes, at least one. Gives an unsigned number of 32 bits. */
export function jhash(octets: Octets, seed: number): number {
  const start = (INITVAL + octets.length + seed) | 0
  let state: State = [start, start, start]
  let at = 0
  for (; octets.length - at > BLOCK; at += BLOCK) state = mixed(added(state, octets, at, readU32host))
  return finished(added(state, octets, at, readU32le))
}

type State = readonly [a: number, b: number, c: number]

function added([a, b, c]: State, octets: Octets, at: number, read: typeof readU32host): State {
  const word = (index: number) => (at + index < octets.length ? read(octets, at + index) : 0)
  return [(a + word(0)) | 0, (b + word(4)) | 0, (c + word(8)) | 0]
}

function readU32le(octets: Octets, at = 0): number {
  const byte = (index: number) => octets.charCodeAt(at + index) << (8 * index)
  return (byte(0) | byte(1) | byte(2) | byte(3)) >>> 0
}

function rotated(value: number, bits: number): number {
  return (value << bits) | (value >>> (32 - bits))
}

/** `__jhash_mix`: three words of the state take turns. */
function mixed(state: State): State {
  let [a, b, c] = state
  for (const bits of [4, 6, 8, 16, 19, 4]) {
    const first = (a - c) ^ rotated(c, bits)
    const third = (c + b) | 0
    ;[a, b, c] = [b, third, first]
  }
  return [a, b, c]
}

/** `__jhash_final`. */
function finished(state: State): number {
  let [a, b, c] = state
  for (const bits of [14, 11, 25, 16, 4, 14, 24]) {
    const first = ((c ^ b) - rotated(b, bits)) | 0
    ;[c, a, b] = [a, b, first]
  }
  return b >>> 0
}
