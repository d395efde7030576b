import { readdirSync, readFileSync } from 'node:fs'
import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { parseObject } from '../../../../../src/model/parse.ts'
import {
  acceptFor,
  createListReader,
  createWatchReader,
  readStatus,
  statusOf,
  withoutManagedFields,
} from '../../../../../src/source/kube/wire/encodings.ts'
import { encodeObject, encodeStatus } from '../../../../support/apiserver/encode-protobuf.ts'
import { API_OBJECTS, cuts, KINDS, pieces } from './api-arbitraries.ts'
import { eventBytes, JSON_TYPE, listBody, PROTOBUF, readList, readWatch, TYPES } from './bodies.ts'

describe.each(KINDS)('an object of kind %s', kind => {
  const objects = fc.array(API_OBJECTS[kind], { minLength: 1, maxLength: 5 })

  it('says the same in a list, whether in protobuf or in JSON and wherever that is cut', () => {
    fc.assert(
      fc.property(objects, cuts, (objects, cuts) => {
        const [a, b] = TYPES.map(type =>
          readList(type, pieces(listBody(type, kind, objects), cuts), { kind }),
        )
        const [whole, parsed] = [a, b].map(list => list?.items.map(item => parseObject(item)))
        expect(whole).toEqual(parsed)
        expect(parsed).toEqual(objects.map(object => parseObject(object)))
      }),
    )
  })

  it('says the same in a watch', () => {
    fc.assert(
      fc.property(objects, cuts, (objects, cuts) => {
        const events = objects.map(object => ({ type: 'MODIFIED', object }))
        for (const type of TYPES) {
          const body = Buffer.concat(events.map(event => eventBytes(type, event)))
          const read = readWatch(type, pieces(body, cuts), { kind })
          expect(read.map(event => parseObject(event.object))).toEqual(objects.map(o => parseObject(o)))
          expect(read.map(event => event.type)).toEqual(events.map(event => event.type))
        }
      }),
    )
  })
})

describe('what is kept of an object', () => {
  it('has every label and annotation that the model asks for', () => {
    const model = new URL('../../../../../src/model/', import.meta.url)
    const tables = readFileSync(new URL('../source/kube/wire/tables.ts', model), 'utf8')
    const keys = readdirSync(model)
      .flatMap(file => [...readFileSync(new URL(file, model), 'utf8').matchAll(/'([a-z.]+\.io\/[a-z-]+)'/g)])
      .map(([, key]) => key)
    expect(keys.length).toBeGreaterThanOrEqual(6)
    for (const key of keys) expect(tables).toContain(`'${key}'`)
  })

  it('has its apiVersion and kind, which a list leaves out', () => {
    for (const type of TYPES) {
      const items = [
        { apiVersion: 'networking.k8s.io/v1beta1', kind: 'ServiceCIDR', metadata: { name: 'a' } },
      ]
      const [item] = readList(type, [listBody(type, 'ServiceCIDR', items)], { kind: 'ServiceCIDR' }).items
      expect(item).toMatchObject(items[0] ?? {})
    }
  })
})

describe('a body of another type', () => {
  const options = { kind: 'Service', objectBytesMax: 100, onItem: () => undefined } as const

  it('is refused by its name', () => {
    for (const type of ['application/yaml', 'text/html; charset=utf-8', 'application/jsonlines', '']) {
      expect(() => createListReader(type, options)).toThrow(WireError)
      expect(() => createWatchReader(type, options)).toThrow(WireError)
    }
    expect(() => createListReader('text/html; charset=utf-8', options)).toThrow('text/html; charset=utf-8')
    expect(() => createListReader('', options)).toThrow('the body has the content type (none)')
  })

  it('is known in spite of parameters and capitals', () => {
    for (const type of ['application/json; charset=utf-8', 'Application/JSON;stream=watch'])
      expect(readWatch(type, [Buffer.from('{"type":"ADDED","object":{}}\n')])).toHaveLength(1)
    expect(readWatch('application/vnd.kubernetes.protobuf;stream=watch', [])).toEqual([])
  })
})

