import { describe, expect, it } from 'vitest'
import { settle } from '../../support/fake-clock.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { announce, bench, disturb, running, watchedBench } from '../../support/reconciler-bench.ts'

for (const { how, start } of [
  { how: 'polls', start: bench },
  { how: 'has the plane watch', start: watchedBench },
]) {
  describe(`repair, when the reconciler ${how} the generation`, () => {
    it('notices a foreign commit within the poll and restores what was lost', async () => {
      const { clock, plane, offer, events } = start()
      offer({ a: '1', b: '1' })
      await clock.advance(100)
      plane.tamper(new Map([['a', '1']]))
      await clock.advance(250)
      expect([...plane.kernel.keys()].sort()).toEqual(['a', 'b'])
      expect(events).toContainEqual({ kind: 'repaired', changes: 1, objects: ['add b'] })
    })

    it('reports the repair of what an earlier process had written', async () => {
      const { clock, plane, offer, events } = start()
      plane.kernel = new Map([['a', '1']])
      offer({ a: '1' })
      await clock.advance(100)
      plane.tamper(new Map())
      await clock.advance(250)
      expect(events).toContainEqual({ kind: 'repaired', changes: 1, objects: ['add a'] })
    })

    it('makes no extra pass after commits of its own', async () => {
      const { clock, plane, offer } = await running(start())
      offer({ a: '2' })
      await clock.advance(5_000)
      expect(plane.observations).toBe(1)
      expect(plane.commits).toHaveLength(2)
    })

    it('looks before it makes anew what packets left state in, and once only', async () => {
      const { clock, plane, offer } = await running(start())
      plane.rebuilds = true
      offer({ a: '2' })
      await clock.advance(5_000)
      expect(plane.observations).toBe(2)
      expect(plane.commits).toHaveLength(2)
    })

    it('makes that again when another program commits after the look', async () => {
      const { clock, plane, offer, kinds } = await running(start())
      plane.rebuilds = true
      const render = plane.render.bind(plane)
      plane.render = function* (table, options) {
        if (plane.observations === 2) plane.tamper(new Map([['b', '1']]))
        return yield* render(table, options)
      }
      offer({ a: '2' })
      await clock.advance(100)
      expect(kinds()).toContain('stale')
      expect(plane.observations).toBe(3)
      expect(plane.kernel).toEqual(new Map([['a', '2']]))
    })

    it('looks once, and commits nothing, when a foreign commit did not touch us', async () => {
      const { clock, plane } = await running(start())
      plane.tamper(plane.kernel)
      await clock.advance(5_000)
      expect(plane.observations).toBe(2)
      expect(plane.commits).toHaveLength(1)
    })

    it('reads again when another program committed just before a commit of ours', async () => {
      const { clock, plane, offer } = start()
      offer({ a: '1', b: '1' })
      await clock.advance(100)
      plane.tamper(new Map([['a', '1']]))
      offer({ a: '2', b: '1' })
      await clock.advance(250)
      expect([...plane.kernel.entries()].sort()).toEqual([
        ['a', '2'],
        ['b', '1'],
      ])
    })

    it('subscribes when damage comes back, names the process, and leaves after a quiet minute', async () => {
      const { clock, plane, events } = await running(start())
      await disturb({ clock, plane }, () => new Map())
      expect(plane.writers).toBeDefined()
      plane.tamper(new Map())
      announce(plane, { touchesUs: true })
      await clock.advance(50)
      expect(plane.kernel.size).toBe(1)
      expect(events).toContainEqual(
        expect.objectContaining({ kind: 'foreign-commit', process: 'nft (pid 7)', damage: true }),
      )
      await clock.advance(61_000)
      expect(plane.writers).toBeUndefined()
    })

    it('reads again when drift is reported while a pass is running', async () => {
      const { clock, plane, offer } = await running(start())
      await disturb({ clock, plane }, () => new Map())
      plane.afterCommit = () => {
        plane.afterCommit = undefined
        plane.tamper(new Map())
        announce(plane, { touchesUs: true })
      }
      offer({ a: '2' })
      await clock.advance(100)
      expect(plane.kernel.get('a')).toBe('2')
    })

    it('reports no repair for a change that is committed after drift was reported', async () => {
      const { clock, plane, offer, events } = await running(start())
      await disturb({ clock, plane }, () => new Map())
      const before = events.length
      offer({ a: '2' })
      plane.tamper(new Map())
      announce(plane, { touchesUs: true })
      offer({ a: '3' })
      await clock.advance(1_000)
      expect(plane.kernel.get('a')).toBe('3')
      const repairs = events.slice(before).filter(({ kind }) => kind === 'repaired')
      expect(repairs).toEqual([])
    })

    it('reports once, and not at every poll, that the generation cannot be read', async () => {
      const { clock, plane, events } = await running(start())
      const read = plane.generation.bind(plane)
      plane.generation = () => {
        throw new Error('EPERM')
      }
      await clock.advance(2_000)
      expect(events.filter(({ kind }) => kind === 'failed')).toHaveLength(1)
      plane.generation = read
      plane.tamper(new Map())
      await clock.advance(300)
      expect(plane.kernel.get('a')).toBe('1')
    })

    it('reports reads that fail again and again once a minute, and passes again when they succeed', async () => {
      const { clock, plane, events } = await running(start())
      const read = plane.generation.bind(plane)
      let reads = 0
      plane.generation = () => {
        if (reads++ % 7 < 5) throw new Error(`ENOBUFS ${reads}`)
        return read()
      }
      plane.tamper(plane.kernel)
      for (let time = 0; time < 100; time++) {
        plane.generationNow++
        await clock.advance(600)
      }
      plane.generation = read
      await clock.advance(1_000)
      expect(events.filter(({ kind }) => kind === 'failed')).toHaveLength(1)
      expect(events.at(-1)).toMatchObject({ kind: 'synced' })
    })

    it('reports no single read that fails', async () => {
      const { clock, plane, kinds } = await running(start())
      const read = plane.generation.bind(plane)
      plane.generation = () => {
        plane.generation = read
        throw new Error('ENOBUFS')
      }
      plane.tamper(new Map())
      await clock.advance(600)
      expect(plane.kernel.get('a')).toBe('1')
      expect(kinds()).not.toContain('failed')
    })

    it('does not take its own commit for a foreign one when the poll comes before the pass ends', async () => {
      const { clock, plane, offer, kinds } = await running(start())
      plane.commitMs = 600
      plane.sleep = ms => new Promise(resolve => clock.after(ms, resolve))
      offer({ a: '2' })
      await clock.advance(1_500)
      expect(plane.kernel.get('a')).toBe('2')
      expect(kinds()).not.toContain('foreign-commit')
      expect(plane.observations).toBe(1)
    })

    it('does not look at all while a subscription says that foreign commits leave us alone', async () => {
      const { clock, plane, offer } = await running(start())
      await disturb({ clock, plane }, () => plane.kernel)
      const { observations } = plane
      for (let time = 0; time < 10; time++) {
        plane.tamper(plane.kernel)
        announce(plane, { touchesUs: false })
        await clock.advance(300)
        // Commits of our own do not break the chain.
        offer({ a: String(time) })
        await clock.advance(300)
      }
      expect(plane.observations).toBe(observations)
    })

    it.each([
      [0, false],
      [500, true],
    ])(
      'listens for neighbors that commit every 10 s where a look takes %i ms: %s',
      async (observeMs, listens) => {
        const { clock, plane, offer } = start()
        plane.observeMs = observeMs
        plane.sleep = ms => new Promise(resolve => clock.after(ms, resolve))
        offer({ a: '1' })
        await clock.advance(1_000)
        for (let time = 0; time < 4; time++) {
          plane.tamper(plane.kernel)
          await clock.advance(10_000)
        }
        expect(plane.writers !== undefined).toBe(listens)
      },
    )

    it('waits three polls for the notification of a commit, and no longer', async () => {
      const { clock, plane } = await running(start())
      await disturb({ clock, plane }, () => plane.kernel)
      const { observations } = plane
      plane.tamper(plane.kernel)
      await clock.advance(750)
      announce(plane, { touchesUs: false })
      await clock.advance(1_000)
      expect(plane.observations).toBe(observations)
      plane.tamper(new Map())
      await clock.advance(1_001)
      expect(plane.observations).toBe(observations + 1)
      expect(plane.kernel.get('a')).toBe('1')
    })

    it('reads the kernel again after the resync period', async () => {
      const { clock, plane, offer } = start(new FakePlane(), { resyncPeriodMs: 60_000 })
      offer({ a: '1' })
      await clock.advance(1_000)
      plane.kernel = new Map()
      await clock.advance(60_000)
      expect(plane.kernel.get('a')).toBe('1')
    })
  })
}

