import { describe, expect, it } from 'vitest'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { Store } from '../../../support/apiserver/store.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { ask, service } from './ask.ts'

const SERVICES = '/api/v1/services'

function serverWith(count: number, startVersion = '100'): Semantics {
  const store = new Store({ startVersion })
  for (let index = 0; index < count; index++) store.create('services', service(`s${index}`))
  return new Semantics({ store, clock: new FakeClock() })
}

function names(body: { readonly items: readonly { readonly metadata: { readonly name: string } }[] }) {
  return body.items.map(({ metadata }) => metadata.name)
}

describe('a list', () => {
  it('answers 410 to a token from before the compaction, with one that is no longer consistent (A18)', () => {
    const semantics = serverWith(5)
    const { metadata } = ask(semantics, `${SERVICES}?limit=2`).body
    semantics.store.create('services', service('s9'))
    semantics.store.compact()
    const late = ask(semantics, `${SERVICES}?limit=2&continue=${metadata.continue}`)
    expect(late.code).toBe(410)
    expect(late.body).toMatchObject({ kind: 'Status', reason: 'Expired', code: 410 })
    const onwards = ask(semantics, `${SERVICES}?limit=9&continue=${late.body.metadata.continue}`).body
    expect(names(onwards)).toEqual(['s2', 's3', 's4', 's9'])
  })

  it('serves an older state when it lags, and does not know newer versions (F20)', () => {
    const semantics = serverWith(4)
    const old = ask(semantics, SERVICES, { twist: { behind: 2n } }).body
    expect(names(old)).toEqual(['s0', 's1'])
    expect(old.metadata.resourceVersion).toBe('102')
    const newer = ask(semantics, `${SERVICES}?resourceVersion=104`, { twist: { behind: 2n } })
    expect(newer.code).toBe(504)
  })

  it('can have empty pages in between, which lose nothing (A17)', () => {
    const semantics = serverWith(5)
    const pages: string[][] = []
    let token = ''
    for (let page = 0; page < 9; page++) {
      const { body } = ask(semantics, `${SERVICES}?limit=2&continue=${token}`, {
        twist: { emptyPages: true },
      })
      pages.push(names(body))
      token = body.metadata.continue ?? ''
      if (token === '') break
    }
    expect(pages).toEqual([['s0', 's1'], [], ['s2', 's3'], [], ['s4']])
  })

  it('can lie that there is nothing (F29)', () => {
    const { body } = ask(serverWith(3), SERVICES, { twist: { emptyList: true } })
    expect(body).toMatchObject({ items: [], metadata: { resourceVersion: '103' } })
  })
})
