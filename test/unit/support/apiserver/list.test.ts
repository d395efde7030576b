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
  it('tells the version of the state, which is not that of any item (A1)', () => {
    const semantics = serverWith(2)
    semantics.store.create('nodes', { apiVersion: 'v1', kind: 'Node', metadata: { name: 'n' } })
    const { body } = ask(semantics, SERVICES)
    expect(body.kind).toBe('ServiceList')
    expect(body.metadata.resourceVersion).toBe('103')
    expect(body.items[0].metadata).toMatchObject({ resourceVersion: '101', namespace: 'ns', name: 's0' })
    expect(body.items[0]).not.toHaveProperty('kind')
  })

  it('goes on where the page before ended, in the state of the first page (A17)', () => {
    const semantics = serverWith(5)
    const first = ask(semantics, `${SERVICES}?limit=2`).body
    semantics.store.delete('services', 'ns/s2')
    semantics.store.create('services', service('s9'))
    const second = ask(semantics, `${SERVICES}?limit=2&continue=${first.metadata.continue}`).body
    const third = ask(semantics, `${SERVICES}?limit=2&continue=${second.metadata.continue}`).body
    expect([...names(first), ...names(second), ...names(third)]).toEqual(['s0', 's1', 's2', 's3', 's4'])
    expect(third.metadata).toEqual({ resourceVersion: '105' })
    expect(first.metadata.remainingItemCount).toBe(3)
  })

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

  it('answers 504 with a cause to a version it has not reached (A5)', () => {
    const { code, body, headers } = ask(serverWith(1), `${SERVICES}?resourceVersion=500`)
    expect(code).toBe(504)
    expect(body).toMatchObject({
      reason: 'Timeout',
      details: { causes: [{ reason: 'ResourceVersionTooLarge' }] },
    })
    expect(headers['retry-after']).toBe('1')
  })

  it('takes no notice of the limit for version 0, as the watch cache does', () => {
    const semantics = serverWith(5)
    expect(names(ask(semantics, `${SERVICES}?limit=2&resourceVersion=0`).body)).toHaveLength(5)
    semantics.limitAlways = true
    expect(names(ask(semantics, `${SERVICES}?limit=2&resourceVersion=0`).body)).toHaveLength(2)
  })

  it('is of the version asked for when that is to be exact, and of the newest otherwise', () => {
    const semantics = serverWith(3)
    const exact = ask(semantics, `${SERVICES}?resourceVersion=102&resourceVersionMatch=Exact`).body
    const newer = ask(semantics, `${SERVICES}?resourceVersion=102`).body
    const paged = ask(semantics, `${SERVICES}?resourceVersion=102&limit=9`).body
    expect([exact, newer, paged].map(names)).toEqual([
      ['s0', 's1'],
      ['s0', 's1', 's2'],
      ['s0', 's1'],
    ])
    semantics.store.compact()
    const old = ask(semantics, `${SERVICES}?resourceVersion=102&resourceVersionMatch=Exact`)
    expect(old.code).toBe(410)
  })

  it.each([
    'resourceVersionMatch=Exact',
    'resourceVersionMatch=Exact&resourceVersion=0',
    'resourceVersionMatch=Newest&resourceVersion=1',
    'sendInitialEvents=true',
    'resourceVersion=abc',
    'resourceVersion=007',
  ])('refuses %s', query => {
    const { code, body } = ask(serverWith(1), `${SERVICES}?${query}`)
    expect(code).toBe(422)
    expect(body).toMatchObject({ kind: 'Status', reason: 'Invalid' })
  })

  it.each(['18446744073709551616', '340282366920938463463374607431768211455'])(
    'counts versions of any length: %s (A22)',
    startVersion => {
      const { metadata } = ask(serverWith(1, startVersion), SERVICES).body
      expect(metadata.resourceVersion).toBe(String(BigInt(startVersion) + 1n))
    },
  )

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

  it('is of metadata alone where the client accepts that', () => {
    const accept = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1'
    const { body } = ask(serverWith(1), SERVICES, { headers: { accept } })
    expect(body).toMatchObject({ kind: 'PartialObjectMetadataList', apiVersion: 'meta.k8s.io/v1' })
    expect(body.items[0].metadata.name).toBe('s0')
    expect(body.items[0]).not.toHaveProperty('spec')
  })
})

describe('selectors', () => {
  const PROXY_NAME = 'service.kubernetes.io/service-proxy-name'
  const semantics = serverWith(0)
  const labeled = (name: string, labels: object, spec: object = {}) =>
    semantics.store.create('services', service(name, { metadata: { labels }, spec }))
  labeled('plain', { app: 'a' })
  labeled('headless', { 'service.kubernetes.io/headless': '' }, { clusterIP: 'None' })
  labeled('foreign', { [PROXY_NAME]: 'other', app: 'b' })

  it.each([
    ['labelSelector=!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name', ['plain']],
    ['labelSelector=app', ['foreign', 'plain']],
    ['labelSelector=app in (a,c)', ['plain']],
    ['labelSelector=app notin (a)', ['foreign', 'headless']],
    ['labelSelector=app=b', ['foreign']],
    ['labelSelector=app!=b', ['headless', 'plain']],
    ['fieldSelector=metadata.name=plain', ['plain']],
    ['fieldSelector=spec.clusterIP!=None', ['foreign', 'plain']],
    ['fieldSelector=metadata.namespace=other', []],
  ])('%s', (query, expected) => {
    const [name = '', ...value] = query.split('=')
    const path = `${SERVICES}?${name}=${encodeURIComponent(value.join('='))}`
    expect(names(ask(semantics, path).body)).toEqual(expected)
  })

  it('that cannot be read are refused', () => {
    expect(ask(semantics, `${SERVICES}?labelSelector=a%20b`).code).toBe(400)
    expect(ask(semantics, `${SERVICES}?fieldSelector=spec.nodeName%3Dx`).code).toBe(400)
  })
})
