import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'
import {
  anyContains,
  cidrOf,
  compareCidrs,
  contains,
  formatCidr,
  formatIp,
  mergeCidrs,
  parseCidr,
  whyNotCidr,
} from '../../../src/base/ip.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { runs } from '../../support/runs.ts'

/** Prefixes and addresses that meet often: few distinct bits at both ends. */
const octet = fc.constantFrom(0, 1, 2, 3, 10, 127, 128, 129, 192, 254, 255)
const anyIp = fc
  .oneof(fc.array(octet, { minLength: 4, maxLength: 4 }), fc.array(octet, { minLength: 16, maxLength: 16 }))
  .map(bytes => String.fromCharCode(...bytes))
const anyCidr = fc
  .tuple(anyIp, fc.nat(128))
  .map(([address, bits]) => cidrOf(address, Math.min(bits, address.length * 8)))
const closeCidr = fc
  .tuple(fc.nat(255), fc.integer({ min: 24, max: 32 }))
  .map(([last, bits]) => cidrOf(String.fromCharCode(10, 0, 0, last), bits))

describe('parseCidr', () => {
  it.each([
    ['10.0.0.0/8', '10.0.0.0/8'],
    ['10.1.2.3/8', '10.0.0.0/8'],
    ['10.1.2.3/32', '10.1.2.3/32'],
    ['10.1.2.3/31', '10.1.2.2/31'],
    ['255.255.255.255/0', '0.0.0.0/0'],
    ['172.16.0.0/012', '172.16.0.0/12'],
    ['2001:db8:ffff::1/33', '2001:db8:8000::/33'],
    ['::/0', '::/0'],
    ['fd00::1/128', 'fd00::1/128'],
  ])('reads %s as %s', (text, canonical) => {
    expect(formatCidr(cidr(text))).toBe(canonical)
  })

  it.each([
    '',
    '/',
    '10.0.0.0',
    '10.0.0.0/',
    '10.0.0.0/33',
    '10.0.0.0/-1',
    '10.0.0.0/8/8',
    '10.0.0.0/ 8',
    '10.0.0/8',
    '::/129',
    '/8',
    '10.0.0.0/255.0.0.0',
  ])('refuses %j and says why', text => {
    expect(parseCidr(text)).toBeUndefined()
    expect(whyNotCidr(text)).toMatch(/^(not a CIDR|empty)/)
  })

  it('names the maximum prefix length', () => {
    expect(whyNotCidr('10.0.0.0/33')).toContain('must be 0 to 32')
    expect(whyNotCidr('fd00::/x')).toContain('must be 0 to 128')
  })
})

describe('contains', () => {
  it('agrees with ipaddr.js', () => {
    fc.assert(
      fc.property(anyCidr, anyIp, (prefix, address) => {
        const oracle = ipaddr.parse(formatIp(address))
        const range = ipaddr.parse(formatIp(prefix.ip))
        const expected = oracle.kind() === range.kind() && oracle.match(range, prefix.bits)
        expect(contains(prefix, address)).toBe(expected)
      }),
      { numRuns: runs(2000) },
    )
  })

  it('asks several prefixes at once', () => {
    expect(anyContains([cidr('10.0.0.0/8'), cidr('fd00::/8')], ip('fd00::1'))).toBe(true)
    expect(anyContains([cidr('10.0.0.0/8')], ip('11.0.0.1'))).toBe(false)
    expect(anyContains([], ip('10.0.0.1'))).toBe(false)
  })
})

describe('mergeCidrs', () => {
  it.each([
    [['0.0.0.0/1', '128.0.0.0/1'], ['0.0.0.0/0']],
    [
      ['fd00::/9', '10.0.0.1/32', 'fd80::/9'],
      ['10.0.0.1/32', 'fd00::/8'],
    ],
  ])('makes %j into %j', (from, to) => {
    expect(mergeCidrs(from.map(cidr)).map(formatCidr)).toEqual(to)
  })

  it('holds exactly the addresses of its input', () => {
    fc.assert(
      fc.property(
        fc.array(anyCidr, { maxLength: 30 }),
        fc.array(anyIp, { maxLength: 50 }),
        (cidrs, probes) => {
          const merged = mergeCidrs(cidrs)
          for (const probe of [...probes, ...cidrs.map(its => its.ip)]) {
            expect(anyContains(merged, probe)).toBe(anyContains(cidrs, probe))
          }
        },
      ),
      { numRuns: runs(500) },
    )
  })

  it('agrees with a naive matcher on every address of a small network, in the fewest prefixes', () => {
    fc.assert(
      fc.property(fc.array(closeCidr, { maxLength: 40 }), cidrs => {
        const merged = mergeCidrs(cidrs)
        const wanted = Array.from({ length: 256 }, (_, last) =>
          anyContains(cidrs, String.fromCharCode(10, 0, 0, last)),
        )
        const got = Array.from({ length: 256 }, (_, last) =>
          anyContains(merged, String.fromCharCode(10, 0, 0, last)),
        )
        expect(got).toEqual(wanted)
        expect(merged.length).toBe(fewestPrefixes(wanted))
      }),
      { numRuns: runs(1000) },
    )
  })

  it('is sorted, disjoint and stable under repetition and order', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(anyCidr, closeCidr), { maxLength: 30 }), cidrs => {
        const merged = mergeCidrs(cidrs)
        expect(mergeCidrs(merged)).toEqual(merged)
        expect(mergeCidrs(cidrs.toReversed())).toEqual(merged)
        expect(merged.toSorted(compareCidrs)).toEqual(merged)
        for (const a of merged) for (const b of merged) if (a !== b) expect(contains(a, b.ip)).toBe(false)
      }),
    )
  })
})

/** By halving: a half that is entirely wanted is one prefix. */
function fewestPrefixes(wanted: readonly boolean[]): number {
  if (wanted.every(is => is)) return 1
  if (wanted.length === 1) return 0
  const middle = wanted.length / 2
  return fewestPrefixes(wanted.slice(0, middle)) + fewestPrefixes(wanted.slice(middle))
}
