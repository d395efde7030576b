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

it.each([1_000, 15_000, 30_000, 45_000, 59_990, 60_010])(
  'gives totals that are 50 s to two minutes old, at any time between scrapes of %i ms',
  async everyMs => {
    const { clock, packets } = rig()
    await packets.read()
    for (let scrapes = 0; scrapes * everyMs < 600_000; scrapes++) {
      for (const ms of [0, everyMs / 2, everyMs / 2]) {
        await clock.advance(ms)
        const { ageMs = 0 } = packets.before ?? {}
        const isEarly = clock.nowMs() < 50_000 + everyMs
        if (!isEarly) expect(ageMs).toBeGreaterThanOrEqual(50_000)
        expect(ageMs).toBeLessThan(120_100)
      }
      await packets.read()
    }
    expect(packets.before).toMatchObject({ rejected: 0, dropped: 0 })
  },
)

it('gives none before 50 s are over, after two without a reading, and from a reading that failed', async () => {
  const { clock, packets, state } = rig()
  await packets.read()
  await clock.advance(49_000)
  expect(packets.before).toBeUndefined()
  await clock.advance(65_000)
  expect(packets.before?.ageMs).toBe(114_000)
  await clock.advance(20_000)
  expect(packets.before).toBeUndefined()
  state.isBroken = true
  expect(await packets.read()).toEqual([])
  await clock.advance(60_000)
  expect(packets.before).toBeUndefined()
})
