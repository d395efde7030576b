import { expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { formatIp, parseIp } from '../../../src/base/ip.ts'
import { watchLocalAddresses } from '../../../src/source/local-addresses.ts'
import { FakeClock } from '../../support/fake-clock.ts'

it('tells the addresses at once and when they change, and not otherwise', async () => {
  const clock = new FakeClock()
  let addresses = ['192.0.2.1', '127.0.0.1', '192.0.2.1']
  const told: string[][] = []
  const stop = watchLocalAddresses({
    clock,
    read: () => addresses,
    changed: ips => void told.push(ips.map(formatIp)),
  })
  expect(told).toEqual([['127.0.0.1', '192.0.2.1']])
  addresses = ['127.0.0.1', '192.0.2.1']
  await clock.advance(3_000)
  expect(told).toHaveLength(1)
  addresses = ['127.0.0.1', '2001:db8::1']
  await clock.advance(1_000)
  expect(told).toHaveLength(2)
  stop()
  expect(clock.pending).toBe(0)
})

it('reads those of this machine', () => {
  const told: string[] = []
  const stop = watchLocalAddresses({ clock: systemClock, changed: ips => void told.push(...ips) })
  stop()
  for (const ip of told) expect(parseIp(formatIp(ip))).toBe(ip)
})
