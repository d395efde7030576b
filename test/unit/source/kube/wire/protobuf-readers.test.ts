import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { createListReader } from '../../../../../src/source/kube/wire/encodings.ts'
import type { ApiObject } from '../../../../../src/source/kube/wire/tables.ts'
import {
  encodeObject,
  encodeStatus,
  encodeWatchEvent,
  enveloped,
  framed,
} from '../../../../support/apiserver/encode-protobuf.ts'
import { encoded } from '../../../../support/apiserver/encode-table.ts'
import { WATCH_EVENT } from '../../../../support/apiserver/encode-tables.ts'
import { pieces } from './api-arbitraries.ts'
import { listBody, OBJECT_BYTES_MAX, PROTOBUF, readList, readWatch } from './bodies.ts'

const LIST_TYPE = { apiVersion: 'v1', kind: 'ServiceList' } as const
const service = (name: string): ApiObject => ({ apiVersion: 'v1', kind: 'Service', metadata: { name } })
const namesOf = (items: readonly ApiObject[]): readonly unknown[] =>
  items.map(item => Object(item.metadata).name)

describe('a list in protobuf', () => {
  it('gives each item as soon as its last byte is there, and its metadata at the end', () => {
    const names: unknown[] = []
    const reader = createListReader(PROTOBUF, {
      kind: 'Service',
      objectBytesMax: OBJECT_BYTES_MAX,
      onItem: item => names.push(...namesOf([item])),
    })
    const body = listBody(PROTOBUF, 'Service', [service('first'), service('second')], {
      resourceVersion: '9007199254740993',
      continue: 'token',
    })
    // Tag and length of the item, of its metadata, and of the name.
    const behindFirst = body.indexOf('second') - 6
    reader.push(body.subarray(0, behindFirst - 1))
    expect(names).toEqual([])
    reader.push(body.subarray(behindFirst - 1, behindFirst))
    expect(names).toEqual(['first'])
    reader.push(body.subarray(behindFirst))
    expect(names).toEqual(['first', 'second'])
    expect(reader.end()).toEqual({ resourceVersion: '9007199254740993', continue: 'token' })
  })

  it('is refused when it is of another kind, a Table or a Status', () => {
    const read = (body: Uint8Array) => () => readList(PROTOBUF, [body])
    expect(read(listBody(PROTOBUF, 'Node', [service('a')]))).toThrow(
      'a body of kind NodeList in v1 where a ServiceList belongs',
    )
    const table = enveloped({ apiVersion: 'meta.k8s.io/v1', kind: 'Table' }, Buffer.from([0x0a, 0]))
    expect(read(table)).toThrow('a body of kind Table in meta.k8s.io/v1')
    expect(read(encodeStatus({ code: 410 }))).toThrow('a body of kind Status')
    expect(read(enveloped({}, new Uint8Array()))).toThrow(WireError)
    const older = listBody(PROTOBUF, 'EndpointSlice', [{ apiVersion: 'discovery.k8s.io/v1beta1' }])
    expect(() => readList(PROTOBUF, [older], { kind: 'EndpointSlice' })).toThrow('discovery.k8s.io/v1beta1')
  })

  it('is refused when it is no protobuf of the API', () => {
    expect(() => readList(PROTOBUF, [Buffer.from('{"kind":"ServiceList"}')])).toThrow('its first four bytes')
  })

  it('is refused when an object is larger than is accepted, before it has arrived', () => {
    const body = listBody(PROTOBUF, 'Service', [service('x'.repeat(5_000))])
    const head = body.subarray(0, 100)
    expect(() => readList(PROTOBUF, [head], { objectBytesMax: 4_000 })).toThrow(
      /an object of \d+ bytes; 4000/,
    )
    expect(readList(PROTOBUF, [body], { objectBytesMax: 6_000 }).items).toHaveLength(1)
  })

  it('is refused when an item is longer than the list', () => {
    const raw = Buffer.from([0x12, 0x05, 0x0a])
    expect(() => readList(PROTOBUF, [enveloped(LIST_TYPE, raw)])).toThrow('longer than the list')
  })

  it('is refused when it is encoded once more', () => {
    const body = listBody(PROTOBUF, 'Service', [])
    const gzipped = Buffer.concat([body.subarray(0, -4), Buffer.from([0x1a, 4]), Buffer.from('gzip')])
    expect(() => readList(PROTOBUF, [gzipped])).toThrow('gzip')
  })

  it('is refused when a second one follows', () => {
    const body = listBody(PROTOBUF, 'Service', [])
    expect(() => readList(PROTOBUF, [Buffer.concat([body, Buffer.from([0x12, 0])])])).toThrow('a second list')
  })

  it('skips unknown fields', () => {
    const unknown = Buffer.from([
      0xf8, 0x07, 0x96, 0x01, 0xfd, 0x07, 1, 2, 3, 4, 0xf9, 0x07, 1, 2, 3, 4, 5, 6, 7, 8,
    ])
    const metadata = Buffer.from([0x0a, 0x03, 0x12, 0x01, 0x37])
    const body = enveloped(LIST_TYPE, Buffer.concat([unknown, metadata, unknown]))
    for (const length of [1, 1_000]) {
      const { metadata } = readList(PROTOBUF, pieces(Buffer.concat([body, unknown]), [length]))
      expect(metadata).toEqual({ resourceVersion: '7', continue: '' })
    }
  })

  it('propagates errors thrown by the consumer', () => {
    const reader = createListReader(PROTOBUF, {
      kind: 'Service',
      objectBytesMax: OBJECT_BYTES_MAX,
      onItem: () => {
        throw new RangeError('taken')
      },
    })
    expect(() => reader.push(listBody(PROTOBUF, 'Service', [service('a')]))).toThrow(new RangeError('taken'))
  })
})

