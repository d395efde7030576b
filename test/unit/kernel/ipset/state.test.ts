import fc from 'fast-check'
import { expect, it } from 'vitest'
import { entryKey, type IpsetEntry } from '../../../../src/kernel/ipset/state.ts'
import { runs } from '../../../support/runs.ts'

/** Few values, so that equal ones are frequent. */
const octet = fc.constantFrom(0, 1, 4, 16, 44, 58, 255)
const ip = fc.oneof(
  fc.array(octet, { minLength: 4, maxLength: 4 }),
  fc.array(octet, { minLength: 16, maxLength: 16 }),
)
const maybe = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined })
const address = maybe(ip.map(bytes => String.fromCharCode(...bytes)))
const entry: fc.Arbitrary<IpsetEntry> = fc
  .record({
    ip: address,
    protocol: maybe(fc.constantFrom(0, 6, 17, 255)),
    port: maybe(fc.constantFrom(0, 1, 65535)),
    ip2: address,
    prefix2: maybe(fc.constantFrom(1, 32, 128)),
  })
  .map(record => JSON.parse(JSON.stringify(record)))
const name = fc.constantFrom('a', 'KUBE-CLUSTER-IP', 'a\u0001')

it('is equal for equal entries of one set, and for no others', () => {
  fc.assert(
    fc.property(name, entry, name, entry, (oneName, one, otherName, other) => {
      const isSame = oneName === otherName && JSON.stringify(one) === JSON.stringify(other)
      expect(entryKey(oneName, one) === entryKey(otherName, other)).toBe(isSame)
    }),
    { numRuns: runs(2000) },
  )
})

it('does not depend on the order of fields', () => {
  const ip4 = '\x0a\0\0\x01'
  expect(entryKey('s', { port: 80, protocol: 6, ip: ip4 })).toBe(
    entryKey('s', { ip: ip4, protocol: 6, port: 80 }),
  )
})
