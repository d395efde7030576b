import { beforeEach, describe, expect, it } from 'vitest'
import { settle } from '../../../support/fake-clock.ts'
import { ReflectorRig, type RigOptions } from '../../../support/reflector-rig.ts'
import { type ScriptedWatch, service, slice, type Written } from '../../../support/scripted-api.ts'

let rig: ReflectorRig

beforeEach(() => {
  rig = new ReflectorRig()
})
let watch: ScriptedWatch

async function begin(objects: readonly Written[] = [service('a', 5)], options?: RigOptions): Promise<void> {
  rig = new ReflectorRig(options)
  watch = await rig.watching(objects, 100)
}

/** The next watch, which the reflector is asking for. */
async function rewatch(): Promise<void> {
  watch = rig.api.take().watch()
  await rig.clock.advance(2_000)
}

describe('watches', () => {
  it('A3, F07: an answer of 410 leads to a list, and delivers the differences to the known state', async () => {
    await begin([service('a', 5), service('b', 6)])
    await settle(watch.close())
    await rig.status(410, { reason: 'Expired' })
    expect(rig.requests.at(-1)).toBe('list resourceVersion=100')
    await rig.list([service('b', 6), service('c', 120)], '130')
    expect(rig.state).toEqual(['b=10.0.0.1', 'c=10.0.0.1'])
    expect(rig.reasons()).toEqual(['start', 'expired'])
  })

  it('A3, I-33, F08: 410 in the stream does the same, at the first byte and after a thousand events', async () => {
    for (const events of [0, 1_000]) {
      await begin()
      for (let each = 1; each <= events; each++) watch.modified(service('a', 100 + each))
      await settle(watch.error(410, { reason: 'Gone' }))
      expect(rig.requests.at(-1)).toBe(`list resourceVersion=${100 + events}`)
      expect(watch.isLeft).toBe(true)
    }
  })

  it('A3: delivers events that arrive in one piece with an error', async () => {
    await begin()
    const event = JSON.stringify({ type: 'ADDED', object: service('b', 110) })
    const error = JSON.stringify({ type: 'ERROR', object: { kind: 'Status', apiVersion: 'v1', code: 410 } })
    await settle(watch.raw(`${event}\n${error}\n`))
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
    expect(rig.requests.at(-1)).toBe('list resourceVersion=110')
  })

  it('A3: a server at which every watch expires is listed with delays', async () => {
    rig = await new ReflectorRig().start()
    rig.api.answer('services', asked => {
      if (asked.form === 'list') asked.list([], '10')
      else asked.status(410, { reason: 'Expired' })
    })
    rig.api.take().list([], '10')
    await rig.clock.advance(120_000)
    expect(rig.api.count('list')).toBeLessThan(12)
  })

  it('A6, A7, F22: bookmarks move the version and nothing else, one a second or far ahead', async () => {
    await begin()
    for (let each = 1; each <= 60; each++) {
      watch.bookmark(String(100 + each))
      await rig.clock.advance(1_000)
    }
    await settle(watch.bookmark('340282366920938463463374607431768211456'))
    await settle(watch.close())
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=340282366920938463463374607431768211456')
    expect(rig.batches.length).toBe(1)
    expect(rig.state).toEqual(['a=10.0.0.1'])
  })

  it('A8: watches ask for bookmarks and a time between five and ten minutes', async () => {
    for (const [random, seconds] of [
      [0, '300'],
      [0.5, '450'],
      [0.9999, '599'],
    ] as const) {
      await begin([], { random: () => random })
      const query = rig.api.asked.at(-1)?.query
      expect(query?.get('timeoutSeconds')).toBe(seconds)
      expect(query?.get('allowWatchBookmarks')).toBe('true')
    }
  })

  it('A8, A15: a watch that outlives what was agreed upon is left', async () => {
    await begin()
    await rig.clock.advance(331_000)
    expect(watch.isLeft).toBe(true)
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=100')
  })

  it('A9, F06: a watch may end after any event, cleanly or not, and nothing is lost', async () => {
    for (const cut of [false, true]) {
      await begin([])
      for (let each = 1; each <= 30; each++) {
        watch.added(service(`s${each}`, 100 + each))
        await rig.clock.advance(1_000 * (each % 3))
        if (cut) watch.cut()
        else watch.close()
        await settle()
        expect(rig.requests.at(-1)).toBe(`watch resourceVersion=${100 + each}`)
        await rewatch()
      }
      expect(rig.known.size).toBe(30)
      expect(rig.api.count('list')).toBe(1)
    }
  })

  it('A10, F26: a server that accepts and closes at once is asked at the pace of the back-off', async () => {
    rig.api.answer('services', asked => {
      if (asked.form === 'list') asked.list([service('a', 5)], '100')
      else asked.watch().close()
    })
    await rig.start()
    await rig.clock.advance(600_000)
    expect(rig.api.count('watch')).toBeGreaterThan(20)
    expect(rig.api.count('watch')).toBeLessThan(30)
    expect(rig.clock.pending).toBeLessThan(10)
    expect(rig.trouble).toContain('watches end as soon as they begin')
  })

  it('A10: one that repeats the same event and closes gains nothing by it', async () => {
    rig.api.answer('services', asked => {
      if (asked.form === 'list') asked.list([service('a', 5)], '100')
      else asked.watch().modified(service('a', 5)).bookmark('100').close()
    })
    await rig.start()
    await rig.clock.advance(600_000)
    expect(rig.api.count('watch')).toBeLessThan(30)
  })

  it('A25, F19: duplicates, changes of the unknown and deletions of the unknown end in the right state', async () => {
    await begin()
    watch.added(service('a', 5))
    watch.added(service('a', 101, { ip: '10.0.0.2' }))
    watch.modified(service('new', 102))
    await settle(watch.deleted(service('never', 103)))
    expect(rig.state).toEqual(['a=10.0.0.2', 'new=10.0.0.1'])
    expect(rig.batches.slice(1).flat().length).toBe(2)
  })

  it('A26, F25: unknown types, objects of other kinds and tables are skipped, and the watch goes on', async () => {
    await begin()
    watch.event('FOO', service('a', 200))
    watch.added(slice('other', 201, []))
    watch.event('ADDED', { kind: 'Table', apiVersion: 'meta.k8s.io/v1', metadata: {}, rows: [] })
    watch.event('MODIFIED', { kind: 'Service', apiVersion: 'v1', metadata: { name: 'a', namespace: 'ns' } })
    await settle(watch.added(service('b', 202)))
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
    expect(['unknown-type', 'wrong-kind', 'no-identity'].map(reason => rig.skipped(reason))).toEqual([
      1, 2, 1,
    ])
    expect(watch.isLeft).toBe(false)
  })

  it('A27, I-34, F24: what cannot be read ends the stream, which resumes before it', async () => {
    const odd = [
      '{"type":"MODIFIED","obj\n',
      '\u0000\u0000\n',
      Buffer.from([0xff, 0xfe, 0x0a]),
      '[]\n',
      '{}\n',
    ]
    for (const bytes of odd) {
      await begin()
      await settle(watch.modified(service('a', 110, { ip: '10.0.0.2' })))
      await settle(watch.raw(bytes))
      expect(watch.isLeft).toBe(true)
      await rig.clock.advance(800)
      expect(rig.requests.at(-1)).toBe('watch resourceVersion=110')
      expect(rig.state).toEqual(['a=10.0.0.2'])
    }
  })

  it('A27: a stream that cannot be read twice leads to a list, which leads past it', async () => {
    await begin()
    for (let each = 0; each < 2; each++) {
      await settle(watch.raw('nonsense\n'))
      await rig.clock.advance(each === 0 ? 800 : 1_600)
      if (each === 0) await rewatch()
    }
    expect(rig.requests.at(-1)).toBe('list resourceVersion=100')
    await rig.list([service('a', 5), service('b', 140)], '150')
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=150')
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
  })

  it('A28, I-38: older states are dropped and counted, those of deleted objects too', async () => {
    await begin()
    watch.modified(service('a', 120, { ip: '10.0.0.2' })).modified(service('a', 110, { ip: '10.0.0.3' }))
    await settle(watch.added(service('b', 121)).deleted(service('b', 125)).modified(service('b', 123)))
    expect(rig.state).toEqual(['a=10.0.0.2'])
    expect(rig.skipped('older')).toBe(2)
    await settle(watch.close())
    expect(rig.requests.at(-1)).toBe('watch resourceVersion=125')
  })

  it('delivers the events of a piece in one batch', async () => {
    await begin([])
    const lines = Array.from({ length: 20 }, (_, each) =>
      JSON.stringify({ type: 'ADDED', object: service(`s${each}`, 101 + each) }),
    )
    await settle(watch.raw(`${lines.join('\n')}\n`))
    expect(rig.batches.map(batch => batch.length)).toEqual([20])
  })

  it('reads nothing further before a batch was taken', async () => {
    await begin([])
    let release: () => void = () => undefined
    rig.take = () =>
      new Promise(resolve => {
        release = resolve
      })
    await settle(watch.added(service('a', 101)).added(service('b', 102)).added(service('c', 103)))
    expect(watch.taken).toBe(1)
    release()
    await settle()
    expect(watch.taken).toBe(2)
    rig.take = async () => undefined
    release()
    await settle()
    expect(rig.known.size).toBe(3)
  })

  it('I-25: a failed batch leads to a list that delivers everything again', async () => {
    await begin([service('a', 5), service('b', 6)])
    rig.take = () => Promise.reject(new Error('a fault of the taker'))
    await settle(watch.modified(service('a', 110)))
    expect(rig.trouble).toContain('a fault of the taker')
    rig.take = async () => undefined
    rig.known.clear()
    await rig.clock.advance(800)
    await rig.list([service('a', 110), service('b', 6)], '120')
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
  })

  it('I-25: an object that makes the parser fail is refused, and all others are delivered', async () => {
    await begin([], {
      parse: object => {
        const { metadata } = Object(object)
        if (metadata.name === 'bad') throw new Error('a fault of the parser')
        return { kind: 'Node', key: `ns/${metadata.name}`, value: undefined }
      },
    })
    await settle(watch.added(service('good', 101), service('bad', 102), service('better', 103)))
    expect(rig.batches.flat().length).toBe(2)
    expect(rig.refusals).toEqual([
      { object: 'Service ns/bad', field: '', value: '', reason: 'cannot be read: a fault of the parser' },
    ])
  })

  it('a refused object deletes its earlier version, and is reported until it is valid or deleted', async () => {
    await begin([service('a', 5), service('b', 6)])
    watch.modified({ kind: 'Service', apiVersion: 'v7', metadata: { ...service('b', 111).metadata } })
    await settle()
    expect(rig.refusals.map(({ object }) => object)).toEqual(['Service ns/b'])
    expect(rig.state).toEqual(['a=10.0.0.1'])
    await settle(watch.modified(service('b', 120)))
    expect(rig.refusals).toEqual([])
    expect(rig.known.has('ns/b')).toBe(true)
  })

  it('stop ends the watch and all timers', async () => {
    await begin()
    await rig.reflector.stop()
    expect(watch.isLeft).toBe(true)
    expect(rig.clock.pending).toBe(0)
    expect(rig.api.waiting()).toBe(0)
  })
})
