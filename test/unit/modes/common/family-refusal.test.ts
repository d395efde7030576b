import { expect, it } from 'vitest'
import { refusalTo } from '../../../../src/modes/common/transaction-plan.ts'

it.each([
  ['EOPNOTSUPP', 'IPv6'],
  ['ENOENT', 'IPv6'],
  // A table of another program, and a chain that a rule of another program leads to.
  ['EPERM', undefined],
  ['EINVAL', undefined],
])('%s for a shared object blames the family %s', (code, family) => {
  expect(refusalTo([], { code, error: new Error(code) }, 'ip6').family).toBe(family)
})
