import { assert } from '../../src/base/errors.ts'
import { type Cidr, type Ip, parseCidr, parseIp } from '../../src/base/ip.ts'

export function ip(text: string): Ip {
  const value = parseIp(text)
  assert(value !== undefined, `not an address: ${text}`)
  return value
}

export function cidr(text: string): Cidr {
  const value = parseCidr(text)
  assert(value !== undefined, `not a prefix: ${text}`)
  return value
}
