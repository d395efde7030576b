import { describe, expect, it } from 'vitest'
import { settle } from '../../../support/fake-clock.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { type ScriptedWatch, service } from '../../../support/scripted-api.ts'

let rig: ReflectorRig

/** Starts with a streaming list that has not brought anything yet. */
async function streaming(): Promise<ScriptedWatch> {
  rig = await new ReflectorRig({ streaming: true }).start()
  const stream = rig.api.take().watch()
  await settle()
  return stream
}

describe('streaming lists', () => {
  it('A20: are asked for with all that they need, of now', async () => {
    rig = await new ReflectorRig({ streaming: true }).start()
    const { query, request } = rig.api.take()
    expect(request.idleMs).toBe(20_000)
    expect(Object.fromEntries(query)).toMatchObject({
      watch: '1',
      sendInitialEvents: 'true',
      resourceVersionMatch: 'NotOlderThan',
      allowWatchBookmarks: 'true',
      timeoutSeconds: '300',
    })
    expect(query.has('resourceVersion')).toBe(false)
  })

  it.each([
    ...[302, 401, 403, 404, 405, 500, 502, 503, 504].map(code => [code, 'streaming list'] as const),
    [400, 'list'],
    [422, 'list'],
  ] as const)(
    'A20: are replaced by a plain list at once where they fail with %i; a %s is next',
    async (code, next) => {
      rig = await new ReflectorRig({ streaming: true }).start()
      await rig.status(code)
      await rig.list([service('a', 5)], '9')
      expect(rig.state).toEqual(['a=10.0.0.1'])
      expect(rig.requests).toEqual(['streaming list', 'list resourceVersion=0', 'watch resourceVersion=9'])
      expect(rig.troubles).toEqual([])
      await rig.status(410)
      expect(rig.requests.at(-1)).toBe(`${next} resourceVersion=9`)
    },
  )

  it.each([
    ['lost', 'list resourceVersion=0'],
    ['silent', 'list resourceVersion=0'],
    ['protocol', 'list resourceVersion=0'],
    ['unreachable', 'streaming list'],
    ['tls', 'streaming list'],
    [429, 'streaming list'],
  ] as const)('A20: that fail with %s are followed by a %s after a back-off', async (failure, next) => {
    rig = await new ReflectorRig({ streaming: true }).start()
    if (typeof failure === 'number') rig.api.take().status(failure)
    else rig.api.take().fail(failure, failure)
    await rig.clock.advance(799)
    expect(rig.requests).toEqual(['streaming list'])
    await rig.clock.advance(1)
    expect(rig.requests).toEqual(['streaming list', next])
  })

  it('A12: replace watches that fail, and say that all is well once they go on', async () => {
    const stream = await streaming()
    await settle(stream.listed('9'))
    stream.close()
    await rig.clock.advance(1_000)
    rig.api.take().status(503)
    await rig.clock.advance(2_000)
    expect(rig.requests.slice(-2)).toEqual(['watch resourceVersion=9', 'streaming list resourceVersion=9'])
    const again = rig.api.take().watch()
    again.listed('9')
    await rig.clock.advance(999)
    expect(rig.troubles.at(-1)?.text).toMatch(/^cannot watch: /)
    await rig.clock.advance(1)
    expect(rig.troubles.at(-1)).toBeUndefined()
  })

  it('A12: fail and recover without a word while the watch that they replace fails', async () => {
    const stream = await streaming()
    await settle(stream.listed('9'))
    stream.close()
    rig.api.answer('services', asked => {
      const isDue = rig.api.count('list') % 2 === 0
      if (asked.form === 'list' && isDue) asked.list([], '9')
      else asked.status(500)
    })
    await rig.clock.advance(600_000)
    expect(rig.api.count('list')).toBeGreaterThan(10)
    expect(rig.troubles).not.toContain(undefined)
  })

  it('A31: ServiceCIDRs that cannot be streamed may be there all the same', async () => {
    rig = await new ReflectorRig({ resource: 'servicecidrs', streaming: true }).start()
    await settle(rig.api.take('servicecidrs').status(403))
    await settle(rig.api.take('servicecidrs').list([], '9'))
    expect(rig.reflector.isAbsent).toBe(false)
    expect(rig.troubles).toEqual([])
  })

  it('A20: count when their end is marked, in one batch, and go on as a watch', async () => {
    const stream = await streaming()
    await settle(stream.added(service('b', 9), service('a', 5)))
    expect(rig.listed).toBe(0)
    await settle(stream.listed('50'))
    expect(rig.batches.map(batch => batch.length)).toEqual([2])
    expect(rig.listed).toBe(1)
    await settle(stream.modified(service('a', 51, { ip: '10.0.0.2' })))
    expect(rig.state).toEqual(['a=10.0.0.2', 'b=10.0.0.1'])
    expect(rig.requests.length).toBe(1)
  })

  it('A20: take changes that come before the end is marked, and events behind the mark in the same piece', async () => {
    const stream = await streaming()
    stream.added(service('a', 5), service('b', 6), service('c', 7))
    stream.modified(service('a', 11, { ip: '10.0.0.2' })).deleted(service('b', 12))
    await settle(stream.raw('').listed('12').added(service('d', 13)))
    expect(rig.state).toEqual(['a=10.0.0.2', 'c=10.0.0.1', 'd=10.0.0.1'])
  })

  it('A21: do not let the watch resume from an object of the list', async () => {
    const stream = await streaming()
    await settle(stream.added(service('z', 900), service('a', 5)))
    stream.cut()
    await rig.clock.advance(2_000)
    expect(rig.batches).toEqual([])
    expect(rig.requests.at(-1)).toBe('list resourceVersion=0')
  })

  it('A21: resume from the mark of the end', async () => {
    const stream = await streaming()
    stream.added(service('z', 40)).listed('50')
    await rig.clock.advance(2_000)
    await settle(stream.cut())
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=50')
  })

  it('A20, F23: without a mark of the end nothing counts; that is said after 10 s, and a plain list is read', async () => {
    const stream = await streaming()
    stream.added(service('a', 5)).bookmark('50')
    await rig.clock.advance(9_900)
    expect(rig.troubles).toEqual([])
    await rig.clock.advance(200)
    expect(stream.isLeft).toBe(true)
    expect(rig.listed).toBe(0)
    expect(rig.trouble).toContain('the streaming list did not end')
    await rig.list([service('a', 5)], '60')
    expect(rig.state).toEqual(['a=10.0.0.1'])
    expect(rig.troubles.at(-1)).toBeUndefined()
  })

  it('F23: bookmarks and repetitions are no growth', async () => {
    const stream = await streaming()
    for (let second = 1; second <= 11; second++) {
      stream.added(service('a', 5)).bookmark(String(50 + second))
      await rig.clock.advance(1_000)
    }
    expect(stream.isLeft).toBe(true)
    expect(rig.requests.at(-1)).toBe('list resourceVersion=0')
  })

  it('A28: do not go back while they arrive', async () => {
    const stream = await streaming()
    stream
      .modified(service('a', 11, { ip: '10.0.0.2' }))
      .added(service('a', 5))
      .listed('12')
    await settle()
    expect(rig.state).toEqual(['a=10.0.0.2'])
  })

  it('A20: a long list may take its time as long as it grows', async () => {
    const stream = await streaming()
    for (let each = 0; each < 6; each++) {
      stream.added(service(`s${each}`, each + 1))
      await rig.clock.advance(8_000)
    }
    await settle(stream.listed('50'))
    expect(rig.known.size).toBe(6)
    expect(rig.requests.length).toBe(1)
  })

  it('A3: an expired version in the stream leads to a consistent list', async () => {
    const stream = await streaming()
    await settle(stream.error(410, { reason: 'Expired' }))
    expect(rig.requests.at(-1)).toBe('list limit=500')
  })

  it('A2: after an expired watch ask for what is known at least, and replace it', async () => {
    const stream = await streaming()
    stream.added(service('a', 5), service('b', 6)).listed('50')
    await rig.clock.advance(2_000)
    await settle(stream.error(410, { reason: 'Expired' }))
    expect(rig.requests.at(-1)).toBe('streaming list resourceVersion=50')
    rig.api.take().watch().added(service('b', 6)).listed('70')
    await settle()
    expect(rig.state).toEqual(['b=10.0.0.1'])
  })
})
