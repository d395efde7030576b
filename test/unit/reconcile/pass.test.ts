import { describe, expect, it } from 'vitest'
import { FakePlane } from '../../support/fake-plane.ts'
import { bench } from '../../support/reconciler-bench.ts'
import { IS_QUICK } from '../../support/runs.ts'

describe('a doubt about what is wanted', () => {
  it('is raised before the first commit, also when the kernel could not be read at first', async () => {
    const plane = new FakePlane()
    plane.kernel = new Map(['a', 'b', 'c'].map(key => [key, '1']))
    const asked: (readonly [held: number, wanted: number])[] = []
    const doubts = (held: FakePlane['kernel'], wanted: FakePlane['kernel']) => {
      asked.push([held.size, wanted.size])
      return Promise.resolve(asked.length === 1)
    }
    plane.beforeObserve = () => {
      plane.beforeObserve = undefined
      throw new Error('ENOBUFS')
    }
    const { clock, offer } = bench(plane, { doubts })
    offer({ a: '1' })
    await clock.advance(1_000)
    expect(asked).toEqual([
      [3, 1],
      [3, 1],
    ])
    expect([...plane.kernel.keys()]).toEqual(['a'])
  })
})

/** A kernel that rejects these Services. */
function poisoned(...services: readonly string[]) {
  const made = bench()
  for (const service of services) made.plane.poisoned.add(service)
  return made
}

describe('quarantine', () => {
  it('leaves a refused Service out, names it, and lets all others in', async () => {
    const { clock, plane, offer, events, reconciler } = poisoned('bad')
    offer({ a: '1', bad: '1', c: '1' })
    await clock.advance(100)
    expect([...plane.kernel.keys()].sort()).toEqual(['a', 'c'])
    expect(events.filter(event => event.kind === 'quarantined')).toMatchObject([{ service: 'bad' }])
    expect(reconciler.status.quarantined.map(entry => entry.service)).toEqual(['bad'])
  })

  it.skipIf(IS_QUICK)(
    'finds one bad Service among 5,000 by halving when the kernel does not say which',
    async () => {
      const { clock, plane, offer, reconciler } = poisoned('s4321')
      plane.namesCulprit = false
      offer(Object.fromEntries(Array.from({ length: 5_000 }, (_, index) => [`s${index}`, '1'])))
      await clock.advance(2_000)
      expect(plane.kernel.size).toBe(4_999)
      expect(reconciler.status.quarantined.map(entry => entry.service)).toEqual(['s4321'])
      expect(plane.attempts).toBeLessThanOrEqual(2 * Math.ceil(Math.log2(5_000)) + 4)
    },
  )

  it('retries a quarantined Service alone until the kernel takes it', async () => {
    const { clock, plane, offer, kinds, reconciler } = poisoned('bad')
    offer({ a: '1', bad: '1' })
    await clock.advance(3_000)
    plane.poisoned.clear()
    await clock.advance(10_000)
    expect(plane.kernel.has('bad')).toBe(true)
    expect(kinds()).toContain('released')
    expect(reconciler.status.quarantined).toEqual([])
  })

  it('reads again when another program committed just before a commit that was refused', async () => {
    const { clock, plane, offer } = poisoned('bad', 'cured')
    offer({ a: '1', bad: '1', cured: '1' })
    await clock.advance(100)
    plane.namesCulprit = false
    plane.poisoned.delete('cured')
    plane.afterCommit = () => {
      plane.afterCommit = undefined
      plane.tamper(plane.kernel)
    }
    const { observations } = plane
    await clock.advance(3_000)
    expect(plane.kernel.has('cured')).toBe(true)
    expect(plane.observations).toBe(observations + 1)
  })

  it('takes back what a refused retry has left in a kernel that does not undo', async () => {
    const { clock, plane, offer } = poisoned('bad')
    plane.partial = true
    offer({ a: '1', bad: '1' })
    await clock.advance(10_000)
    expect(plane.attempts).toBeGreaterThan(4)
    expect([...plane.kernel.keys()]).toEqual(['a'])
  })

  it('lets a Service that was changed try at once, however often its old form was refused', async () => {
    const { clock, plane, offer, reconciler } = poisoned('bad')
    offer({ a: '1', bad: '1' })
    await clock.advance(400_000)
    plane.poisoned.clear()
    offer({ a: '1', bad: '2' })
    await clock.advance(100)
    expect(plane.kernel.get('bad')).toBe('2')
    expect(reconciler.status.quarantined).toEqual([])
  })

  it('forgets a Service that is gone', async () => {
    const { clock, offer, reconciler } = poisoned('bad')
    offer({ a: '1', bad: '1' })
    await clock.advance(100)
    offer({ a: '1' })
    await clock.advance(100)
    expect(reconciler.status.quarantined).toEqual([])
  })

  it('lets all whose turn has come in together', async () => {
    const bad = Array.from({ length: 8 }, (_, index) => `bad${index}`)
    const { clock, plane, offer, reconciler } = poisoned(...bad)
    offer(Object.fromEntries(bad.map(service => [service, '1'])))
    await clock.advance(300)
    expect(reconciler.status.quarantined).toHaveLength(8)
    plane.poisoned.clear()
    const { attempts } = plane
    await clock.advance(1_000)
    expect(reconciler.status.quarantined).toEqual([])
    expect(plane.attempts - attempts).toBeLessThanOrEqual(2)
  })

  it('goes on applying changes while a Service is in quarantine', async () => {
    const { clock, plane, offer } = poisoned('bad')
    offer({ a: '1', bad: '1' })
    await clock.advance(100)
    offer({ a: '2', bad: '1' })
    await clock.advance(25)
    expect(plane.kernel.get('a')).toBe('2')
  })
})