describe('a plane that watches its generation', () => {
  it('is asked for it only after it changed', async () => {
    const { clock, plane, offer } = watchedBench()
    offer({ a: '1' })
    await clock.advance(1_000)
    const { reads } = plane
    await clock.advance(60_000)
    expect(plane.reads).toBe(reads)
    plane.tamper(new Map())
    await clock.advance(260)
    expect(plane.kernel.get('a')).toBe('1')
  })

  it('is asked again when its generation changed during a pass', async () => {
    const { clock, plane, offer } = await running(watchedBench())
    plane.commitMs = 600
    plane.sleep = ms => new Promise(resolve => clock.after(ms, resolve))
    offer({ a: '2' })
    await clock.advance(100)
    plane.tamper(new Map())
    await clock.advance(1_200)
    expect(plane.kernel.get('a')).toBe('2')
  })

  it('is polled when the watch cannot begin, and that is reported', async () => {
    const plane = new FakePlane()
    plane.watchGeneration = () => {
      throw new Error('EMFILE')
    }
    const { clock, kinds } = await running(bench(plane))
    plane.tamper(new Map())
    await clock.advance(300)
    expect(plane.kernel.get('a')).toBe('1')
    expect(kinds().filter(kind => kind === 'failed')).toHaveLength(1)
  })

  it('ends the watch with the reconciler', async () => {
    const { clock, plane, reconciler } = await running(watchedBench())
    await reconciler.stop()
    const { reads } = plane
    plane.tamper(new Map())
    await clock.advance(1_000)
    expect(plane.reads).toBe(reads)
  })
})

