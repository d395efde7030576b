import { expect, it } from 'vitest'
import { scalarValue } from '../../../src/config/field-values.ts'

it.each(['512', 512, '1500k', '1.5Ki', '1Mi', '1e3', '100m', '0', '.5'])('takes the size %j', size => {
  expect(scalarValue('quantity', size)).toBe(String(size))
})

it.each(['', 'k', '1kB', '1 Ki', '--1', '1e999', [5], true])('refuses the size %j', size => {
  expect(scalarValue('quantity', size)).toBeUndefined()
})
