import { beforeEach, describe, expect, it } from 'vitest'
import { settle } from '../../../support/fake-clock.ts'
import { eventually } from '../../../support/patience.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { type ScriptedWatch, service, services } from '../../../support/scripted-api.ts'

let rig: ReflectorRig

beforeEach(() => {
  rig = new ReflectorRig()
})

/** Ends the watch so that a list follows. */
const expire = () => rig.status(410, { reason: 'Expired' })

/** Watches these, ends the watch, and lets the next one expire. */
async function expired(...watching: Parameters<ReflectorRig['watching']>): Promise<void> {
  const watch = await rig.watching(...watching)
  await settle(watch.close())
  await expire()
}

describe('lists', () => {
  it('A2: the first list takes any version, the next one what is known, and after Expired the newest', async () => {
    const watch = await rig.watching([service('a', 90)], 100)
    await settle(watch.modified(service('a', 120)).close())
    await expire()
    await rig.status(410, { reason: 'Expired' })
    await rig.list([service('a', 130)], '140')
    expect(rig.requests).toEqual([
      'list resourceVersion=0',
      'watch resourceVersion=100',
      'watch resourceVersion=120',
      'list resourceVersion=120',
      'list limit=500',
      'watch resourceVersion=140',
    ])
  })

  it('A2: a consistent list that expires as well is tried again with delays', async () => {
    rig.api.answer('services', asked => asked.status(410, { reason: 'Expired' }))
    await rig.start()
    await rig.clock.advance(60_000)
    expect(rig.requests.slice(1).every(text => text === 'list limit=500')).toBe(true)
    expect(rig.requests.length).toBeLessThan(10)
  })

  it('A5, I-30, F10: "too large resource version" leads to one consistent list', async () => {
    await expired([service('a', 90)], 100)
    await rig.status(504, { reason: 'Timeout', causes: ['ResourceVersionTooLarge'] })
    await rig.list([service('b', 90)], '101')
    expect(rig.requests.slice(-3)).toEqual([
      'list resourceVersion=100',
      'list limit=500',
      'watch resourceVersion=101',
    ])
    expect(rig.state).toEqual(['b=10.0.0.1'])
  })

  it('A5: old servers say so in words alone', async () => {
    await rig.start()
    await rig.status(504, { reason: 'Timeout', message: 'Too large resource version: 5, current: 4' })
    expect(rig.requests.at(-1)).toBe('list limit=500')
  })

  it('A17: pages are followed by their token alone, and one may be empty', async () => {
    await rig.start()
    await expire()
    await rig.list([service('a', 1)], '50', 'two')
    await rig.list([], '50', 'three')
    expect(rig.batches).toEqual([])
    await rig.list([service('b', 2)], '50')
    expect(rig.requests.slice(1)).toEqual([
      'list limit=500',
      'list limit=500 continue=two',
      'list limit=500 continue=three',
      'watch resourceVersion=50',
    ])
    expect(rig.batches.length).toBe(1)
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
  })

  it('A17: pages of a server that pages unasked are read too', async () => {
    await rig.start()
    await rig.list([service('a', 1)], '50', 'two')
    expect(rig.requests.at(-1)).toBe('list continue=two')
    expect(rig.api.take().query.has('resourceVersion')).toBe(false)
  })

  it('A1: a list of pages has the version of the first', async () => {
    await rig.start()
    await rig.list([service('a', 1)], '50', 'two')
    await rig.list([service('b', 52)], '55')
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=50')
  })

  it('A18, F09: an expired token on page 3 of 5 leads to one whole list, without holes or duplicates', async () => {
    await rig.start()
    await expire()
    await rig.list([service('a', 1)], '50', 'p2')
    await rig.list([service('gone', 2)], '50', 'p3')
    await rig.status(410, { reason: 'Expired' })
    expect(rig.requests.at(-1)).toBe('list')
    await rig.list([service('a', 1), service('c', 60)], '61')
    expect(rig.state).toEqual(['a=10.0.0.1', 'c=10.0.0.1'])
    expect(rig.batches.flat().length).toBe(2)
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=61')
  })

  it('A17: pages without an end are given up', async () => {
    await rig.start()
    rig.api.answer('services', asked => asked.list([], '50', 'more'))
    await rig.list([], '50', 'more')
    await eventually(() => rig.trouble?.includes('more than 10000 pages') === true)
    expect(rig.api.asked).toHaveLength(10_000)
  })

  it('A24, F18: another object of the same name is a deletion and an addition', async () => {
    await expired([service('a', 1, { uid: 'old', ip: '10.0.0.1' })], 10)
    await rig.list([service('a', 12, { uid: 'new', ip: '10.0.0.2' })], '20')
    expect(rig.batches[1]?.map(event => 'value' in event && event.value !== undefined)).toEqual([false, true])
    expect(rig.state).toEqual(['a=10.0.0.2'])
  })

  it('delivers only the changes of a list, with deletions in one batch', async () => {
    await expired([...services(5), service('x', 1)], 10)
    await rig.list([...services(5), service('y', 11)], '20')
    expect(rig.batches[1]?.map(event => 'key' in event && event.key)).toEqual(['ns/x', 'ns/y'])
  })

  it('A28, I-29, F20: a list older than what is known is not taken, nor is the newest one of a server that lags', async () => {
    const watch = await rig.watching([service('a', 1_000), service('b', 1_001)], 1_001)
    await settle(watch.deleted(service('b', 1_005)).close())
    await expire()
    const stale = [service('a', 1), service('b', 2, { ip: '10.9.9.9' })]
    await rig.list(stale, '5')
    expect(rig.requests.at(-1)).toBe('list limit=500')
    rig.api.answer('services', asked => asked.list(stale, '5'))
    rig.api.take().list(stale, '5')
    await rig.clock.advance(9_000)
    expect(rig.state).toEqual(['a=10.0.0.1'])
    expect(rig.batches.length).toBe(2)
    expect(rig.trouble).toContain('older than the known state (1005)')
    expect(rig.skipped('older')).toBeGreaterThan(1)
  })

  it('A28: a store that stays behind for ten seconds was restored, and is obeyed', async () => {
    const watch = await rig.watching([service('a', 1_000, { ip: '10.0.0.9' }), service('b', 1_001)], 1_001)
    await settle(watch.added(service('c', 1_002)).deleted(service('c', 1_003)).close())
    await expire()
    const restored = [service('a', 3, { ip: '10.0.0.3' })]
    rig.api.take().list(restored, '5')
    let second: ScriptedWatch | undefined
    rig.api.answer('services', asked => {
      if (asked.form === 'list') asked.list(restored, '5')
      else second = asked.watch()
    })
    await settle()
    await rig.clock.advance(9_000)
    expect(rig.state).toEqual(['a=10.0.0.9', 'b=10.0.0.1'])
    await rig.clock.advance(1_000)
    expect(rig.state).toEqual(['a=10.0.0.3'])
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=5')
    second?.added(service('c', 7))
    await settle()
    expect(rig.state).toEqual(['a=10.0.0.3', 'c=10.0.0.1'])
  })

  it.each([false, true])(
    'servers that do not know the selector are asked without it (streaming: %s)',
    async streaming => {
      const headless = (version: number) => service('headless', version, { ip: 'None' })
      rig = new ReflectorRig({ streaming, checkPeriodMs: 100_000 })
      let stream: ScriptedWatch | undefined
      let now = [service('a', 5), headless(6)]
      rig.api.answer('services', asked => {
        if (asked.query.has('fieldSelector'))
          asked.status(400, { reason: 'BadRequest', message: 'field label not supported: spec.clusterIP' })
        else if (asked.form === 'list' || asked.form === 'metadata')
          asked.list(now, now.length === 2 ? '100' : '102')
        else {
          stream = asked.watch()
          if (asked.form === 'streaming list') stream.added(...now).listed('100')
        }
      })
      await rig.start()
      expect(rig.state).toEqual(['a=10.0.0.1'])
      expect(rig.troubles).toEqual([])
      stream?.modified(headless(101)).added(service('b', 102))
      now = [service('a', 5), headless(101), service('b', 102)]
      await rig.clock.advance(250_000)
      expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
      // Once for all requests, checks for lost events included.
      expect(rig.api.asked.filter(({ query }) => query.has('fieldSelector')).length).toBe(1)
      expect(rig.checks.at(-1)).toBeUndefined()
    },
  )

  it('a watch that is refused for its selector leads to a list and a watch without it', async () => {
    const watch = await rig.watching([service('a', 5)], 100)
    await settle(watch.close())
    await rig.status(400, { reason: 'BadRequest', message: 'field label not supported: spec.clusterIP' })
    const again = rig.api.take()
    expect([again.form, again.query.has('fieldSelector')]).toEqual(['list', false])
    await settle(again.list([service('b', 101)], '101'))
    expect(rig.state).toEqual(['b=10.0.0.1'])
    expect(rig.api.take().query.has('fieldSelector')).toBe(false)
  })

  it('F29: a list that lacks most objects is confirmed by a consistent one before it counts', async () => {
    await expired(services(12), 100)
    await rig.list([], '200')
    expect(rig.known.size).toBe(12)
    expect(rig.requests.at(-1)).toBe('list limit=500')
    await rig.list(services(12), '200')
    expect(rig.known.size).toBe(12)
    expect(rig.batches.length).toBe(1)
  })

  it('F29: a mass deletion that is confirmed is obeyed', async () => {
    await expired(services(12), 100)
    await rig.list([], '200')
    rig.api.take().status(500)
    await rig.clock.advance(10_000)
    expect(rig.known.size).toBe(12)
    await rig.list([], '200')
    expect(rig.known.size).toBe(0)
  })

  it('F29: a list that is asked for as soon as the first one has landed is another one', async () => {
    let confirmed = 0
    rig.onListed = () => void rig.reflector.relist().then(() => confirmed++)
    await rig.start()
    await rig.list([], '100')
    expect([confirmed, rig.requests.at(-1)]).toEqual([0, 'list limit=500'])
    await rig.list(services(12), '100')
    expect([confirmed, rig.known.size]).toEqual([1, 12])
  })

  it('F29: few objects, or half of them, may vanish at once', async () => {
    for (const [before, after] of [
      [9, 0],
      [12, 6],
    ] as const) {
      rig = new ReflectorRig()
      await expired(services(before), 100)
      await rig.list(services(after), '200')
      expect(rig.known.size).toBe(after)
    }
  })

  it('F29: what a list lacked by mistake comes back with the next one, unchanged as it is', async () => {
    await expired(services(3), 100)
    await rig.list([], '200')
    expect(rig.known.size).toBe(0)
    await expire()
    await rig.clock.advance(60_000)
    await rig.list(services(3), '200')
    expect(rig.known.size).toBe(3)
  })

  it('F28: a page that takes longer than five minutes is given up, however long the list takes', async () => {
    await rig.start()
    await expire()
    for (const token of ['two', 'three']) {
      await rig.clock.advance(290_000)
      await rig.list([], '50', token)
    }
    const asked = rig.api.take()
    await rig.clock.advance(299_000)
    expect(asked.request.signal.aborted).toBe(false)
    await rig.clock.advance(1_000)
    expect(asked.request.signal.aborted).toBe(true)
    expect(rig.trouble).toContain('took too long')
  })
})
