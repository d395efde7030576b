import { describe, expect, it } from 'vitest'
import { settle } from '../../support/fake-clock.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { bench } from '../../support/reconciler-bench.ts'

describe('pacing', () => {
  it('commits the first change at once and the next ones together after the interval', async () => {
    const { clock, plane, offer } = bench()
    offer({ a: '1' })
    await settle()
    expect(plane.commits).toHaveLength(1)
    offer({ a: '1', b: '1' })
    offer({ a: '1', b: '2' })
    await clock.advance(19)
    expect(plane.commits).toHaveLength(1)
    await clock.advance(1)
    expect(plane.commits).toHaveLength(2)
    expect(plane.kernel.get('b')).toBe('2')
  })

  it('rests as long as the last pass cost, divided by the share, and commits at once again after a calm', async () => {
    const { clock, plane, offer } = bench()
    plane.afterCommit = () => {
      clock.spentMs += 2
    }
    offer({ a: '1' })
    await clock.advance(1)
    offer({ a: '2' })
    await clock.advance(78)
    expect(plane.kernel.get('a')).toBe('1')
    await clock.advance(1)
    expect(plane.kernel.get('a')).toBe('2')
    await clock.advance(131)
    offer({ a: 'alone' })
    await settle()
    expect(plane.kernel.get('a')).toBe('alone')
  })

  it('repairs damage without the rest after a pass that cost much, but keeps the interval', async () => {
    const { clock, plane, offer } = bench()
    offer({ a: '1' })
    await clock.advance(240)
    const times: number[] = []
    plane.afterCommit = () => {
      times.push(clock.nowMs())
      clock.spentMs += 100
    }
    offer({ a: '2' })
    await settle()
    plane.tamper(new Map())
    await clock.advance(30)
    expect(times).toEqual([240, 260])
    expect(plane.kernel.get('a')).toBe('2')
  })

  it('counts what reading the changes cost, but nothing from before a calm', async () => {
    const { clock, plane, offer } = bench()
    const times: number[] = []
    plane.afterCommit = () => times.push(clock.nowMs())
    const change = () => {
      clock.spentMs += 1
      offer({ a: String(clock.spentMs) })
    }
    change()
    await clock.advance(1)
    for (let count = 0; count < 3; count++) change()
    await clock.advance(50)
    change()
    await clock.advance(300)
    expect(times).toEqual([0, 20, 140])
    clock.spentMs += 100
    change()
    await clock.advance(1)
    change()
    await clock.advance(20)
    expect(times.slice(3)).toEqual([351, 371])
  })

  it('lets changes wait while they keep coming, and counts those that come right behind the rest', async () => {
    const { clock, plane, offer, reconciler } = bench()
    const times: number[] = []
    plane.afterCommit = () => {
      times.push(clock.nowMs())
      clock.spentMs += 1
    }
    const paced = async () => {
      let isPaced = false
      const wait = reconciler.paced() ?? Promise.resolve()
      void wait.then(() => {
        isPaced = true
      })
      for (await settle(); !isPaced; ) await clock.advance(1)
    }
    const change = async () => {
      offer({ a: String(clock.nowMs()) })
      await paced()
      await clock.advance(2)
    }
    // Nothing waits before it is known that changes keep coming.
    while (times.length < 3) await change()
    expect(times).toEqual([0, 40, 82])
    await paced()
    await clock.advance(40)
    await change()
    await change()
    expect(times).toEqual([0, 40, 82, 164, 206])
    await clock.advance(200)
    offer({ a: 'alone' })
    await settle()
    expect(reconciler.paced()).toBeUndefined()
  })

  it('lets changes wait for a second at most while a pass is stuck', async () => {
    const { clock, plane, offer, reconciler } = bench()
    offer({ a: '1' })
    await settle()
    offer({ a: '2' })
    plane.commit = () => new Promise(() => undefined)
    await clock.advance(20)
    let isPaced = false
    void reconciler.paced()?.then(() => {
      isPaced = true
    })
    await clock.advance(999)
    expect(isPaced).toBe(false)
    await clock.advance(1)
    expect(isPaced).toBe(true)
  })

  it.each([
    [20, 0, 20],
    [20, 1, 40],
    [20, 6, 240],
    [20, 7, 250],
    [20, 1_000, 250],
    [1_000, 1, 1_000],
  ])(
    'with an interval of %i ms, passes that cost %f ms are %i ms apart',
    async (minIntervalMs, costMs, apartMs) => {
      const { clock, plane, offer } = bench(new FakePlane(), { minIntervalMs })
      const times: number[] = []
      plane.afterCommit = () => {
        times.push(clock.nowMs())
        clock.spentMs += costMs
      }
      while (times.length < 5) {
        offer({ a: String(clock.nowMs()) })
        await clock.advance(1)
      }
      expect((times[4] ?? 0) - (times[3] ?? 0)).toBe(apartMs)
    },
  )

  it('keeps the interval for what one change leaves for a second commit', async () => {
    const plane = new FakePlane()
    plane.twoCommits = true
    const { clock, offer } = bench(plane)
    offer({ a: '1', old: '1' })
    await clock.advance(1_000)
    offer({ b: '1' })
    await clock.advance(20)
    expect([...plane.kernel.keys()]).toEqual(['b'])
    offer({ c: '1', b: '1' })
    await clock.advance(20)
    expect(plane.kernel.has('c')).toBe(true)
  })

  it('names the Snapshot that the kernel holds while a newer one waits', async () => {
    const { clock, reconciler, offer } = bench()
    offer({ a: '1' })
    offer({ a: '2' })
    await settle()
    expect(reconciler.status).toMatchObject({
      syncedNumber: 1,
      snapshot: { number: 1 },
      table: { number: 1 },
    })
    await clock.advance(20)
    expect(reconciler.status).toMatchObject({
      syncedNumber: 2,
      snapshot: { number: 2 },
      table: { number: 2 },
    })
  })

  it('sends what must wait in a second commit, and reports synced only then', async () => {
    const plane = new FakePlane()
    plane.twoCommits = true
    plane.kernel = new Map([['old', '1']])
    const { clock, offer, kinds } = bench(plane)
    offer({ a: '1' })
    await settle()
    expect([...plane.kernel.keys()].sort()).toEqual(['a', 'old'])
    expect(kinds()).toEqual(['committed'])
    await clock.advance(20)
    expect([...plane.kernel.keys()]).toEqual(['a'])
    expect(kinds()).toEqual(['committed', 'committed', 'synced'])
  })

  it('reports what each pass brought as synced in a storm in which each leaves something for the next', async () => {
    const plane = new FakePlane()
    plane.twoCommits = true
    const { clock, offer, kinds } = bench(plane)
    for (let round = 1; round <= 5; round++) {
      offer({ [`round ${round}`]: '1' })
      await clock.advance(5)
      offer({ [`round ${round}`]: '1', newer: `${round}` })
      await clock.advance(15)
    }
    expect(plane.kernel.size).toBeGreaterThan(2)
    expect(kinds().filter(kind => kind === 'synced').length).toBeGreaterThanOrEqual(4)
  })

  it('reports nothing as synced that another program damaged before the next pass', async () => {
    const plane = new FakePlane()
    plane.twoCommits = true
    const { clock, offer, events } = bench(plane, { minIntervalMs: 2_000 })
    offer({ old: '1' })
    await clock.advance(3_000)
    offer({ a: '1' })
    await settle()
    offer({ a: '1', b: '1' })
    plane.kernel = new Map()
    plane.generationNow++
    await clock.advance(10_000)
    const numbers = events.flatMap(event => (event.kind === 'synced' ? [event.number] : []))
    expect(numbers).not.toContain(2)
    expect(numbers).toContain(3)
  })
})
