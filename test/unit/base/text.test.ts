import { expect, it } from 'vitest'
import { bytesText, count, inPieces, oneLine } from '../../../src/base/text.ts'

it('escapes whatever could break a line or hide in it', () => {
  expect(oneLine('a\nb\u202ec\u0000\u2028é ü')).toBe('a\\u{a}b\\u{202e}c\\u{0}\\u{2028}é ü')
})

it('counts in words', () => {
  const counts = [0, 1, 2].map(number => count(number, 'Service'))
  expect(counts).toEqual(['0 Services', '1 Service', '2 Services'])
})

it('prints sizes', () => {
  const sizes = [0, 1023, 1024, 5_662_310, 2 ** 41].map(bytes => bytesText(bytes))
  expect(sizes).toEqual(['0 B', '1023 B', '1.0 KiB', '5.4 MiB', '2048.0 GiB'])
})

it('puts parts together to pieces of some length, and asks for no part too early', () => {
  let asked = 0
  function* parts(): Iterable<string> {
    for (const part of ['ab', '', 'c', 'defgh', 'i']) {
      asked++
      yield part
    }
  }
  const pieces = inPieces(parts(), 3)
  expect(asked).toBe(0)
  expect(pieces.next().value).toBe('abc')
  expect(asked).toBe(3)
  expect([...pieces]).toEqual(['defgh', 'i'])
  expect([...inPieces(['abc', ''], 3)]).toEqual(['abc'])
})
