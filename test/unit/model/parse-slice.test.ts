import { describe, expect, it } from 'vitest'
import { identityOf, isRefusal, type Refusal } from '../../../src/model/fields.ts'
import { parseEndpointSlice as parseIdentified } from '../../../src/model/parse.ts'
import type { EndpointSlice } from '../../../src/model/service.ts'
import { ValuePool } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { endpoint, type Fields, refusalLines, slice, texts } from './objects.ts'

const parseEndpointSlice = (object: Fields, pool?: ValuePool) =>
  parseIdentified(identityOf('EndpointSlice', object), pool)

function parsed(object: Fields): EndpointSlice {
  const value = parseEndpointSlice(object, new ValuePool())
  if (isRefusal(value)) throw new Error(JSON.stringify(value))
  return value
}

function refused(object: Fields): Refusal {
  const value = parseEndpointSlice(object)
  if (!isRefusal(value)) throw new Error('was accepted')
  return value
}

const one = (fields: Fields) => parsed(slice('web-1', 'web', [fields]))

describe('parseEndpointSlice', () => {
  it('reads absent conditions, hints and targets as no trouble', () => {
    expect(one({ addresses: ['10.1.0.1'] }).endpoints).toEqual([
      {
        ip: ip('10.1.0.1'),
        traits: {
          nodeName: '',
          conditions: { ready: true, serving: true, terminating: false },
          hints: { forZones: [], forNodes: [] },
        },
      },
    ])
    expect(
      one({ addresses: ['10.1.0.1'], conditions: null, hints: null, nodeName: null, targetRef: null })
        .endpoints,
    ).toHaveLength(1)
  })

  it.each([{ addresses: [] }, {}, { addresses: null }])(
    'passes over an endpoint without addresses: %j',
    fields => {
      expect(one(fields)).toMatchObject({ endpoints: [], refusals: [] })
    },
  )

  it('keeps the names of pods as one text, in the order of the endpoints', () => {
    const named = (address: string, name: unknown) => ({ addresses: [address], targetRef: { name } })
    const sorted = [named('10.1.0.1', 'a'), { addresses: [] }, named('10.1.0.2', 'b')]
    expect(parseEndpointSlice(slice('web-1', 'web', sorted))).toMatchObject({ targetNames: 'a,b' })
    const untidy = [named('10.1.0.3', 'c'), named('10.1.0.2', 'b,x'), { addresses: ['10.1.0.1'] }]
    expect(parseEndpointSlice(slice('web-1', 'web', untidy))).toMatchObject({ targetNames: ',,c' })
    const unnamed = slice('web-1', 'web', [{ addresses: ['10.1.0.1'] }])
    expect(parseEndpointSlice(unnamed)).toMatchObject({ targetNames: undefined })
  })

  it('sorts endpoints by address, those of one address as they come', () => {
    const uid = (text: string) => ({ targetRef: { uid: text } })
    const { endpoints, targetUids } = parsed(
      slice('web-1', 'web', [
        endpoint('10.1.0.9', uid('a')),
        endpoint('10.1.0.10', uid('b')),
        endpoint('10.1.0.9', uid('c')),
        endpoint('9.255.255.255', uid('d')),
      ]),
    )
    expect(texts(endpoints.map(its => its.ip))).toEqual([
      '9.255.255.255',
      '10.1.0.9',
      '10.1.0.9',
      '10.1.0.10',
    ])
    expect(targetUids).toBe('d,a,c,b')
  })

  it('keeps the UIDs of pods apart, whatever is in them', () => {
    const uidsOf = (...uids: string[]) =>
      parsed(
        slice(
          'web-1',
          'web',
          uids.map((uid, at) => endpoint(`10.1.0.${at}`, { targetRef: { uid } })),
        ),
      ).targetUids?.split(',')
    expect(uidsOf('a,b', 'a%2Cb')).toHaveLength(2)
    expect(new Set(uidsOf('a,b', 'a%2Cb', 'a%252Cb', ''))).toHaveProperty('size', 4)
    expect(uidsOf('', '')).toBeUndefined()
  })

  it('shares equal traits of endpoints and equal lists of ports between slices', () => {
    const pool = new ValuePool()
    const read = (name: string, hints: object, port = 80) => {
      const fields = endpoint('10.1.0.1', { nodeName: 'node-1', hints })
      const value = parseEndpointSlice(slice(name, 'web', [fields], { ports: [{ name: '', port }] }), pool)
      if (isRefusal(value)) throw new Error('refused')
      return { traits: value.endpoints[0]?.traits, ports: value.ports }
    }
    const first = read('web-1', { forZones: [{ name: 'a' }] })
    const same = read('web-2', { forZones: [{ name: 'a' }] })
    const other = read('web-3', { forZones: [{ name: 'b' }] }, 81)
    expect(same.traits).toBe(first.traits)
    expect(same.ports).toBe(first.ports)
    expect(other.traits?.hints.forZones).toEqual(['b'])
    expect(other.ports).toEqual([{ name: '', protocol: 'TCP', port: 81 }])
  })

  it.each([
    [{ ready: true }, { ready: true, serving: true, terminating: false }],
    [
      { ready: false, serving: null },
      { ready: false, serving: true, terminating: false },
    ],
    [
      { serving: false, terminating: true },
      { ready: true, serving: false, terminating: true },
    ],
    [
      { ready: false, serving: false, terminating: false },
      { ready: false, serving: false, terminating: false },
    ],
  ])('reads conditions %j as %j', (conditions, read) => {
    expect(one({ addresses: ['10.1.0.1'], conditions }).endpoints[0]?.traits.conditions).toEqual(read)
  })

  it('ignores hints that are not names', () => {
    expect(
      one(endpoint('10.1.0.1', { hints: { forZones: [{}, null, { name: 7 }, { name: 'a' }] } })).endpoints[0]
        ?.traits.hints.forZones,
    ).toEqual(['a'])
  })

  it.each([
    ['10.1.0.1', '10.1.0.1'],
    ['010.001.0.1', '10.1.0.1'],
  ])('reads %s as %s (I-10)', (text, canonical) => {
    expect(texts(one(endpoint(text)).endpoints.map(its => its.ip))).toEqual([canonical])
  })
})

