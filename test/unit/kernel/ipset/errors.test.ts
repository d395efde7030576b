import { expect, it } from 'vitest'
import { COMMON, ipsetError, OF_BITMAPS, OF_HASHES } from '../../../../src/kernel/ipset/state.ts'

const NUMBERS = [...COMMON, ...OF_HASHES, ...OF_BITMAPS].map(([errno, { code }]) => [code, errno] as const)

it('has a name and words for every error of ipset', () => {
  expect(NUMBERS.length).toBeGreaterThan(20)
  for (const [name, errno] of NUMBERS) {
    const type = name.startsWith('IPSET_ERR_BITMAP') ? 'bitmap:port' : 'hash:ip'
    const error = ipsetError({ operation: 'add', object: 'S', errno }, type)
    expect(error.code).toBe(name)
    expect(error.message).toMatch(new RegExp(`^add S: ${name} \\([A-Z][^()]+\\)$`))
  }
})

it('leaves the other errors as they are', () => {
  const error = ipsetError({ operation: 'add', object: 'S', errno: 12 }, 'hash:ip')
  expect(error.message).toBe('add S: ENOMEM (Cannot allocate memory)')
  expect(ipsetError({ operation: 'add', object: 'S', errno: 4999 }).code).toBe('errno 4999')
})
