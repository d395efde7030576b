import { describe, expect, it } from 'vitest'
import { Semantics, type Twist } from '../../../support/apiserver/semantics.ts'
import { Store } from '../../../support/apiserver/store.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { service } from './service.ts'

const SERVICES = '/api/v1/services'
const WATCH = `${SERVICES}?watch=true&allowWatchBookmarks=true`

function serverWith(...names: readonly string[]): Semantics {
  const store = new Store({ startVersion: '100' })
  for (const name of names) store.create('services', service(name))
  return new Semantics({ store, clock: new FakeClock(), random: () => 0 })
}

function replyTo(semantics: Semantics, path: string, twist?: Twist) {
  return semantics.handle({ method: 'GET', path, headers: {}, body: '' }, twist)
}

/** A request that ends. */
function list(semantics: Semantics, query: string, twist?: Twist) {
  const reply = replyTo(semantics, `${SERVICES}?${query}`, twist)
  if (reply.kind !== 'whole') throw new Error('a watch')
  return { code: reply.code, body: JSON.parse(Buffer.from(reply.body).toString()) }
}

function names(body: { readonly items: readonly { readonly metadata: { readonly name: string } }[] }) {
  return body.items.map(({ metadata }) => metadata.name)
}

/** A watch: `TYPE name` of its events, and `end`. */
function watch(semantics: Semantics, query: string, twist?: Twist): readonly string[] {
  const reply = replyTo(semantics, `${WATCH}&${query}`, twist)
  if (reply.kind !== 'watch') throw new Error(`not a watch: ${Buffer.from(reply.body)}`)
  const heard: string[] = []
  reply.start({
    event: each => {
      const { type, object } = JSON.parse(Buffer.from(reply.encode(each)).toString())
      heard.push(`${type} ${object.metadata?.name ?? object.code}`)
    },
    end: () => heard.push('end'),
  })
  return heard
}

describe('a list', () => {
  it('answers 410 to a token from before the compaction, with one that is no longer consistent (A18)', () => {
    const semantics = serverWith('s0', 's1', 's2', 's3', 's4')
    const { metadata } = list(semantics, 'limit=2').body
    semantics.store.create('services', service('s9'))
    semantics.store.compact()
    const late = list(semantics, `limit=2&continue=${metadata.continue}`)
    expect(late.code).toBe(410)
    expect(late.body).toMatchObject({ kind: 'Status', reason: 'Expired', code: 410 })
    const onwards = list(semantics, `limit=9&continue=${late.body.metadata.continue}`).body
    expect(names(onwards)).toEqual(['s2', 's3', 's4', 's9'])
  })

  it('serves an older state when it lags, and does not know newer versions (F20)', () => {
    const semantics = serverWith('s0', 's1', 's2', 's3')
    const old = list(semantics, '', { behind: 2n }).body
    expect(names(old)).toEqual(['s0', 's1'])
    expect(old.metadata.resourceVersion).toBe('102')
    expect(list(semantics, 'resourceVersion=104', { behind: 2n }).code).toBe(504)
  })

  it('can have empty pages in between, which lose nothing (A17)', () => {
    const semantics = serverWith('s0', 's1', 's2', 's3', 's4')
    const pages: string[][] = []
    for (let [page, token] = [0, ' ']; page < 9 && token !== ''; page++) {
      const { body } = list(semantics, `limit=2&continue=${token.trim()}`, { emptyPages: true })
      pages.push(names(body))
      token = body.metadata.continue ?? ''
    }
    expect(pages).toEqual([['s0', 's1'], [], ['s2', 's3'], [], ['s4']])
  })

  it('can lie that there is nothing (F29)', () => {
    const { body } = list(serverWith('s0', 's1', 's2'), '', { emptyList: true })
    expect(body).toMatchObject({ items: [], metadata: { resourceVersion: '103' } })
  })
})

describe('a watch', () => {
  it('from a forgotten version gets 410, in the stream or as status (A3)', () => {
    const semantics = serverWith('a', 'b', 'c')
    semantics.store.compact()
    expect(watch(semantics, 'resourceVersion=102')).toEqual(['ERROR 410', 'end'])
    semantics.expiredAsStatus = true
    expect(list(semantics, 'watch=true&resourceVersion=102').code).toBe(410)
    expect(watch(semantics, 'resourceVersion=103')).toEqual([])
  })

  it('of a lagging replica hears of changes when that does (F20)', () => {
    const semantics = serverWith('a', 'b')
    const heard = watch(semantics, 'resourceVersion=101', { behind: 2n })
    expect(heard).toEqual([])
    for (const name of ['c', 'd', 'e']) semantics.store.create('services', service(name))
    expect(heard).toEqual(['ADDED b', 'ADDED c'])
  })

  it('that begins with a list can go without the end of it (F23)', () => {
    const query = 'sendInitialEvents=true&resourceVersionMatch=NotOlderThan'
    expect(watch(serverWith('a', 'b'), query, { withholdsEnd: true })).toEqual(['ADDED a', 'ADDED b'])
  })
})
