import { describe, expect, it } from 'vitest'
import { settle } from '../../../support/fake-clock.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { IS_QUICK } from '../../../support/runs.ts'
import { type Asked, type ScriptedWatch, service } from '../../../support/scripted-api.ts'

let rig: ReflectorRig

/** A server that fails in this way, told from one that answers by `up`. */
async function failing(fail: (asked: Asked) => void) {
  rig = new ReflectorRig()
  const watch = await rig.watching([service('a', 5)], 100)
  rig.api.answer('services', fail)
  await settle(watch.cut())
  return {
    up: (resourceVersion: string) =>
      rig.api.answer('services', asked => {
        if (asked.form !== 'watch') asked.list([service('a', 5), service('b', 200)], resourceVersion)
        else asked.watch().added(service('b', 200))
      }),
  }
}

describe('outages', () => {
  it('A12, F02: while connections are refused there are watches at the pace of the back-off, and no list', async () => {
    const { up } = await failing(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    await rig.clock.advance(60_000)
    expect(rig.api.count('list')).toBe(1)
    expect(rig.api.count('watch')).toBeLessThan(10)
    await rig.clock.advance(3_540_000)
    expect(rig.batches.length).toBe(1)
    expect(rig.reflector.heardMs).toBeLessThan(3_000)
    up('200')
    await rig.clock.advance(60_000)
    expect(rig.api.count('list')).toBe(1)
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
    expect(rig.troubles.at(-1)).toBeUndefined()
  })

  it('A12: while watches fail and lists answer, it lists at the pace of the back-off, and says so once', async () => {
    const failures: readonly ((asked: Asked) => void)[] = [
      ...[400, 401, 403, 404, 405, 500, 502, 503, 504].map(code => (asked: Asked) => asked.status(code)),
      asked => asked.fail('lost', 'ECONNRESET'),
      asked => asked.fail('silent', 'no answer'),
      asked => asked.watch().close(),
      asked => asked.watch().error(500, { reason: 'InternalError' }),
    ]
    for (const fail of failures) {
      let version = 100
      await failing(asked => {
        if (asked.form === 'list') asked.list([service('a', version)], String(version++))
        else fail(asked)
      })
      // Two steps of the back-off, where the connection was lost.
      await rig.clock.advance(2_400)
      expect(rig.api.count('list')).toBeGreaterThan(1)
      await rig.clock.advance(600_000)
      expect(rig.api.count('list')).toBeGreaterThan(10)
      expect(rig.api.count('list')).toBeLessThan(30)
      expect(rig.troubles).not.toContain(undefined)
      rig.api.answer('services', asked => {
        if (asked.form === 'list') asked.list([service('a', version)], String(version))
        else asked.watch()
      })
      await rig.clock.advance(62_000)
      expect(rig.troubles.at(-1)).toBeUndefined()
    }
  })

  it('A28: a server that was away and is back with an older store is noticed before the next watch', async () => {
    await failing(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    await rig.clock.advance(60_000)
    rig.api.answer('services', asked => {
      // A watch in the future of the server waits without a word.
      if (asked.form === 'watch') asked.watch()
      else asked.list([service('b', 40)], '50')
    })
    await rig.clock.advance(32_000 + 10_000)
    expect(rig.state).toEqual(['b=10.0.0.1'])
    expect(rig.requests.slice(-4)).toEqual([
      'metadata limit=1',
      'list limit=500',
      'list limit=500',
      'watch resourceVersion=50',
    ])
  })

  it('F29: a list that runs already confirms nothing, and gives way to one that passes relays by', async () => {
    let confirmed = 0
    rig = new ReflectorRig()
    const watch = await rig.watching([service('a', 5)], 100)
    await settle(watch.close())
    await rig.status(410, { reason: 'Expired' })
    void rig.reflector.relist().then(() => confirmed++)
    const listed = async (...names: readonly string[]) => {
      const objects = names.map(name => service(name, 200))
      await rig.list(objects, '200')
      return [confirmed, rig.known.size, rig.api.asked.at(-1)?.request.isDirect]
    }
    expect(await listed('a', 'b')).toEqual([0, 1, true])
    rig.api.take().fail('unreachable', 'connect ECONNREFUSED')
    await rig.clock.advance(2_000)
    // What a relay has counts until the API server answers.
    expect(await listed('a', 'b')).toEqual([0, 2, true])
    expect(rig.troubles).not.toContain(undefined)
    expect(await listed('a', 'b', 'c')).toEqual([1, 3, false])
  })

  it('a relay that does not say which revision the server has holds no watch up', async () => {
    await failing(asked => asked.fail('unreachable', 'connect ECONNREFUSED'))
    rig.api.answer('services', asked => {
      if (asked.form === 'metadata') asked.status(503)
      else asked.watch().added(service('b', 200))
    })
    await rig.clock.advance(2_000)
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
  })

  it('A12, A13, F11: 429 at the start of a watch is waited out as the server asks, without a list', async () => {
    const times: number[] = []
    await failing(asked => {
      times.push(rig.clock.nowMs())
      asked.status(429, { reason: 'TooManyRequests', retryAfterMs: 7_000 })
    })
    await rig.clock.advance(30_000)
    expect(rig.api.count('list')).toBe(1)
    expect(times.slice(1, 4).map((at, index) => at - (times[index] ?? 0))).toEqual([7_000, 7_000, 7_000])
  })

  it('A13, F11: so is 429 for a list', async () => {
    rig = await new ReflectorRig().start()
    rig.api.take().status(429, { retryAfterMs: 7_000 })
    await rig.clock.advance(6_999)
    expect(rig.requests.length).toBe(1)
    await rig.clock.advance(1)
    expect(rig.requests).toEqual(['list resourceVersion=0', 'list resourceVersion=0'])
  })

  it('A13: the wait may stand in the Status, and in an event of the stream', async () => {
    rig = new ReflectorRig()
    const watch = await rig.watching([], 100)
    watch.error(429, { reason: 'TooManyRequests', retryAfterSeconds: 9 })
    await rig.clock.advance(8_999)
    expect(rig.api.count('watch')).toBe(1)
    await rig.clock.advance(1)
    expect(rig.api.count('watch')).toBe(2)
  })

  it('A11, A13, F12: storms of errors without a header are met with the delays of the back-off', async () => {
    for (const code of [429, 500, 502, 503, 504]) {
      rig = new ReflectorRig()
      const times: number[] = []
      rig.api.answer('services', asked => {
        times.push(rig.clock.nowMs())
        asked.status(code)
      })
      await rig.start()
      await rig.clock.advance(600_000)
      const delays = times.slice(1, 9).map((at, index) => at - (times[index] ?? 0))
      expect(delays).toEqual([800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000])
      rig.api.answer('services', undefined)
      await rig.clock.advance(30_000)
      await rig.list([service('a', 5)], '100')
      expect(rig.state).toEqual(['a=10.0.0.1'])
    }
  })

  it('I-35, A31: after 401, 403, 500 and lost or silent connections it goes on, and keeps what it has', async () => {
    const failures: readonly ((asked: Asked) => void)[] = [
      asked => asked.status(401, { reason: 'Unauthorized' }),
      asked => asked.status(403, { reason: 'Forbidden', message: 'services is forbidden' }),
      asked => asked.status(404, { reason: 'NotFound' }),
      asked => asked.status(302),
      asked => asked.fail('lost', 'ECONNRESET'),
      asked => asked.fail('silent', 'no answer'),
      asked => asked.fail('tls', 'certificate has expired'),
      asked => asked.fail('credentials', 'no token'),
      asked => asked.body('<html>', 'text/html'),
    ]
    for (const fail of failures) {
      const { up } = await failing(fail)
      await rig.clock.advance(600_000)
      expect(rig.state).toEqual(['a=10.0.0.1'])
      expect(rig.api.asked.length).toBeLessThan(40)
      expect(rig.trouble).toBeDefined()
      up('300')
      await rig.clock.advance(60_000)
      expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
    }
  })

  it('A31: ServiceCIDRs that the server does not have count as listed, and are looked for again', async () => {
    rig = await new ReflectorRig({ resource: 'servicecidrs' }).start()
    rig.api.take('servicecidrs').status(404, { reason: 'NotFound', message: 'no such page' })
    await settle()
    expect(rig.listed).toBe(1)
    expect(rig.reflector.isAbsent).toBe(true)
    const text = 'API not served; continuing without it (status 404 NotFound: no such page)'
    expect(rig.troubles).toEqual([{ scope: 'absent', text }])
    await rig.clock.advance(230_000)
    expect(rig.api.asked.length).toBe(1)
    await rig.clock.advance(130_000)
    await settle(rig.api.take('servicecidrs').list([], '7'))
    expect(rig.reflector.isAbsent).toBe(false)
    expect(rig.listed).toBe(1)
    expect(rig.troubles.at(-1)).toBeUndefined()
  })

  it('A31: ServiceCIDRs that may not be read count as absent after the first refusal', async () => {
    rig = await new ReflectorRig({ resource: 'servicecidrs' }).start()
    await settle(rig.api.take('servicecidrs').status(403, { reason: 'Forbidden' }))
    expect(rig.listed).toBe(1)
    expect(rig.trouble).toContain('continuing without it')
    await rig.clock.advance(1_000)
    await settle(rig.api.take('servicecidrs').list([], '7'))
    expect(rig.reflector.isAbsent).toBe(false)
  })

  it('an outage at the start is no absence', async () => {
    rig = await new ReflectorRig({ resource: 'servicecidrs' }).start()
    await settle(rig.api.take('servicecidrs').status(503))
    expect(rig.listed).toBe(0)
  })

  it.skipIf(IS_QUICK)('I-32: a thousand reconnections leave one watch and few timers', async () => {
    rig = new ReflectorRig()
    let watches: ScriptedWatch[] = []
    let version = 100
    rig.api.answer('services', asked => {
      if (asked.form === 'list') asked.list([], '100')
      else watches.push(asked.watch())
    })
    await rig.start()
    for (let each = 0; each < 1_000; each++) {
      watches.at(-1)?.added(service(`s${each % 10}`, ++version))
      await settle()
      watches.at(-1)?.cut()
      await settle()
      expect(watches.filter(watch => !watch.isLeft).length).toBe(1)
      watches = watches.slice(-2)
    }
    expect(rig.api.count('list')).toBe(1)
    expect(rig.clock.pending).toBeLessThan(6)
  })
})
