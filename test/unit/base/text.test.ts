import { expect, it } from 'vitest'
import { bytesText, count, oneLine } from '../../../src/base/text.ts'

it('escapes whatever could break a line or hide in it', () => {
  expect(oneLine('a\nb\u202ec\u0000\u2028é ü')).toBe('a\\u{a}b\\u{202e}c\\u{0}\\u{2028}é ü')
})

it('counts in words', () => {
  expect([count(0, 'Service'), count(1, 'Service'), count(2, 'Service')]).toEqual([
    '0 Services',
    '1 Service',
    '2 Services',
  ])
})

it('prints sizes', () => {
  expect([bytesText(0), bytesText(1023), bytesText(1024), bytesText(5_662_310), bytesText(2 ** 41)]).toEqual([
    '0 B',
    '1023 B',
    '1.0 KiB',
    '5.4 MiB',
    '2048.0 GiB',
  ])
})
