import { createHash } from 'node:crypto'

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** The first 16 characters of SHA-256 in base32 (RFC 4648): names of chains have room for 28. */
export function base32Hash(text: string): string {
  const digest = createHash('sha256').update(text).digest()
  return (
    base32(digest.readUInt32BE(0), digest.readUInt8(4)) + base32(digest.readUInt32BE(5), digest.readUInt8(9))
  )
}

/** Eight characters for five bytes: a number of four, and one of one. */
export function base32(high: number, low: number): string {
  let text = ''
  for (let shift = 27; shift > 0; shift -= 5) text += BASE32.charAt((high >>> shift) & 31)
  return text + BASE32.charAt(((high & 3) << 3) | (low >>> 5)) + BASE32.charAt(low & 31)
}
