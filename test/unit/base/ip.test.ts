import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'
import {
  anyContains,
  cidrOf,
  compareCidrs,
  compareIps,
  contains,
  formatCidr,
  formatIp,
  isBroadcast,
  isIpv4Mapped,
  isLinkLocal,
  isLoopback,
  isMulticast,
  isUnspecified,
  mergeCidrs,
  parseCidr,
  parseIp,
  whyNotCidr,
  whyNotIp,
} from '../../../src/base/ip.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { runs } from '../../support/runs.ts'

const ipBytes = fc.oneof(
  fc.uint8Array({ minLength: 4, maxLength: 4 }),
  fc.uint8Array({ minLength: 16, maxLength: 16 }),
  // Runs of zeros, where the text forms of IPv6 differ.
  fc
    .array(fc.constantFrom(0, 0, 0, 1, 255), { minLength: 16, maxLength: 16 })
    .map(list => Uint8Array.from(list)),
)

describe('parseIp', () => {
  it.each([
    ['2001:DB8::A', '2001:db8::a'],
    ['2001:0db8:0000:0000:0000:0000:0000:0001', '2001:db8::1'],
    ['1:2:3:4:5:6:7::', '1:2:3:4:5:6:7:0'],
    ['::2:3:4:5:6:7:8', '0:2:3:4:5:6:7:8'],
    ['64:ff9b::192.0.2.33', '64:ff9b::c000:221'],
    ['1:2:3:4:5:6:1.2.3.4', '1:2:3:4:5:6:102:304'],
    ['::ffff:10.0.0.1', '::ffff:10.0.0.1'],
    ['::ffff:a00:1', '::ffff:10.0.0.1'],
  ])('reads %s, whose canonical form is %s', (text, canonical) => {
    expect(formatIp(ip(text))).toBe(canonical)
  })

  it.each([
    '',
    ' 10.0.0.1',
    '10.0.0.1 ',
    '10.0.0',
    '10.0.0.1.1',
    '10.0.0.256',
    '10..0.1',
    '.10.0.0.1',
    '10.0.0.1.',
    '0x0a.0.0.1',
    '167772161',
    '+1.2.3.4',
    '1.2.3.-4',
    '10.0.0.1/32',
    '10.0.0.1:80',
    '١.٢.٣.٤',
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '1:2:3:4:5:6:7:8::',
    '::1:2:3:4:5:6:7:8',
    '1:2:3:4::5:6:7:8',
    '12345::',
    'fe80::1%eth0',
    '::1.2.3.4:5',
    '1:2:3:4:5:6:7:1.2.3.4',
    '[::1]',
    '::1\0',
  ])('refuses %j', text => {
    expect(parseIp(text)).toBeUndefined()
  })

  it('says why it refuses', () => {
    expect(whyNotIp('')).toBe('empty where an IP address belongs')
    expect(whyNotIp('fe80::1%eth0')).toContain('with a zone')
    expect(whyNotIp('10.0.0.0/8')).toContain('a prefix where a single IP address belongs')
    expect(whyNotIp('web.example')).toContain('not an IP address')
  })

  it('reads back what formatIp writes, which is what ipaddr.js writes', () => {
    fc.assert(
      fc.property(ipBytes, bytes => {
        const value = String.fromCharCode(...bytes)
        const text = formatIp(value)
        expect(parseIp(text)).toBe(value)
        const oracle = ipaddr.fromByteArray([...bytes])
        if (!isIpv4Mapped(value))
          expect(text).toBe(oracle instanceof ipaddr.IPv6 ? oracle.toRFC5952String() : oracle.toString())
      }),
    )
  })

  it('agrees with ipaddr.js on any text that looks like an IPv6 address', () => {
    const piece = fc.constantFrom('0', '1', 'ff', 'abcd', ':', ':', '::', '.', '1.2.3.4', '12345', 'g')
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 18 }), pieces => {
        const text = pieces.join('')
        // ipaddr.js takes IPv4-compatible addresses for IPv4-mapped ones; groups of five digits are no common ground.
        if (!text.includes(':') || /[0-9a-f]{5}|^::[0-9]+\./.test(text)) return
        const isValid = ipaddr.IPv6.isValid(text)
        const value = parseIp(text)
        expect(value !== undefined, text).toBe(isValid)
        if (value !== undefined)
          expect([...value].map(unit => unit.charCodeAt(0))).toEqual(ipaddr.IPv6.parse(text).toByteArray())
      }),
      { numRuns: runs(2000) },
    )
  })

  it('ends on arbitrary text and gives 4 bytes, 16 bytes or nothing', () => {
    fc.assert(
      fc.property(fc.string(), text => {
        expect([undefined, 4, 16]).toContain(parseIp(text)?.length)
      }),
    )
    expect(parseIp('1'.repeat(100_000))).toBeUndefined()
    expect(parseIp('1:'.repeat(100_000))).toBeUndefined()
  })
})

describe('the kinds of addresses', () => {
  const kinds = { isUnspecified, isLoopback, isLinkLocal, isMulticast, isBroadcast, isIpv4Mapped }
  it.each([
    ['0.0.0.0', 'isUnspecified'],
    ['::', 'isUnspecified'],
    ['127.0.0.1', 'isLoopback'],
    ['127.255.255.254', 'isLoopback'],
    ['::1', 'isLoopback'],
    ['169.254.169.254', 'isLinkLocal'],
    ['fe80::1', 'isLinkLocal'],
    ['febf::1', 'isLinkLocal'],
    ['224.0.0.1', 'isMulticast'],
    ['239.255.255.255', 'isMulticast'],
    ['ff02::1', 'isMulticast'],
    ['255.255.255.255', 'isBroadcast'],
    ['::ffff:10.0.0.1', 'isIpv4Mapped'],
    ['10.0.0.1', undefined],
    ['128.0.0.1', undefined],
    ['169.253.0.1', undefined],
    ['240.0.0.1', undefined],
    ['fec0::1', undefined],
    ['fd00::1', undefined],
    ['::2', undefined],
    ['::fffe:10.0.0.1', undefined],
  ])('%s is of kind %s and no other', (text, expected) => {
    const found = Object.entries(kinds).filter(([, is]) => is(ip(text)))
    expect(found.map(([name]) => name)).toEqual(expected === undefined ? [] : [expected])
  })

  it('sorts IPv4 before IPv6 and each by value', () => {
    const sorted = ['::1', '10.0.0.2', '9.0.0.1', 'fd00::', '10.0.0.10']
      .map(ip)
      .sort(compareIps)
      .map(formatIp)
    expect(sorted).toEqual(['9.0.0.1', '10.0.0.2', '10.0.0.10', '::1', 'fd00::'])
  })
})

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
