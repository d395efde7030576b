import { expect, test } from 'vitest'
import { parseIp, whyNotIp } from '../../../src/base/ip.ts'

test('an address with an octet above 255 is rejected with a hint', () => {
  expect(parseIp('10.0.0.300')).toBeUndefined()
  expect(whyNotIp('10.0.0.300')).toBe('not an IP address; write it like 192.0.2.1 or 2001:db8::1')
})
