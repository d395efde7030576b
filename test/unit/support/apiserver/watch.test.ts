import { describe, expect, it } from 'vitest'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { Store } from '../../../support/apiserver/store.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { ask, fakeClockOf, nameOf, service, watch } from './ask.ts'

const WATCH = '/api/v1/services?watch=true&allowWatchBookmarks=true'
const STREAM = `${WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan`

function server(): Semantics {
  const store = new Store({ startVersion: '100' })
  for (const name of ['a', 'b']) store.create('services', service(name))
  return new Semantics({ store, clock: new FakeClock(), random: () => 0 })
}

describe('a watch', () => {
  it('tells what came after its version, then what comes', () => {
    const semantics = server()
    const { events, types } = watch(semantics, `${WATCH}&resourceVersion=101`)
    semantics.store.update('services', service('a', { spec: { clusterIP: '10.96.0.9' } }))
    semantics.store.delete('services', 'ns/b')
    expect(types()).toEqual(['ADDED', 'MODIFIED', 'DELETED'])
    expect(events.map(nameOf)).toEqual(['b', 'a', 'b'])
    expect(events[2]?.object).toMatchObject({ metadata: { resourceVersion: '104' }, kind: 'Service' })
  })

  it.each(['', '&resourceVersion=0'])('without a version (%s) begins with all there is', query => {
    expect(watch(server(), WATCH + query).types()).toEqual(['ADDED', 'ADDED'])
  })

  it('stops when it is told to', () => {
    const semantics = server()
    const watched = watch(semantics, `${WATCH}&resourceVersion=102`)
    watched.stop()
    semantics.store.delete('services', 'ns/a')
    expect(watched.events).toEqual([])
    expect(fakeClockOf(semantics).pending).toBe(0)
  })

  it('ends in order after its time (A8)', async () => {
    const semantics = server()
    const watched = watch(semantics, `${WATCH}&resourceVersion=102&timeoutSeconds=5`)
    await fakeClockOf(semantics).advance(4_999)
    expect(watched.ended()).toBe(false)
    await fakeClockOf(semantics).advance(1)
    expect(watched.ended()).toBe(true)
    expect(fakeClockOf(semantics).pending).toBe(0)
  })

  it('bookmarks with nothing but a version, and only for those who ask (A6, A7)', async () => {
    const semantics = server()
    semantics.bookmarkEveryMs = 1_000
    const asked = watch(semantics, `${WATCH}&resourceVersion=102`)
    const unasked = watch(semantics, '/api/v1/services?watch=1&resourceVersion=102')
    semantics.store.skip(10n)
    await fakeClockOf(semantics).advance(2_000)
    expect(unasked.events).toEqual([])
    expect(asked.types()).toEqual(['BOOKMARK', 'BOOKMARK'])
    expect(asked.events[0]?.object).toEqual({
      kind: 'Service',
      apiVersion: 'v1',
      metadata: { resourceVersion: '112' },
    })
  })

  it('from a forgotten version gets 410, in the stream or as status (A3)', () => {
    const semantics = server()
    semantics.store.create('services', service('c'))
    semantics.store.compact()
    const watched = watch(semantics, `${WATCH}&resourceVersion=102`)
    expect(watched.events).toMatchObject([
      { type: 'ERROR', object: { kind: 'Status', code: 410, reason: 'Expired' } },
    ])
    expect(watched.ended()).toBe(true)
    semantics.expiredAsStatus = true
    expect(ask(semantics, `${WATCH}&resourceVersion=102`).code).toBe(410)
    expect(watch(semantics, `${WATCH}&resourceVersion=103`).events).toEqual([])
  })

  it('with a selector sees objects leave it as DELETED and come into it as ADDED (A34)', () => {
    const semantics = server()
    const query = `&resourceVersion=102&labelSelector=${encodeURIComponent('!headless')}`
    const { events, types } = watch(semantics, WATCH + query)
    semantics.store.update('services', service('a', { metadata: { labels: { headless: '' } } }))
    semantics.store.update('services', service('a', { metadata: { labels: { headless: '', more: '' } } }))
    semantics.store.delete('services', 'ns/a')
    semantics.store.create('services', service('a'))
    expect(types()).toEqual(['DELETED', 'ADDED'])
    expect(events[0]?.object.metadata).toMatchObject({ name: 'a', resourceVersion: '103' })
  })

  it('of one namespace sees no other', () => {
    const semantics = server()
    const path = '/api/v1/namespaces/other/services?watch=true&resourceVersion=100'
    expect(watch(semantics, path).events).toEqual([])
  })

  it('of a lagging replica hears of changes when that does (F20)', () => {
    const semantics = server()
    const { events } = watch(semantics, `${WATCH}&resourceVersion=101`, { twist: { behind: 2n } })
    expect(events).toEqual([])
    for (const name of ['c', 'd', 'e']) semantics.store.create('services', service(name))
    expect(events.map(nameOf)).toEqual(['b', 'c'])
  })
})

describe('a streaming list', () => {
  it('ends its initial events with an annotated bookmark (A20)', () => {
    const { events, types } = watch(server(), STREAM)
    expect(types()).toEqual(['ADDED', 'ADDED', 'BOOKMARK'])
    expect(events[2]?.object.metadata).toEqual({
      resourceVersion: '102',
      annotations: { 'k8s.io/initial-events-end': 'true' },
    })
  })

  it('is not in the order of versions (A21)', () => {
    const semantics = server()
    semantics.store.update('services', service('a', { spec: { clusterIP: '10.96.0.9' } }))
    const versions = watch(semantics, STREAM).events.map(({ object }) => object.metadata)
    expect(versions).toMatchObject([{ resourceVersion: '103' }, { resourceVersion: '102' }, {}])
  })

  it('can go without its end (F23)', () => {
    expect(watch(server(), STREAM, { twist: { withholdsEnd: true } }).types()).toEqual(['ADDED', 'ADDED'])
  })

  it('is refused by a server without the feature, and when asked for in a wrong way', () => {
    const semantics = server()
    expect(ask(semantics, `${WATCH}&sendInitialEvents=true`).code).toBe(422)
    expect(ask(semantics, `${WATCH}&resourceVersionMatch=NotOlderThan&resourceVersion=1`).code).toBe(422)
    expect(ask(semantics, `${STREAM}&resourceVersion=900`).code).toBe(504)
    semantics.watchList = false
    expect(ask(semantics, STREAM)).toMatchObject({ code: 422, body: { reason: 'Invalid' } })
  })
})
