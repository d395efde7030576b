import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'
import {
  compareIps,
  formatIp,
  isBroadcast,
  isIpv4Mapped,
  isLinkLocal,
  isLoopback,
  isMulticast,
  isUnspecified,
  parseIp,
  whyNotIp,
} from '../../../src/base/ip.ts'
import { ip } from '../../support/addresses.ts'
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
