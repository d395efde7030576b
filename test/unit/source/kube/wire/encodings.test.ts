import { readdirSync, readFileSync } from 'node:fs'
import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { parseObject } from '../../../../../src/model/parse.ts'
import { createListReader, createWatchReader } from '../../../../../src/source/kube/wire/encodings.ts'
import { API_OBJECTS, cuts, KINDS, pieces } from './api-arbitraries.ts'
import { eventBytes, listBody, readList, readWatch, TYPES } from './bodies.ts'

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
