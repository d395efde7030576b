import { expect, it } from 'vitest'
import {
  agoText,
  hashOf,
  numberText,
  placeOf,
  rateText,
  serviceHash,
  shortText,
} from '../../../src/ui/format.ts'

it('numbers are short, and whole where they are large', () => {
  expect([0, 4.94, 12_345.6, undefined].map(rateText)).toEqual(['0', '4.9', '12,346', ''])
  expect([1_234_567, undefined].map(numberText)).toEqual(['1,234,567', ''])
})

it('times are relative to the daemon, also after its clock jumped', () => {
  const now = '2026-11-29T12:00:00Z'
  const before = (seconds: number) => new Date(Date.parse(now) - seconds * 1000).toISOString()
  expect([0, 1, 45, 300, 10_000, 400_000].map(seconds => agoText(before(seconds), now))).toEqual([
    'just now',
    'just now',
    '45 s ago',
    '5 min ago',
    '3 h ago',
    '5 d ago',
  ])
  expect(agoText(before(-3_600), now)).toBe('in 60 min')
  expect(agoText('', now)).toBe('')
  expect(agoText(now, 'no time')).toBe('')
})

it('a long name keeps both ends, and no half letters', () => {
  expect(shortText('payments', 8)).toBe('payments')
  expect(shortText('staging-payments', 9)).toBe('stag…ents')
  expect(shortText('😀😀😀😀😀😀', 3)).toBe('😀…😀')
  expect(shortText('abcdef', 0)).toBe('a…f')
})

it('a place is read from the fragment that names it', () => {
  for (const [view, parts, query] of [
    ['node', [], {}],
    ['services', ['shop', 'cart'], {}],
    ['services', [], { filter: 'a b&c=/?#', problems: '1' }],
    ['map', ['имя/x'], {}],
  ] as const)
    expect(placeOf(hashOf(view, parts, query))).toEqual({ view, parts, query })
  expect(hashOf('services', [], { filter: '' })).toBe('#services')
  expect(serviceHash('shop/cart')).toBe('#services/shop/cart')
  expect(placeOf('')).toEqual({ view: '', parts: [], query: {} })
  expect(placeOf('#services/%')).toMatchObject({ parts: ['%'] })
})
