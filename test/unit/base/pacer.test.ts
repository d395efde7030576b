import { describe, expect, it } from 'vitest'
import { backoffMs, Pacer } from '../../../src/base/clock.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'

/** A pacer whose runs are noted with their times, and last `runMs`. */
function rig({ runMs = 0, run = () => undefined as number | undefined } = {}) {
  const clock = new FakeClock()
  const begun: number[] = []
  const pacer: Pacer = new Pacer({
    clock,
    run: async () => {
      begun.push(clock.nowMs())
      const nextMs = run()
      if (runMs > 0) await new Promise<void>(resolve => clock.after(runMs, resolve))
      return nextMs
    },
  })
  return { clock, begun, pacer }
}

describe('a pacer', () => {
  it('runs at the earliest of the requested times, and once', async () => {
    const { clock, begun, pacer } = rig()
    for (const withinMs of [50, 20, 80]) pacer.wake(withinMs)
    await clock.advance(1_000)
    expect(begun).toEqual([20])
    expect(clock.pending).toBe(0)
  })

  it('runs again after the time that the run gave, earlier if woken', async () => {
    const { clock, begun, pacer } = rig({ run: () => 100 })
    pacer.wake()
    await clock.advance(250)
    expect(begun).toEqual([0, 100, 200])
    pacer.wake()
    await clock.advance(100)
    expect(begun).toEqual([0, 100, 200, 250, 350])
  })

  it('never runs twice at a time, and once more for all wakes of a run', async () => {
    const { clock, begun, pacer } = rig({ runMs: 30 })
    pacer.wake()
    await clock.advance(10)
    expect(pacer.isRunning).toBe(true)
    pacer.wake()
    pacer.wake()
    await clock.advance(100)
    expect(begun).toEqual([0, 30])
    expect(pacer.isRunning).toBe(false)
  })

  it('is idle once the run and the rest after it are over, or counts as idle after the limit', async () => {
    const { clock, pacer } = rig({ runMs: 30 })
    const idle: string[] = []
    const note = (limitMs: number) => {
      void pacer.idle(limitMs).then(() => idle.push(`${limitMs} at ${clock.nowMs()}`))
    }
    note(1_000)
    await clock.advance(0)
    pacer.wake()
    note(1_000)
    note(20)
    await clock.advance(25)
    pacer.rest(40)
    note(1_001)
    note(39)
    await clock.advance(100)
    expect(idle).toEqual(['1000 at 0', '20 at 20', '39 at 64', '1000 at 65', '1001 at 65'])
    expect(clock.pending).toBe(0)
  })

  it('begins no run when a wait for an idle moment was over before the rest', async () => {
    const { clock, begun, pacer } = rig({ run: () => 1_000 })
    pacer.wake()
    await clock.advance(0)
    pacer.rest(100)
    void pacer.idle(50)
    await clock.advance(999)
    expect(begun).toEqual([0])
    await clock.advance(1)
    expect(begun).toEqual([0, 1_000])
  })

  it('is idle before a run that waited for the end of a rest, which then takes what comes at once', async () => {
    const { clock, begun, pacer } = rig()
    const order: string[] = []
    pacer.rest(40)
    pacer.wake()
    void pacer.idle(1_000).then(() => {
      order.push(`idle at ${clock.nowMs()}, ${begun.length} runs`)
      pacer.wake()
    })
    await clock.advance(100)
    expect(order).toEqual(['idle at 40, 0 runs'])
    expect(begun).toEqual([40])
    expect(clock.pending).toBe(0)
  })

  it('ends the waits of a pacer that stops', async () => {
    const { clock, pacer } = rig()
    pacer.rest(100)
    const waits = pacer.idle(1_000)
    await pacer.stop()
    await waits
    expect(clock.pending).toBe(0)
  })

  it('does not nest a run in one that wakes it', async () => {
    let left = 3
    const { clock, begun, pacer } = rig({
      run: () => {
        if (--left > 0) pacer.wake()
        return undefined
      },
    })
    pacer.wake()
    expect(begun).toHaveLength(1)
    await clock.advance(0)
    expect(begun).toHaveLength(3)
  })

  it('runs synchronous work as well', async () => {
    const clock = new FakeClock()
    const times: number[] = []
    const pacer = new Pacer({ clock, run: () => (times.push(clock.nowMs()) < 3 ? 5 : undefined) })
    pacer.wake(1)
    await clock.advance(100)
    expect(times).toEqual([1, 6, 11])
  })

  it('lets a wake wait for the end of a rest, the longest one', async () => {
    const { clock, begun, pacer } = rig()
    pacer.rest(40)
    pacer.rest(10)
    expect(pacer.isBusy).toBe(true)
    pacer.wake()
    await clock.advance(39)
    expect(begun).toEqual([])
    await clock.advance(1)
    expect(begun).toEqual([40])
    expect(pacer.isBusy).toBe(false)
  })

  it('postpones a request by a rest that begins before the next wake', async () => {
    const { clock, begun, pacer } = rig()
    pacer.rest(10)
    pacer.wake()
    await clock.advance(8)
    pacer.rest(10)
    pacer.wake()
    await clock.advance(100)
    expect(begun).toEqual([18])
  })

  it('keeps a rest that begins during a run, whatever the run gives', async () => {
    const { clock, begun, pacer } = rig({
      run: () => {
        pacer.rest(20)
        return 0
      },
    })
    pacer.wake()
    await clock.advance(45)
    expect(begun).toEqual([0, 20, 40])
  })

  it('resolves rested at the end of the rest', async () => {
    const { clock, pacer } = rig()
    await pacer.rested()
    pacer.rest(10)
    let isOver = false
    void pacer.rested().then(() => {
      isOver = true
    })
    await clock.advance(9)
    expect(isOver).toBe(false)
    await clock.advance(1)
    expect(isOver).toBe(true)
  })

  it('retries at growing distances, up to the limit, and at the first one again after a success', async () => {
    const backoff = { minMs: 100, maxMs: 400, random: () => 1 }
    const delays: number[] = []
    const { clock, begun, pacer } = rig({
      run: () => {
        if (begun.length === 5) pacer.succeeded()
        delays.push(pacer.failed(backoff))
        return undefined
      },
    })
    pacer.wake()
    await clock.advance(1_399)
    expect(delays).toEqual([100, 200, 400, 400, 100, 200])
    expect(begun).toEqual([0, 100, 300, 700, 1_100, 1_200])
  })

  it('forgets requests when cancelled, and takes new ones', async () => {
    const { clock, begun, pacer } = rig()
    pacer.wake(10)
    pacer.cancel()
    await clock.advance(50)
    expect(begun).toEqual([])
    pacer.wake(10)
    await clock.advance(50)
    expect(begun).toEqual([60])
  })

  it('waits for the run in progress when stopped, and starts no other', async () => {
    const { clock, begun, pacer } = rig({ runMs: 30, run: () => 0 })
    pacer.wake()
    let isOver = false
    void pacer.stop().then(() => {
      isOver = true
    })
    expect(pacer.isStopped).toBe(true)
    pacer.wake()
    await clock.advance(29)
    expect(isOver).toBe(false)
    await clock.advance(1)
    expect(isOver).toBe(true)
    pacer.wake()
    pacer.wake(5)
    await clock.advance(100)
    expect(begun).toEqual([0])
    expect(clock.pending).toBe(0)
  })

  it('stops at once when nothing runs, with a request open', async () => {
    const { clock, begun, pacer } = rig()
    pacer.wake(5)
    await pacer.stop()
    await settle()
    expect(clock.pending).toBe(0)
    await clock.advance(10)
    expect(begun).toEqual([])
  })

  it('never runs before the requested time again and again while time stands still', async () => {
    const clock = new FakeClock()
    let runs = 0
    const dueMs = 20.000_000_3
    const pacer: Pacer = new Pacer({
      clock,
      run: () => {
        if (++runs > 100) return undefined
        const leftMs = dueMs - clock.nowMs()
        return leftMs > 0 ? leftMs : undefined
      },
    })
    pacer.wake(dueMs)
    await clock.advance(21)
    expect(runs).toBeLessThan(4)
  })

  it('asks for exactly the time that it was given, at whatever time it is', () => {
    const delays: number[] = []
    const nows = [0.1, 1_234.567_891, 98_765.432_1]
    for (const nowMs of nows) {
      const clock = { nowMs: () => nowMs, cpuMs: () => 0, breathe: () => Promise.resolve() }
      const after = (delayMs: number) => {
        delays.push(delayMs)
        return () => undefined
      }
      new Pacer({ clock: { ...clock, after }, run: () => undefined }).wake(60_000)
    }
    expect(delays).toEqual(nows.map(() => 60_000))
  })
})

it('scatters retries over the upper half of each step', () => {
  const options = { minMs: 100, maxMs: 1_000 }
  expect(backoffMs(3, { ...options, random: () => 0 })).toBe(200)
  expect(backoffMs(3, { ...options, random: () => 0.5 })).toBe(300)
})
