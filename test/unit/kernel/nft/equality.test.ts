import { describe, expect, it } from 'vitest'
import { octetsFromBytes } from '../../../../src/base/octets.ts'
import { ruleKey, sameDeclaration } from '../../../../src/kernel/nft/diff.ts'
import type { Expression, Rule } from '../../../../src/kernel/nft/state.ts'
import { DESTINATION, DESTINATION_PORT, typedSet } from '../../../../src/kernel/nft/userdata.ts'

const lookup = { kind: 'lookup', set: 's', sreg: 1, dreg: undefined, inverted: false } as const
const jump = { kind: 'verdict', verdict: { code: -3, chain: 'c' } } as const
const ipset = { kind: 'ipset', set: 's', dimensions: ['dst', 'dst'], inverted: false } as const
const rule: Rule = { expressions: [lookup, jump], comment: 'why' }

it('is the same for rules that say the same, however their objects were made', () => {
  const other: Rule = {
    comment: 'why',
    expressions: [
      { inverted: false, dreg: undefined, sreg: 1, set: 's', kind: 'lookup' },
      { verdict: { chain: 'c', code: -3 }, kind: 'verdict' },
    ],
  }
  expect(ruleKey(other)).toBe(ruleKey(rule))
})

it.each<[string, Rule]>([
  ['comment', { ...rule, comment: '' }],
  ['order', { ...rule, expressions: [jump, lookup] }],
  ['number of expressions', { ...rule, expressions: [lookup] }],
  ['field', { ...rule, expressions: [{ ...lookup, sreg: 2 }, jump] }],
  ['presence of a field', { ...rule, expressions: [{ ...lookup, dreg: 0 }, jump] }],
  ['target', { ...rule, expressions: [lookup, { ...jump, verdict: { code: -3, chain: 'd' } }] }],
  ['kind of target', { ...rule, expressions: [lookup, { ...jump, verdict: { code: -4, chain: 'c' } }] }],
  ['set', { ...rule, expressions: [{ ...ipset, set: 'KUBE-LOOP-BACK' }, jump] }],
  ['dimension', { ...rule, expressions: [{ ...ipset, dimensions: ['dst', 'src'] }, jump] }],
  ['number of dimensions', { ...rule, expressions: [{ ...ipset, dimensions: ['dst'] }, jump] }],
  ['sense', { ...rule, expressions: [{ ...ipset, inverted: true }, jump] }],
])('differs by %s', (_, other) => {
  expect(ruleKey(other)).not.toBe(ruleKey(rule))
  expect(ruleKey(other)).not.toBe(ruleKey({ ...rule, expressions: [ipset, jump] }))
})

describe('what nft loads from its own listing', () => {
  const affinity = (register: number, ...more: readonly Expression[]): string =>
    ruleKey({
      comment: '',
      expressions: [
        { kind: 'meta', key: 5, dreg: 0 },
        { kind: 'payload', base: 1, offset: 12, length: 4, dreg: 1 },
        { kind: 'meta', key: 5, dreg: register },
        { kind: 'dynset', op: 'update', set: 'm', keyReg: 0, dataReg: register, timeoutMs: 1000 },
        ...more,
      ],
    })

  it('has the data of a changed map in a register of the choice of its version', () => {
    expect(affinity(4)).toBe(affinity(2))
  })

  it('is compared in as many registers as there are, whatever length a foreign rule names', () => {
    const whole = { kind: 'payload', base: 1, offset: 0, length: 0xffff_ffff, dreg: 0 } as const
    expect(affinity(4, whole)).not.toBe(affinity(2, whole))
  })

  it.each<[string, Expression]>([
    ['the name of a device', { kind: 'meta', key: 6, dreg: 1 }],
    ['a comparison of 16 octets', { kind: 'cmp', op: 'eq', sreg: 1, data: 'x'.repeat(16) }],
    ['bits of 16 octets', { kind: 'bitwise', sreg: 1, dreg: 8, mask: 'x'.repeat(16), xor: '\0'.repeat(16) }],
  ])('is another rule where %s is in the register of these data', (_, other) => {
    expect(affinity(4, other)).not.toBe(affinity(2, other))
  })

  it.each([0, 1])('is another rule where these data overwrite the key in register %i', register => {
    expect(affinity(register)).not.toBe(affinity(4))
  })

  it('is another rule where something else uses these data', () => {
    const use: Expression = { kind: 'meta-set', key: 3, sreg: 4 }
    expect(affinity(4, use)).not.toBe(affinity(2, use))
  })

  it('is another rule where these data are not loaded for it', () => {
    const again = { kind: 'dynset', op: 'delete', set: 'm', keyReg: 0, dataReg: 2, timeoutMs: 0 } as const
    expect(affinity(4, again)).not.toBe(affinity(2, again))
  })

  const bare = { size: 8, key: [DESTINATION.ip, DESTINATION_PORT], bare: true } as const

  it('describes types without expressions as its version does', () => {
    const set = typedSet('s', bare)
    // As nft 1.1.3 stores `type ipv4_addr . inet_service`.
    const bytes = Buffer.from('000400000000031200040d000000010a00000004040000000100', 'hex')
    const loaded = { ...set, userdata: octetsFromBytes(bytes) }
    expect(sameDeclaration(set, loaded)).toBe(true)
    expect(sameDeclaration(typedSet('s', { ...bare, bare: false }), loaded)).toBe(false)
  })
})