describe('busy times', () => {
  it('looks at the whole kernel when it is time, though changes never cease', async () => {
    const { clock, plane, offer } = bench(new FakePlane(), { resyncPeriodMs: 1_000 })
    for (let time = 0; time < 500; time++) {
      offer({ a: String(time) })
      await clock.advance(10)
    }
    expect(plane.observations).toBeGreaterThanOrEqual(5)
  })

  it('counts as damage what differs from the last commit, and not the change that was waiting', async () => {
    const { clock, plane, offer, events } = bench()
    offer({ a: '1', b: '1' })
    await clock.advance(235)
    offer({ a: '2', b: '1' })
    await clock.advance(1)
    plane.tamper(new Map([['a', '2']]))
    offer({ a: '3', b: '1' })
    await clock.advance(400)
    expect(plane.kernel.get('b')).toBe('1')
    const repairs = events.filter(({ kind }) => kind === 'repaired')
    expect(repairs).toEqual([{ kind: 'repaired', changes: 1, objects: ['add b'] }])
  })

  it('counts as damage nothing that a stale commit had written ahead of the rest', async () => {
    const { clock, plane, offer, events } = await running(bench())
    plane.partial = true
    plane.outcomes.push('stale')
    plane.tamper(new Map())
    offer({ a: '1', b: '1' })
    await clock.advance(400)
    expect([...plane.kernel.keys()]).toEqual(['a', 'b'])
    expect(events.filter(({ kind }) => kind === 'repaired')).toEqual([])
  })

  it.each([600_000, 100])(
    'reports no repair of changes beside a program that writes its own tables, resync every %i ms',
    async resyncPeriodMs => {
      const { clock, plane, offer, events } = await running(bench(new FakePlane(), { resyncPeriodMs }))
      for (let time = 0; time < 300; time++) {
        plane.tamper(plane.kernel)
        offer({ a: `${time}` })
        await clock.advance(7)
      }
      await clock.advance(1_000)
      expect(plane.kernel.get('a')).toBe('299')
      expect(plane.observations).toBeGreaterThan(5)
      const repairs = events.filter(
        event => event.kind === 'repaired' || (event.kind === 'committed' && event.reason !== 'change'),
      )
      expect(repairs).toMatchObject([{ kind: 'committed', reason: 'start' }])
    },
  )
})

