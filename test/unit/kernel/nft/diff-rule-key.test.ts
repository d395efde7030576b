import { expect, it } from 'vitest'
import { ruleKey } from '../../../../src/kernel/nft/diff.ts'
import type { Rule } from '../../../../src/kernel/nft/expression.ts'

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
  ['target', { ...rule, expressions: [lookup, { kind: 'verdict', verdict: { code: -3, chain: 'd' } }] }],
  [
    'kind of target',
    { ...rule, expressions: [lookup, { kind: 'verdict', verdict: { code: -4, chain: 'c' } }] },
  ],
  ['set', { ...rule, expressions: [{ ...ipset, set: 'KUBE-LOOP-BACK' }, jump] }],
  ['dimension', { ...rule, expressions: [{ ...ipset, dimensions: ['dst', 'src'] }, jump] }],
  ['number of dimensions', { ...rule, expressions: [{ ...ipset, dimensions: ['dst'] }, jump] }],
  ['sense', { ...rule, expressions: [{ ...ipset, inverted: true }, jump] }],
])('differs by %s', (_, other) => {
  expect(ruleKey(other)).not.toBe(ruleKey(rule))
  expect(ruleKey(other)).not.toBe(ruleKey({ ...rule, expressions: [ipset, jump] }))
})
