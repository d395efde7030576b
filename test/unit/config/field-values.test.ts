import { expect, it } from 'vitest'
import { parseQuantity } from '../../../src/config/field-values.ts'

it.each([
  ['512', 512n, '512'],
  ['2000', 2_000n, '2k'],
  ['1500k', 1_500_000n, '1500k'],
  ['1Ki', 1_024n, '1Ki'],
  ['1.5Ki', 1_536n, '1536'],
  ['1048576', 1_048_576n, '1048576'],
  ['1Mi', 1_048_576n, '1Mi'],
  ['1e3', 1_000n, '1e3'],
  ['100m', 1n, '100m'],
  ['0', 0n, '0'],
])('reads %s as kube-proxy does', (text, bytes, printed) => {
  expect(parseQuantity(text)).toEqual({ bytes, text: printed })
})

it.each(['', 'k', '1kB', '1 Ki', '--1', '1e999', '9'.repeat(50)])('refuses %j', text => {
  expect(parseQuantity(text)).toBeUndefined()
})
