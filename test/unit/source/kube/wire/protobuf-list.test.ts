import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { createListReader } from '../../../../../src/source/kube/wire/encodings.ts'
import type { ApiObject } from '../../../../../src/source/kube/wire/tables.ts'
import { encodeStatus, enveloped } from '../../../../support/apiserver/encode-protobuf.ts'
import { pieces } from './api-arbitraries.ts'
import { listBody, OBJECT_BYTES_MAX, PROTOBUF, readList } from './bodies.ts'

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

  it('may be empty', () => {
    expect(readList(PROTOBUF, [listBody(PROTOBUF, 'Service', [])])).toEqual({
      items: [],
      metadata: { resourceVersion: '7', continue: '' },
    })
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