describe('acceptFor', () => {
  it('asks for the configured type, and for JSON from servers that have nothing else', () => {
    expect(acceptFor('application/vnd.kubernetes.protobuf')).toBe(
      'application/vnd.kubernetes.protobuf, application/json',
    )
    expect(acceptFor('application/json')).toBe('application/json')
  })

  it('does not ask for what cannot be read', () => {
    expect(acceptFor('application/cbor')).toBe('application/json')
    expect(acceptFor('')).toBe('application/json')
    const protobuf = 'application/vnd.kubernetes.protobuf'
    expect(acceptFor(protobuf, 'application/cbor, application/json;q=0.5')).toBe('application/json;q=0.5')
    expect(acceptFor(protobuf, 'application/cbor')).toBe(
      'application/vnd.kubernetes.protobuf, application/json',
    )
  })

  it('asks for what is configured to be acceptable instead', () => {
    expect(acceptFor('application/json', 'application/vnd.kubernetes.protobuf')).toBe(
      'application/vnd.kubernetes.protobuf',
    )
  })
})

it('managedFields are dropped from each media type, whatever its other parameters', () => {
  expect(withoutManagedFields('application/vnd.kubernetes.protobuf, application/json;q=0.5')).toBe(
    'application/vnd.kubernetes.protobuf;drop=metadata.managedFields, application/json;drop=metadata.managedFields;q=0.5',
  )
  expect(withoutManagedFields('application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1')).toBe(
    'application/json;drop=metadata.managedFields;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1',
  )
})

const tooLarge = {
  apiVersion: 'v1',
  kind: 'Status',
  metadata: {},
  status: 'Failure',
  message: 'Timeout: Too large resource version: 9, current: 1',
  reason: 'Timeout',
  details: {
    causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
    retryAfterSeconds: 1,
  },
  code: 504,
} as const

const jsonOf = (object: unknown): Buffer => Buffer.from(JSON.stringify(object))

describe('a Status', () => {
  it('is read from either encoding', () => {
    const status = {
      code: 504,
      reason: 'Timeout',
      message: 'Timeout: Too large resource version: 9, current: 1',
      causes: ['ResourceVersionTooLarge'],
      retryAfterSeconds: 1,
    }
    expect(readStatus(PROTOBUF, encodeStatus(tooLarge))).toEqual(status)
    expect(readStatus(`${JSON_TYPE}; charset=utf-8`, jsonOf(tooLarge))).toEqual(status)
    expect(statusOf(tooLarge)).toEqual(status)
  })

  it('may be without nearly everything', () => {
    const bare = { apiVersion: 'v1', kind: 'Status' }
    const status = { code: 0, reason: '', message: '', causes: [], retryAfterSeconds: undefined }
    expect(readStatus(PROTOBUF, encodeStatus({}))).toEqual(status)
    expect(readStatus(JSON_TYPE, jsonOf(bare))).toEqual(status)
    const odd = { ...bare, code: '410', reason: 1, details: { causes: [1, {}], retryAfterSeconds: '1' } }
    expect(readStatus(JSON_TYPE, jsonOf(odd))).toEqual(status)
  })

  it('is not what another body is', () => {
    const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a' } }
    expect(readStatus(PROTOBUF, encodeObject(service))).toBeUndefined()
    expect(readStatus(JSON_TYPE, jsonOf(service))).toBeUndefined()
    expect(readStatus('text/html', Buffer.from('<h1>Bad Gateway</h1>'))).toBeUndefined()
    expect(readStatus(JSON_TYPE, Buffer.from('<h1>'))).toBeUndefined()
    expect(readStatus(PROTOBUF, Buffer.from('404 page not found\n'))).toBeUndefined()
  })
})
