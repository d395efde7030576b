import { describe, expect, it } from 'vitest'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { ask, service, watch } from './ask.ts'

const PATH = '/api/v1/namespaces/ns/services'

function server(): Semantics {
  const semantics = new Semantics({ clock: new FakeClock() })
  semantics.store.create('services', service('a'))
  return semantics
}

function send(semantics: Semantics, method: string, path: string, body: object, type = 'application/json') {
  return ask(semantics, path, { method, body: JSON.stringify(body), headers: { 'content-type': type } })
}

describe('objects', () => {
  it('are created once, with identity, time and version', () => {
    const semantics = server()
    const { code, body } = send(semantics, 'POST', PATH, service('b'))
    expect(code).toBe(201)
    expect(body.metadata).toMatchObject({ uid: expect.any(String), creationTimestamp: expect.any(String) })
    expect(send(semantics, 'POST', PATH, service('b'))).toMatchObject({
      code: 409,
      body: { reason: 'AlreadyExists' },
    })
    expect(send(semantics, 'POST', '/api/v1/namespaces/other/services', service('c')).code).toBe(400)
    expect(send(semantics, 'POST', PATH, { ...service('d'), kind: 'Node' }).code).toBe(400)
  })

  it('get another identity when they are made anew under the same name (F18)', () => {
    const semantics = server()
    const first = ask(semantics, `${PATH}/a`).body.metadata.uid
    ask(semantics, `${PATH}/a`, { method: 'DELETE' })
    send(semantics, 'POST', PATH, service('a'))
    expect(ask(semantics, `${PATH}/a`).body.metadata.uid).not.toBe(first)
  })

  it('are replaced by whoever knows their newest version', () => {
    const semantics = server()
    const { body } = ask(semantics, `${PATH}/a`)
    const changed = { ...body, spec: { clusterIP: '10.96.0.9' } }
    expect(send(semantics, 'PUT', `${PATH}/a`, changed).code).toBe(200)
    expect(send(semantics, 'PUT', `${PATH}/a`, changed)).toMatchObject({
      code: 409,
      body: { reason: 'Conflict' },
    })
  })

  it('make no version when nothing changes', () => {
    const semantics = server()
    const { version } = semantics.store
    const { events } = watch(semantics, `/api/v1/services?watch=true&resourceVersion=${version}`)
    const merge = 'application/merge-patch+json'
    send(semantics, 'PATCH', `${PATH}/a`, { spec: { clusterIP: '10.96.0.1' } }, merge)
    expect(events).toEqual([])
    expect(send(semantics, 'PATCH', `${PATH}/a`, { spec: null }, merge).body).not.toHaveProperty('spec')
    expect(send(semantics, 'PATCH', `${PATH}/a`, {}, 'application/json-patch+json').code).toBe(415)
    expect(semantics.store.version).toBe(version + 1n)
  })

  it('keep status and the rest apart', () => {
    const semantics = server()
    const status = { loadBalancer: { ingress: [{ ip: '192.0.2.1' }] } }
    send(semantics, 'PUT', `${PATH}/a/status`, { ...service('a'), spec: {}, status })
    expect(semantics.store.get('services', 'ns/a')).toMatchObject({
      status,
      spec: { clusterIP: '10.96.0.1' },
    })
    send(semantics, 'PUT', `${PATH}/a`, { ...service('a'), status: {} })
    expect(semantics.store.get('services', 'ns/a')).toMatchObject({ status })
  })

  it('of events.k8s.io are taken', () => {
    const semantics = server()
    const path = '/apis/events.k8s.io/v1/namespaces/ns/events'
    const event = { metadata: { generateName: 'web.' }, reason: 'Refused', note: 'why' }
    expect(send(semantics, 'POST', path, event).code).toBe(201)
    expect(semantics.store.list('events')).toMatchObject([{ kind: 'Event', reason: 'Refused' }])
  })

  it('that are not there are 404, as are groups that are off and paths of nobody', () => {
    const semantics = server()
    expect(ask(semantics, `${PATH}/x`)).toMatchObject({ code: 404, body: { reason: 'NotFound' } })
    semantics.groupsOff.add('networking.k8s.io')
    const reply = (path: string) => semantics.handle({ method: 'GET', path, headers: {}, body: '' })
    expect(reply('/apis/networking.k8s.io/v1/servicecidrs')).toMatchObject({ code: 404 })
    expect(reply('/nobody')).toMatchObject({ code: 404 })
    expect(reply('/readyz')).toMatchObject({ code: 200 })
    expect(ask(semantics, '/version').body.minor).toBe('36')
  })
})

describe('access', () => {
  it('is by token, then by rule (F13, F14)', () => {
    const semantics = server()
    const rules = [{ verbs: ['list', 'watch'], groups: [''], resources: ['services'] }]
    semantics.access.tokens.set('old', { name: 'proxy', rules })
    const as = (token: string, path: string) =>
      ask(semantics, path, { headers: { authorization: `Bearer ${token}` } })
    expect(as('new', '/api/v1/services')).toMatchObject({ code: 401, body: { reason: 'Unauthorized' } })
    expect(as('old', '/api/v1/services').code).toBe(200)
    expect(as('old', `${PATH}/a`).code).toBe(403)
    expect(as('old', '/apis/discovery.k8s.io/v1/endpointslices')).toMatchObject({
      code: 403,
      body: { reason: 'Forbidden', details: { kind: 'endpointslices' } },
    })
    semantics.access.tokens.delete('old')
    semantics.access.tokens.set('new', { name: 'proxy' })
    expect(as('old', '/api/v1/services').code).toBe(401)
    expect(as('new', `${PATH}/a`).code).toBe(200)
  })
})

describe('encodings', () => {
  it.each([
    ['application/vnd.kubernetes.protobuf, application/json', 'application/vnd.kubernetes.protobuf'],
    ['application/json', 'application/json'],
    ['*/*', 'application/json'],
    ['application/yaml, */*;q=0.1', 'application/json'],
  ])('follow %s', (accept, expected) => {
    const reply = server().handle({ method: 'GET', path: '/api/v1/services', headers: { accept }, body: '' })
    expect(reply.headers['content-type']).toBe(expected)
  })

  it('are those of errors as well', () => {
    const accept = 'application/vnd.kubernetes.protobuf'
    const semantics = server()
    const reply = semantics.handle({ method: 'GET', path: `${PATH}/x`, headers: { accept }, body: '' })
    expect(reply).toMatchObject({ code: 404, headers: { 'content-type': accept } })
    expect(ask(semantics, '/api/v1/services', { headers: { accept: 'text/html' } }).code).toBe(406)
  })
})
