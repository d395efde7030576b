import { describe, expect, it } from 'vitest'
import { jhash, scaledHash } from '../../../../src/kernel/nft/jhash.ts'

const bytes = (...values: number[]) => String.fromCharCode(...values)
const upTo = (length: number) => bytes(...Array.from({ length }, (_, at) => at))

describe('jhash', () => {
  // Computed by a line-by-line copy of include/linux/jhash.h, on a little-endian machine.
  it.each([
    ['an IPv4 address', bytes(10, 0, 0, 1), 0, 799405953],
    ['another seed', bytes(192, 168, 1, 77), 27504, 4021379842],
    ['an IPv6 address', bytes(0xfd, ...new Array(14).fill(0), 7), 5, 676527087],
    ['three words', upTo(12), 1, 1161759735],
    ['the ports and addresses of IPv6', upTo(40), 0xffffffff, 186425814],
  ])('hashes %s as the kernel does', (_, octets, seed, hash) => {
    expect(jhash(octets, seed)).toBe(hash)
  })

  it('scales a hash to a number below the modulus, as reciprocal_scale() does', () => {
    expect(scaledHash(bytes(10, 0, 0, 1), 0, 1019)).toBe(Math.floor((799405953 * 1019) / 2 ** 32))
    expect(scaledHash(bytes(10, 0, 0, 1), 0, 2 ** 32 - 1)).toBe(799405952)
  })
})