describe('failures', () => {
  it('reads the kernel back when the outcome of a commit is unknown', async () => {
    const plane = new FakePlane()
    plane.outcomes.push('unknown')
    const { clock, offer, kinds } = bench(plane)
    offer({ a: '1' })
    await settle()
    expect(kinds()).toEqual(['failed'])
    await clock.advance(100)
    expect(plane.kernel.get('a')).toBe('1')
    expect(plane.observations).toBe(2)
  })

  it('plans again when the generation moved on, and gives up guarding after some tries', async () => {
    const plane = new FakePlane()
    for (let time = 0; time < 5; time++) plane.outcomes.push('stale')
    const { clock, offer, kinds } = bench(plane)
    offer({ a: '1' })
    await clock.advance(500)
    expect(plane.kernel.get('a')).toBe('1')
    expect(kinds().filter(kind => kind === 'stale')).toHaveLength(5)
  })

  it('believes a rejection only after a read: a removed element is not a bad Service', async () => {
    const plane = new FakePlane()
    const { clock, offer, kinds } = await running(bench(plane))
    plane.outcomes.push('refused')
    offer({ a: '2' })
    await clock.advance(100)
    expect(plane.kernel.get('a')).toBe('2')
    expect(kinds()).not.toContain('quarantined')
  })

  it('neither guards nor believes refusals of what it could not read in peace', async () => {
    const plane = new FakePlane()
    const { clock, offer, kinds } = bench(plane)
    plane.beforeObserve = () => {
      plane.generationNow++
    }
    plane.unsettled = true
    plane.poisoned.add('a')
    plane.afterCommit = () => plane.poisoned.clear()
    offer({ a: '1' })
    await clock.advance(200)
    expect(plane.kernel.get('a')).toBe('1')
    expect(plane.guards).toEqual([undefined, undefined])
    expect(kinds()).not.toContain('quarantined')
  })

  it('waits longer after each failed pass, and recovers', async () => {
    const plane = new FakePlane()
    for (let time = 0; time < 4; time++) plane.outcomes.push('unknown')
    const { clock, offer, events } = bench(plane)
    offer({ a: '1' })
    await clock.advance(5_000)
    const delays = events.flatMap(event => (event.kind === 'failed' ? [event.retryMs] : []))
    expect(delays).toEqual([75, 150, 300, 600])
    expect(plane.kernel.get('a')).toBe('1')
  })
})

describe('stopping', () => {
  it('changes nothing in the kernel and arms no more timers', async () => {
    const { clock, plane, offer, reconciler } = await running(bench())
    await reconciler.stop()
    offer({ a: '2' })
    await clock.advance(60_000)
    expect(plane.kernel.get('a')).toBe('1')
    expect(clock.pending).toBe(0)
  })
})
