import { expect, it } from 'vitest'
import { errorWordsOf, type OwnedElement } from '../../../../src/kernel/nft/transaction.ts'
import { NOTHING, plan, WHOLE } from '../../../support/whole-ruleset.ts'

it('names whom the elements serve, as long as they are few', () => {
  const operation = plan(NOTHING, WHOLE).find(({ verb }) => verb === 'add-elements')
  if (operation?.verb !== 'add-elements') throw new Error('no elements')
  const owned = (group: string): OwnedElement => ({
    element: { set: 's', key: group, data: undefined, comment: '' },
    group,
  })
  const text = (...groups: readonly string[]) => errorWordsOf(operation, groups.map(owned)).object
  expect(text('ns1/a', 'ns1/a')).toMatch(/ \(ns1\/a\)$/)
  expect(text('ns1/a', '', 'ns1/b')).toMatch(/ \(ns1\/a, ns1\/b\)$/)
  expect(text('a', 'b', 'c', 'd', 'd')).toMatch(/ \(one of 5 elements of 4 groups\)$/)
  expect(text('')).not.toContain('(')
})
