import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  isDnsLabel,
  isDnsSubdomain,
  printable,
  readAddress,
  whyNotAddress,
} from '../../../src/model/fields.ts'

describe('names', () => {
  it.each(['a', '0', 'web', 'web-1', '1-a', 'x'.repeat(63)])('%s is a DNS label', text => {
    expect(isDnsLabel(text)).toBe(true)
    expect(isDnsSubdomain(text)).toBe(true)
  })

  it.each(['', '-a', 'a-', 'A', 'a_b', 'a b', 'a\n', 'ä', 'a"', '\u202e', 'x'.repeat(64)])(
    '%j is no DNS label',
    text => {
      expect(isDnsLabel(text)).toBe(false)
    },
  )

  it('a subdomain is labels with dots between', () => {
    expect(isDnsSubdomain('node-1.example.com')).toBe(true)
    expect(isDnsLabel('node-1.example.com')).toBe(false)
    for (const text of ['.', 'a.', '.a', 'a..b', 'a.-b', 'a'.repeat(254), 'A.b'])
      expect(isDnsSubdomain(text)).toBe(false)
    expect(isDnsSubdomain(Array(126).fill('a').join('.'))).toBe(true)
    expect(isDnsSubdomain(Array(128).fill('a').join('.'))).toBe(false)
  })
})

describe('printable', () => {
  it.each([
    ['10.0.0.1', '10.0.0.1'],
    ['a"b\'c\\d`e', 'a\\u0022b\\u0027c\\u005cd\\u0060e'],
    ['line\nfeed\0\x7f', 'line\\u000afeed\\u0000\\u007f'],
    ['\u202egnp.exe', '\\u202egnp.exe'],
    ['zürich', 'z\\u00fcrich'],
    ['\ud800', '\\ud800'],
    [80, '80'],
    [true, 'true'],
    [null, 'null'],
    [undefined, 'nothing'],
    [{ secret: 'x' }, '{...}'],
    [['secret'], '[...]'],
    [[], '[]'],
  ])('shows %j as %s', (value, text) => {
    expect(printable(value)).toBe(text)
  })

  it('keeps 64 characters and shortens more', () => {
    expect(printable('x'.repeat(64))).toBe('x'.repeat(64))
    expect(printable('x'.repeat(65))).toBe(`${'x'.repeat(61)}...`)
    expect(printable('\0'.repeat(65_536))).toHaveLength(64)
  })

  it('is one line of printable ASCII, at most 64 characters, for any text', () => {
    fc.assert(
      // The unit 'binary' of fast-check counts up all code points first, for a second.
      fc.property(fc.array(fc.integer({ min: 0, max: 0x10_ffff }), { maxLength: 100 }), codePoints => {
        const text = String.fromCodePoint(...codePoints)
        expect(printable(text)).toMatch(/^[ -~]{0,64}$/)
        expect(printable(text)).not.toMatch(/["'`]/)
      }),
    )
  })
})

describe('an address that no Service may have', () => {
  const MAPPED = 'an IPv4-mapped IPv6 address, which programs read as either family; write plain IPv4'
  const LOOPBACK = 'a loopback address, which every node has for itself'
  const UNSPECIFIED = 'the unspecified address, which stands for every address'
  const LINK_LOCAL =
    'a link-local address, which belongs to the network this node is on (or its cloud metadata)'
  const MULTICAST = 'a multicast address; Services have unicast addresses'
  it.each([
    ['127.0.0.1', LOOPBACK],
    ['::1', LOOPBACK],
    ['0.0.0.0', UNSPECIFIED],
    ['::', UNSPECIFIED],
    ['169.254.169.254', LINK_LOCAL],
    ['fe80::1', LINK_LOCAL],
    ['224.0.0.1', MULTICAST],
    ['ff02::1', MULTICAST],
    ['255.255.255.255', 'the broadcast address; Services have unicast addresses'],
    ['::ffff:192.0.2.1', MAPPED],
    ['fe80::1%eth0', 'an IP address with a zone, which has no meaning on other nodes; omit the zone'],
    ['web.example', 'not an IP address; write it like 192.0.2.1 or 2001:db8::1'],
    [7, 'not text; an IP address is a string'],
  ])('%s (I-03)', (address, reason) => {
    expect(readAddress(address)).toBeUndefined()
    expect(whyNotAddress(address)).toBe(reason)
  })
})