const NAMED = service('a')

const event = (type: string, raw: Uint8Array): Buffer => encoded(WATCH_EVENT, { type, object: { raw } })

describe('a watch in protobuf', () => {
  it('A7: gives bookmarks with their version and annotations', () => {
    const annotations = { 'k8s.io/initial-events-end': 'true', other: 'x' }
    const bookmark = { kind: 'Service', metadata: { resourceVersion: '9', annotations } }
    const [read] = readWatch(PROTOBUF, [encodeWatchEvent('BOOKMARK', bookmark)])
    expect(read?.type).toBe('BOOKMARK')
    expect(read?.object.metadata).toEqual({
      resourceVersion: '9',
      annotations: { 'k8s.io/initial-events-end': 'true' },
    })
  })

  it('A26: gives events of unknown types, and of objects of another kind their type alone', () => {
    const [unknown] = readWatch(PROTOBUF, [encodeWatchEvent('FOO', NAMED)])
    expect(unknown).toMatchObject({ type: 'FOO', object: NAMED })
    const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'n' } }
    const table = event(
      'ADDED',
      enveloped({ apiVersion: 'meta.k8s.io/v1', kind: 'Table' }, Buffer.from('junk')),
    )
    const read = readWatch(PROTOBUF, [encodeWatchEvent('ADDED', node), framed(table)])
    expect(read.map(({ object }) => object)).toEqual([
      { apiVersion: 'v1', kind: 'Node' },
      { apiVersion: 'meta.k8s.io/v1', kind: 'Table' },
    ])
  })

  it('understands events in an envelope', () => {
    const bytes = enveloped({ apiVersion: 'v1', kind: 'WatchEvent' }, event('ADDED', encodeObject(NAMED)))
    expect(readWatch(PROTOBUF, [framed(bytes)])).toEqual(
      readWatch(PROTOBUF, [encodeWatchEvent('ADDED', NAMED)]),
    )
  })

  it('is broken by an event that is larger than is accepted, before it has arrived', () => {
    expect(() => readWatch(PROTOBUF, [Buffer.from([0xff, 0xff, 0xff, 0xff])])).toThrow(WireError)
    expect(() => readWatch(PROTOBUF, [Buffer.from([0, 0, 0, 11])], { objectBytesMax: 10 })).toThrow(
      'an event of 11 bytes; 10 are accepted',
    )
  })

  it('is broken by an event without type or object, or with one that is not enveloped', () => {
    for (const frame of [
      Buffer.alloc(0),
      encoded(WATCH_EVENT, { type: 'ADDED', object: {} }),
      event('', encodeObject(NAMED)),
      event('ADDED', Buffer.from('{"kind":"Service"}')),
      Buffer.from([0x0a, 0x7f]),
    ])
      expect(() => readWatch(PROTOBUF, [framed(frame)])).toThrow(WireError)
  })
})
