import { expect, it } from 'vitest'
import { goYaml } from '../../../src/config/written-config.ts'

// Each as Go's library prints it: what would be read as something else has double quotes, what has a place in YAML's
// grammar has single ones.
it.each([
  ['', '""'],
  ['abc', 'abc'],
  ['0.0.0.0:10256', '0.0.0.0:10256'],
  ['[::]:10256', "'[::]:10256'"],
  ['::', "'::'"],
  ['::1', '::1'],
  ['0', '"0"'],
  ['1e3', '"1e3"'],
  ['10:30', '"10:30"'],
  ['yes', '"yes"'],
  ['null', '"null"'],
  ['2001-01-01', '"2001-01-01"'],
  ['a: b', "'a: b'"],
  ['#x', "'#x'"],
  ["it's", "it's"],
  ["'x", "'''x'"],
  ['a\tb', '"a\\tb"'],
])('prints the text %j', (text, printed) => {
  expect(goYaml({ a: text })).toBe(`a: ${printed}\n`)
})

it('sorts names, and does not indent lists', () => {
  expect(goYaml({ b: [{ z: 1, x: null }, 'text'], a: { c: [], d: {} }, e: false })).toBe(
    'a:\n  c: []\n  d: {}\nb:\n- x: null\n  z: 1\n- text\ne: false\n',
  )
})
