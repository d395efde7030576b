import { beforeEach, describe, expect, it } from 'vitest'
import { settle } from '../../../support/fake-clock.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { service, services } from '../../../support/scripted-api.ts'
import { listBody, PROTOBUF } from './wire/bodies.ts'

let rig: ReflectorRig

beforeEach(() => {
  rig = new ReflectorRig()
})

const LIST = { kind: 'ServiceList', apiVersion: 'v1', metadata: { resourceVersion: '200' } }
/** What a list of twelve Services becomes in these answers. */
const ANSWERS: Readonly<Record<string, object>> = {
  'no items': LIST,
  'items that are no list': { ...LIST, items: {} },
  'no version': { ...LIST, metadata: {}, items: services(12) },
  'a version that is a number': { ...LIST, metadata: { resourceVersion: 200 }, items: services(12) },
  'a continue that is a number': { ...LIST, metadata: { resourceVersion: '200', continue: 7 }, items: [] },
  'an item without metadata': { ...LIST, items: [...services(11), { spec: {} }] },
  'an item without a name': {
    ...LIST,
    items: [...services(11), { metadata: { namespace: 'ns', resourceVersion: '8' } }],
  },
  'an item without a namespace': {
    ...LIST,
    items: [...services(11), { metadata: { name: 'a', resourceVersion: '8' } }],
  },
  'an item whose version is a number': {
    ...LIST,
    items: [...services(11), { metadata: { namespace: 'ns', name: 'a', resourceVersion: 8 } }],
  },
  'an item of another kind': { ...LIST, items: [...services(11), { ...service('a', 8), kind: 'Pod' }] },
}

describe('an answer that is no whole list', () => {
  it.each(Object.keys(ANSWERS))('F139: %s is a read error that removes nothing', async name => {
    const watch = await rig.watching(services(12), 100)
    await settle(watch.close())
    await rig.status(410, { reason: 'Expired' })
    const body = JSON.stringify(ANSWERS[name])
    rig.api.take().body(body)
    await settle()
    expect(rig.known.size).toBe(12)
    expect(rig.trouble).toMatch(/list/)
    rig.api.answer('services', asked => asked.body(body))
    await rig.clock.advance(60_000)
    expect(rig.known.size).toBe(12)
  })

  it('F139: an initial event without a name is a read error of the streaming list', async () => {
    rig = new ReflectorRig({ streaming: true })
    await rig.start()
    const stream = rig.api.take().watch()
    stream.added(service('a', 1)).event('ADDED', { kind: 'Service', apiVersion: 'v1', metadata: {} })
    await settle(stream.listed('5'))
    expect(rig.listed).toBe(0)
    await rig.clock.advance(5_000)
    await rig.list([service('a', 1), service('b', 2)], '6')
    expect(rig.state).toEqual(['a=10.0.0.1', 'b=10.0.0.1'])
  })

  it.each([
    ['an item without metadata', [{ kind: 'Service', apiVersion: 'v1', spec: {} }], '7'],
    ['no version', [], ''],
  ] as const)('F139: %s in protobuf is a read error', async (_, items, resourceVersion) => {
    await rig.start()
    rig.api.take().body(listBody(PROTOBUF, 'Service', items, { resourceVersion }), PROTOBUF)
    await settle()
    expect([rig.listed, rig.batches.length]).toEqual([0, 0])
    expect(rig.trouble).toMatch(/list/)
  })

  it('F139: items may be null, as Go writes an empty list that was never made', async () => {
    await rig.start()
    rig.api.take().body(JSON.stringify({ ...LIST, items: null }))
    await settle()
    expect(rig.listed).toBe(1)
  })
})
