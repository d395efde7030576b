import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  COMMON,
  createText,
  entryKey,
  entryText,
  type IpsetEntry,
  type IpsetType,
  ipsetError,
  OF_BITMAPS,
  OF_HASHES,
  printSets,
} from '../../../../src/kernel/ipset/state.ts'
import { ip } from '../../../support/addresses.ts'
import { anyFilledSet, type FilledSet, setOf } from '../../../support/fake-ipset/arbitraries.ts'
import { readSaved } from '../../../support/fake-ipset/saved.ts'
import { runs } from '../../../support/runs.ts'

describe('the key of an entry', () => {
  /** Few values, so that equal ones are frequent. */
  const octet = fc.constantFrom(0, 1, 4, 16, 44, 58, 255)
  const octets = fc.oneof(
    fc.array(octet, { minLength: 4, maxLength: 4 }),
    fc.array(octet, { minLength: 16, maxLength: 16 }),
  )
  const maybe = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined })
  const address = maybe(octets.map(bytes => String.fromCharCode(...bytes)))
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
})

describe('the text of `ipset save`', () => {
  it('says how a set is made, with what the kernel tells of it', () => {
    const set = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')
    const plain = 'create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536'
    expect(createText({ set })).toBe(plain)
    expect(createText({ set, bucketSize: 12, initialValue: 0x0a1b2c })).toBe(
      `${plain} bucketsize 12 initval 0x000a1b2c`,
    )
    expect(createText({ set: setOf('S', 'hash:ip', 'IPv6') })).toBe(
      'create S hash:ip family inet6 hashsize 1024 maxelem 65536',
    )
    expect(createText({ set: setOf('KUBE-NODE-PORT-TCP', 'bitmap:port') })).toBe(
      'create KUBE-NODE-PORT-TCP bitmap:port range 0-65535',
    )
  })

  const tcp = { protocol: 6, port: 80 }
  const cases: readonly [text: string, type: IpsetType, entry: IpsetEntry][] = [
    ['10.96.0.1,tcp:80', 'hash:ip,port', { ip: ip('10.96.0.1'), ...tcp }],
    ['fd00::1,sctp:80', 'hash:ip,port', { ip: ip('fd00::1'), protocol: 132, port: 80 }],
    ['10.0.0.1,tcp:80,10.0.0.1', 'hash:ip,port,ip', { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.1') }],
    [
      '10.0.0.1,tcp:80,10.0.0.0/8',
      'hash:ip,port,net',
      { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.0'), prefix2: 8 },
    ],
    [
      '10.0.0.1,tcp:80,10.0.0.2',
      'hash:ip,port,net',
      { ip: ip('10.0.0.1'), ...tcp, ip2: ip('10.0.0.2'), prefix2: 32 },
    ],
    ['::1.2.3.4', 'hash:ip', { ip: ip('::1.2.3.4') }],
    ['::ffff:1.2.3.4', 'hash:ip', { ip: ip('::ffff:1.2.3.4') }],
    ['30080', 'bitmap:port', { port: 30080 }],
  ]
  it.each(cases)('says %s', (text, type, entry) => {
    expect(entryText({ type }, entry)).toBe(text)
  })

  it('says everything there is to say', () => {
    const listed = {
      revision: 7,
      elements: 0,
      references: 0,
      memoryBytes: 0,
      bucketSize: 12,
      initialValue: 9,
    }
    fc.assert(
      fc.property(anyFilledSet('A'), anyFilledSet('B'), (a, b) => {
        const text = [...printSets([a, b].map(each => ({ ...listed, ...each })))].join('\n')
        const told = ({ set }: FilledSet) =>
          set.type === 'bitmap:port' ? {} : { bucketSize: 12, initialValue: 9 }
        expect(readSaved(text)).toEqual([a, b].map(each => ({ ...each, ...told(each) })))
      }),
    )
  })
})

describe('an error of ipset', () => {
  const numbers = [...COMMON, ...OF_HASHES, ...OF_BITMAPS].map(([errno, { code }]) => [code, errno] as const)
  const of = (errno: number, type: IpsetType = 'hash:ip') =>
    ipsetError({ operation: 'add', object: 'S', errno }, type)

  it('has a name and words', () => {
    expect(numbers.length).toBeGreaterThan(20)
    for (const [name, errno] of numbers) {
      const error = of(errno, name.startsWith('IPSET_ERR_BITMAP') ? 'bitmap:port' : 'hash:ip')
      expect(error.code).toBe(name)
      expect(error.message).toMatch(new RegExp(`^add S: ${name} \\([A-Z][^()]+\\)$`))
    }
  })

  it('is that of the system where ipset has none', () => {
    expect(of(12).message).toBe('add S: ENOMEM (Cannot allocate memory)')
    expect(of(4999).code).toBe('errno 4999')
  })
})