describe('parseEndpointSlice refuses the smallest unit', () => {
  it.each([
    ['IPv4', '10.1.0.1', '127.0.0.1', 'a loopback address, which every node has for itself'],
    ['IPv4', '10.1.0.1', 'fd00::1', 'an IPv6 address where an IPv4 one belongs'],
    ['IPv6', 'fd00::1', '10.1.0.1', 'an IPv4 address where an IPv6 one belongs'],
  ])('an endpoint of an %s slice, beside %s: %s (I-03)', (addressType, good, bad, reason) => {
    const value = parsed(slice('web-1', 'web', [endpoint(bad), endpoint(good)], { addressType }))
    expect(texts(value.endpoints.map(its => its.ip))).toEqual([good])
    expect(refusalLines(value)).toEqual([
      `EndpointSlice ns/web-1: endpoints[0].addresses[0] = ${bad}: ${reason}`,
    ])
  })

  it.each<[Fields, string]>([
    [
      { ports: [{ port: 8080 }] },
      'ports[0].name = nothing: missing; name: "" means the unnamed port of a Service',
    ],
    [
      { ports: [{ name: null, port: 8080 }] },
      'ports[0].name = null: missing; name: "" means the unnamed port of a Service',
    ],
    [
      { ports: [{ name: 'a' }] },
      'ports[0].port = nothing: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ name: 'a', port: 0 }] },
      'ports[0].port = 0: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ name: 'a', port: 1, protocol: 'tcp' }] },
      'ports[0].protocol = tcp: not a protocol of Services; TCP, UDP and SCTP are accepted',
    ],
    [{ ports: [null] }, 'ports[0] = null: not an object'],
    [{ endpoints: [null] }, 'endpoints[0] = null: not an object'],
    [{ endpoints: [{ addresses: '10.1.0.1' }] }, 'endpoints[0].addresses = 10.1.0.1: not a list; ignored'],
    [
      { endpoints: [{ addresses: [7] }] },
      'endpoints[0].addresses[0] = 7: not text; an IP address is a string',
    ],
    [
      { endpoints: [endpoint('10.1.0.1', { conditions: { ready: 'yes' } })] },
      'endpoints[0].conditions.ready = yes: not a condition; true, false and null are accepted',
    ],
  ])('of %j', (rest, line) => {
    const value = parsed(slice('web-1', 'web', [], rest))
    expect(refusalLines(value)).toEqual([`EndpointSlice ns/web-1: ${line}`])
    expect([...value.endpoints, ...value.ports.filter(its => its.port === 0)]).toEqual([])
  })
})

describe('parseEndpointSlice refuses the whole object', () => {
  it.each<[Fields, string, string]>([
    [slice('web-1', 'web', [], { addressType: 'FQDN' }), 'addressType', 'FQDN'],
    [slice('web-1', 'web', [], { addressType: undefined }), 'addressType', 'nothing'],
    [
      slice('web-1', 'web', [], { metadata: { labels: {} } }),
      'metadata.labels[kubernetes.io/service-name]',
      'nothing',
    ],
    [slice('web-1', 'a/b', []), 'metadata.labels[kubernetes.io/service-name]', 'a/b'],
    [slice('Web', 'web', []), 'metadata.name', 'Web'],
  ])('%#: for %s = %s', (object, field, value) => {
    expect(refused(object)).toMatchObject({ field, value })
  })

  it('but takes names with dots', () => {
    expect(parsed(slice('web.1', 'web', [])).key).toBe('ns/web.1')
  })
})
