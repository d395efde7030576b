import { describe, expect, it } from 'vitest'
import { zeros } from '../../../../src/base/octets.ts'
import { type IpsetMatch, ipsetMatchOf, matchAttributesOf } from '../../../../src/kernel/nft/ipset-match.ts'
import { NetlinkError } from '../../../../src/netlink/errors.ts'

const MATCH: IpsetMatch = { kind: 'ipset', set: 'KUBE-CLUSTER-IP', dimensions: ['dst'], inverted: false }
const indexOf = (name: string) => (name === 'KUBE-CLUSTER-IP' ? 0x1234 : undefined)
const nameOf = (index: number) => (index === 0x1234 ? 'KUBE-CLUSTER-IP' : undefined)
const REST = zeros(44)

describe('a match of an ipset', () => {
  it.each<[Pick<IpsetMatch, 'dimensions' | 'inverted'>, string]>([
    [{ dimensions: ['dst', 'dst'], inverted: false }, '\x34\x12\x02\x00'],
    [{ dimensions: ['dst', 'dst', 'src'], inverted: false }, '\x34\x12\x03\x08'],
    [{ dimensions: ['src'], inverted: true }, '\x34\x12\x01\x03'],
    [{ dimensions: ['src', 'src', 'src', 'src', 'src', 'src'], inverted: true }, '\x34\x12\x06\x7f'],
  ])('%j is written as struct xt_set_info_match_v4, and read back', (shape, head) => {
    const match = { ...MATCH, ...shape }
    const attributes = matchAttributesOf(match, indexOf)
    expect(attributes).toEqual({ name: 'set', revision: 4, info: head + REST })
    expect(ipsetMatchOf(attributes, nameOf)).toEqual(match)
  })

  it('needs a set that has a number, and one to six dimensions', () => {
    const missing = { ...MATCH, set: 'KUBE-NODE-PORT-TCP' }
    expect(() => matchAttributesOf(missing, indexOf)).toThrow(/ipset KUBE-NODE-PORT-TCP: ENOENT/)
    expect(() => matchAttributesOf(MATCH, undefined)).toThrow(NetlinkError)
    expect(() => matchAttributesOf({ ...MATCH, dimensions: [] }, indexOf)).toThrow('0 dimensions')
    const seven = Array<'dst'>(7).fill('dst')
    expect(() => matchAttributesOf({ ...MATCH, dimensions: seven }, indexOf)).toThrow('7 dimensions')
  })

  it('is called by its number when its set has no name', () => {
    const attributes = { name: 'set', revision: 4, info: `\x07\x00\x01\x00${REST}` }
    expect(ipsetMatchOf(attributes, nameOf)).toEqual({ ...MATCH, set: '[ipset 7]' })
    expect(ipsetMatchOf(attributes, undefined)).toEqual({ ...MATCH, set: '[ipset 7]' })
  })

  it.each([
    ['another match', { name: 'mark' }],
    ['another revision', { revision: 3 }],
    ['no revision', { revision: undefined }],
    ['a short structure', { info: `\x34\x12\x01\x00${zeros(40)}` }],
    ['no dimension', { info: `\x34\x12\x00\x00${REST}` }],
    ['too many dimensions', { info: `\x34\x12\x07\x00${REST}` }],
    ['the side of a dimension that it has not', { info: `\x34\x12\x01\x04${REST}` }],
    ['a condition on its counters', { info: `\x34\x12\x01\x00${zeros(20)}\x01${zeros(23)}` }],
    ['flags of the second kind', { info: `\x34\x12\x01\x00${zeros(40)}\x80${zeros(3)}` }],
  ])('is not read from %s', (_, other) => {
    const attributes = { name: 'set', revision: 4, info: `\x34\x12\x01\x00${REST}` }
    expect(ipsetMatchOf(attributes, nameOf)).toEqual(MATCH)
    expect(ipsetMatchOf({ ...attributes, ...other }, nameOf)).toBeUndefined()
  })
})
