import { expect, it } from 'vitest'
import { RefusedPackets } from '../../../src/daemon/refused-packets.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { recordedLog } from '../../support/recorded-log.ts'

function rig() {
  const clock = new FakeClock()
  const kernel = new FakeKernel()
  const state = { isBroken: false }
  const openTransport = () => {
    if (state.isBroken) throw new Error('EMFILE')
    return kernel.open()
  }
  const packets = new RefusedPackets(
    { backend: 'netlink', serviceProxyName: undefined },
    { clock, log: recordedLog().log, openTransport },
  )
  return { clock, state, packets }
}

it('gives totals that are one to two minutes old', async () => {
  const { clock, packets } = rig()
  for (let seconds = 0; seconds < 300; seconds += 15) {
    await packets.read()
    await clock.advance(15_000)
    const { ageMs = 60_000 } = packets.before ?? {}
    expect(ageMs).toBeGreaterThanOrEqual(60_000)
    expect(ageMs).toBeLessThan(120_000)
  }
  expect(packets.before).toMatchObject({ rejected: 0, dropped: 0 })
})

it('gives none before a minute is over, after two without a reading, and from a reading that failed', async () => {
  const { clock, packets, state } = rig()
  await packets.read()
  await clock.advance(54_000)
  expect(packets.before).toBeUndefined()
  await clock.advance(60_000)
  expect(packets.before?.ageMs).toBe(114_000)
  await clock.advance(20_000)
  expect(packets.before).toBeUndefined()
  state.isBroken = true
  expect(await packets.read()).toEqual([])
  await clock.advance(60_000)
  expect(packets.before).toBeUndefined()
})
