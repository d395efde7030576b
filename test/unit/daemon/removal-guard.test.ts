import { expect, test } from 'vitest'
import { RemovalGuard } from '../../../src/daemon/removal-guard.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const KERNEL = { frontends: 752, endpoints: 752 }
const NOTHING = { frontends: 0, endpoints: 0 }

test('removes nothing while the second read has no answer, asks again, and logs it once', async () => {
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const answers: (() => void)[] = []
  const confirm = () => new Promise<void>(resolve => answers.push(resolve))
  const guard = new RemovalGuard({ clock, log, confirm })
  for (let pass = 0; pass < 3; pass++) {
    const doubts = guard.doubts(KERNEL, NOTHING).catch((error: Error) => error.message)
    await clock.advance(60_000)
    expect(await doubts).toMatch(/kprobe removes nothing until then$/)
  }
  expect(lines).toHaveLength(1)
  const last = guard.doubts(KERNEL, NOTHING)
  answers.at(-1)?.()
  expect(await last).toBe(true)
  expect(await guard.doubts(KERNEL, NOTHING)).toBe(false)
})

test.each(['while it waits', 'before'])('ends the wait for the second read when it stops: %s', async when => {
  const confirm = () => new Promise<void>(() => undefined)
  const guard = new RemovalGuard({ clock: new FakeClock(), log: recordedLog().log, confirm })
  if (when === 'before') guard.stop()
  const doubts = guard.doubts(KERNEL, NOTHING)
  guard.stop()
  // The pass commits nothing.
  expect(await doubts).toBe(true)
})
