import { describe, expect, it } from 'vitest'
import type { Ip } from '../../../../src/base/ip.ts'
import { type SurroundingsOptions, surroundingsOf } from '../../../../src/modes/ipvs/places.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../../../src/modes/ipvs/settings.ts'
import { table } from '../../../support/frontends.ts'
import { ip } from '../../../support/ipvs-objects.ts'

const NODE_IPS = [ip('192.168.0.2'), ip('2001:db8::2')]

function keyOf(localIps: readonly Ip[], more: Partial<SurroundingsOptions> = {}): string {
  const options = { ...DEFAULT_IPVS_OPTIONS, missingSchedulers: new Set<string>(), ...more }
  return surroundingsOf(table([], { localIps }), options).key
}

describe('what all Services are rendered by', () => {
  it('is the same when a pod brings link-local addresses along', () => {
    expect(keyOf([...NODE_IPS, ip('169.254.7.7'), ip('fe80::1')])).toBe(keyOf(NODE_IPS))
  })

  it.each([
    ['an address of the node', keyOf(NODE_IPS.slice(1))],
    ['a scheduler', keyOf(NODE_IPS, { scheduler: 'lc' })],
    ['a missing scheduler', keyOf(NODE_IPS, { missingSchedulers: new Set(['mh']) })],
    [
      'what others have',
      keyOf(NODE_IPS, { occupied: { servers: new Set(['TCP 192.0.2.1:80']), version: 1 } }),
    ],
  ])('is not when there is another: %s', (_, key) => {
    expect(key).not.toBe(keyOf(NODE_IPS))
  })
})
