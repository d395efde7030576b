import { describe, expect, test } from 'vitest'
import { parseIp } from '../../../../src/base/ip.ts'
import { destinationKey, serverKey } from '../../../../src/kernel/ipvs/state.ts'

const V4 = parseIp('10.96.0.1') ?? ''
const V6 = parseIp('2001:db8::1') ?? ''

describe('keys', () => {
  test('of virtual servers tell protocol, address and port', () => {
    expect(serverKey({ protocol: 'TCP', ip: V4, port: 443 })).toBe('TCP 10.96.0.1:443')
    expect(serverKey({ protocol: 'UDP', ip: V6, port: 53 })).toBe('UDP [2001:db8::1]:53')
  })

  test('of real servers tell address and port', () => {
    expect(destinationKey({ ip: V4, port: 80 })).toBe('10.96.0.1:80')
    expect(destinationKey({ ip: V6, port: 0 })).toBe('[2001:db8::1]:0')
  })
})
