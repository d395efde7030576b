import { createHash } from 'node:crypto'

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** The first 16 characters of SHA-256 in base32 (RFC 4648): names of chains have room for 28. */
export function base32Hash(text: string): string {
  const digest = createHash('sha256').update(text).digest()
  let hash = ''
  // Eight characters are five bytes.
  for (let at = 0; at < 10; at += 5) {
    const high = digest.readUInt32BE(at)
    const low = digest.readUInt8(at + 4)
    for (let shift = 27; shift > 0; shift -= 5) hash += BASE32.charAt((high >>> shift) & 31)
    hash += BASE32.charAt(((high & 3) << 3) | (low >>> 5)) + BASE32.charAt(low & 31)
  }
  return hash
}
