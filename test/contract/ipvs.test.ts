import { describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { IpvsClient } from '../../src/kernel/ipvs/client.ts'
import { FakeIpvs } from '../support/fake-ipvs/kernel.ts'
import { type IpvsTarget, ipvsSuite } from './ipvs-suite.ts'

const fake = (): IpvsTarget => {
  const kernel = new FakeIpvs()
  return { open: limits => kernel.open(limits) }
}

describe('IPVS in memory', () => ipvsSuite(fake))

it('finds that the kernel has no virtual servers with IPv6 addresses (ip_vs_genl_parse_service)', async () => {
  const client = new IpvsClient({ transport: new FakeIpvs({ hasIpv6: false }).open(), clock: systemClock })
  expect(client.hasIpv6()).toBe(false)
  await client.close()
})
