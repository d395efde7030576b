import { describe, expect, it } from 'vitest'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { Store } from '../../../support/apiserver/store.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { ask, nameOf, service, watch } from './ask.ts'

const WATCH = '/api/v1/services?watch=true&allowWatchBookmarks=true'
const STREAM = `${WATCH}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan`

function server(): Semantics {
  const store = new Store({ startVersion: '100' })
  for (const name of ['a', 'b']) store.create('services', service(name))
  return new Semantics({ store, clock: new FakeClock(), random: () => 0 })
}

describe('a watch', () => {
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

  it('of a lagging replica hears of changes when that does (F20)', () => {
    const semantics = server()
    const { events } = watch(semantics, `${WATCH}&resourceVersion=101`, { twist: { behind: 2n } })
    expect(events).toEqual([])
    for (const name of ['c', 'd', 'e']) semantics.store.create('services', service(name))
    expect(events.map(nameOf)).toEqual(['b', 'c'])
  })
})

describe('a streaming list', () => {
  it('can go without its end (F23)', () => {
    expect(watch(server(), STREAM, { twist: { withholdsEnd: true } }).types()).toEqual(['ADDED', 'ADDED'])
  })
})
