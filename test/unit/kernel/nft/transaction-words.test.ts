import { expect, it } from 'vitest'
import { errorWordsOf, type Operation, type OwnedElement } from '../../../../src/kernel/nft/transaction.ts'
import { NOTHING, plan, WHOLE } from '../../../support/whole-ruleset.ts'

const target = { family: 'ip6', table: 'kube-proxy' } as const

function textOf(operation: Operation, elements: readonly OwnedElement[] = []): string {
  const words = errorWordsOf(operation, elements)
  return `${words.operation} ${words.object}`
}

it('names the verb and the object in nft’s words', () => {
  const texts = plan(NOTHING, WHOLE).map(operation => textOf(operation))
  expect(new Set(texts)).toContain('add set ip kube-proxy endpoints')
  expect(texts[0]).toBe('add table ip kube-proxy')
  expect(textOf({ ...target, verb: 'delete-table' })).toBe('delete table ip6 kube-proxy')
  expect(textOf({ ...target, verb: 'flush-chain', chain: 'c' })).toBe('flush chain ip6 kube-proxy c')
  const deletion = { ...target, verb: 'delete-rule', chain: 'c', handle: 7n } as const
  expect(textOf(deletion)).toBe('delete rule ip6 kube-proxy c handle 7')
  expect(textOf({ ...target, verb: 'delete-set', set: 's' })).toBe('delete set ip6 kube-proxy s')
})

it('names whom the elements serve, as long as they are few', () => {
  const operation = plan(NOTHING, WHOLE).find(({ verb }) => verb === 'add-elements')
  if (operation?.verb !== 'add-elements') throw new Error('no elements')
  const owned = (group: string): OwnedElement => ({
    element: { set: 's', key: group, data: undefined, comment: '' },
    group,
  })
  const text = (...groups: readonly string[]) => textOf(operation, groups.map(owned))
  expect(text('ns1/a', 'ns1/a')).toMatch(/ \(ns1\/a\)$/)
  expect(text('ns1/a', '', 'ns1/b')).toMatch(/ \(ns1\/a, ns1\/b\)$/)
  expect(text('a', 'b', 'c', 'd', 'd')).toMatch(/ \(one of 5 elements of 4 groups\)$/)
  expect(text('')).not.toContain('(')
})
