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

  it('commits at once when the last commit is long ago', async () => {
    const { clock, plane, offer } = bench()
    offer({ a: '1' })
    await clock.advance(100)
    offer({ a: '2' })
    await settle()
    expect(plane.kernel.get('a')).toBe('2')
  })

  it('doubles the interval while changes keep coming, and commits at once again after a calm', async () => {
    const { clock, plane, offer } = bench()
    const commitsWithin = async (ms: number): Promise<number> => {
      const before = plane.commits.length
      for (const endMs = clock.nowMs() + ms; clock.nowMs() < endMs; ) {
        offer({ a: String(clock.nowMs()) })
        await clock.advance(10)
      }
      return plane.commits.length - before
    }
    // At once, 20 ms later, and from then on every 40 ms.
    expect(await commitsWithin(50)).toBe(2)
    expect(await commitsWithin(1_000)).toBe(25)
    offer({ a: 'last' })
    await clock.advance(40)
    expect(plane.kernel.get('a')).toBe('last')
    await clock.advance(100)
    offer({ a: 'alone' })
    await settle()
    expect(plane.kernel.get('a')).toBe('alone')
    offer({ a: 'second' })
    await clock.advance(20)
    expect(plane.kernel.get('a')).toBe('second')
  })

  it('lets changes wait while they keep coming, and counts those that come right behind the interval', async () => {
    const { clock, plane, offer, reconciler } = bench()
    const times: number[] = []
    plane.afterCommit = () => times.push(clock.nowMs())
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
    expect(times).toEqual([0, 20, 60])
    await paced()
    await clock.advance(2)
    await change()
    await change()
    expect(times).toEqual([0, 20, 60, 102, 144])
    await clock.advance(200)
    offer({ a: 'alone' })
    await settle()
    expect(reconciler.paced()).toBeUndefined()
  })

  it('lets changes wait for 50 ms at most while a pass is stuck', async () => {
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
    await clock.advance(49)
    expect(isPaced).toBe(false)
    await clock.advance(1)
    expect(isPaced).toBe(true)
  })

  it.each([
    [0, 0],
    [20, 40],
    [30, 40],
    [1_000, 1_000],
  ])(
    'makes of an interval of %i ms one of %i ms while changes keep coming',
    async (minIntervalMs, steadyMs) => {
      const { clock, plane, offer } = bench(new FakePlane(), { minIntervalMs })
      const times: number[] = []
      plane.afterCommit = () => times.push(clock.nowMs())
      while (times.length < 5) {
        offer({ a: String(clock.nowMs()) })
        await clock.advance(1)
      }
      expect((times[4] ?? 0) - (times[3] ?? 0)).toBe(Math.max(1, steadyMs))
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

  it('sends nothing when nothing changed', async () => {
    const { clock, plane, offer } = bench()
    plane.kernel = new Map([['a', '1']])
    offer({ a: '1' })
    await clock.advance(50)
    expect(plane.attempts).toBe(0)
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
})
