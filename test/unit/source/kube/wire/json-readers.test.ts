import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { createListReader, createWatchReader } from '../../../../../src/source/kube/wire/encodings.ts'
import type { ApiObject } from '../../../../../src/source/kube/wire/tables.ts'
import { pieces } from './api-arbitraries.ts'
import { JSON_TYPE, OBJECT_BYTES_MAX, readList, readWatch } from './bodies.ts'

const TYPE = '"kind":"ServiceList","apiVersion":"v1"'
const METADATA = '"metadata":{"resourceVersion":"7","continue":"t"}'
const read = (text: string, lengths: readonly number[] = [1 << 20]) =>
  readList(JSON_TYPE, pieces(Buffer.from(text), lengths))

describe('a list in JSON', () => {
  it('gives each item as soon as its last byte is there, and its metadata at the end', () => {
    const items: ApiObject[] = []
    const reader = createListReader(JSON_TYPE, {
      kind: 'Service',
      objectBytesMax: OBJECT_BYTES_MAX,
      onItem: item => items.push(item),
    })
    reader.push(Buffer.from(`{${TYPE},${METADATA},"items":[{"a":1`))
    expect(items).toHaveLength(0)
    reader.push(Buffer.from('}'))
    expect(items).toEqual([{ apiVersion: 'v1', kind: 'Service', a: 1 }])
    reader.push(Buffer.from(']}\n'))
    expect(reader.end()).toEqual({ resourceVersion: '7', continue: 't' })
  })

  it('may be empty, or have null where its items belong', () => {
    for (const items of ['[]', '[ ]', 'null'])
      expect(read(`{${TYPE},${METADATA},"items":${items}}`)).toEqual({
        items: [],
        metadata: { resourceVersion: '7', continue: 't' },
      })
  })

  it('is refused when it is of another kind, a Table or a Status', () => {
    const items = '"items":[{"a":1}]'
    expect(() => read(`{"kind":"NodeList","apiVersion":"v1",${items}}`)).toThrow(
      'a body of kind NodeList in v1 where a ServiceList belongs',
    )
    expect(() => read(`{${items},"kind":"NodeList","apiVersion":"v1"}`)).toThrow('kind NodeList')
    expect(() => read('{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{}]}')).toThrow('kind Table')
    expect(() => read('{"kind":"Status","apiVersion":"v1"}')).toThrow('kind Status')
    expect(() => read('{}')).toThrow('kind nothing')
  })

  it('is rejected before any item is delivered when it first names another kind', () => {
    const text = '{"kind":"NodeList","apiVersion":"v1","items":[{"a":1}]}'
    const reader = createListReader(JSON_TYPE, {
      kind: 'Service',
      objectBytesMax: OBJECT_BYTES_MAX,
      onItem: () => expect.unreachable(),
    })
    expect(() => reader.push(Buffer.from(text))).toThrow(WireError)
  })

  it('is refused when it is not JSON', () => {
    for (const text of [
      '',
      ' ',
      '[]',
      'no',
      `{${TYPE}} {}`,
      `{${TYPE}}}`,
      `{${TYPE},"items":[1]}`,
      `{${TYPE},"items":[{},]}`,
      `{${TYPE},"items":[,{}]}`,
      `{${TYPE},"items":[{}{}]}`,
      `{${TYPE},"items":[{"a":}]}`,
      `{${TYPE},"items":[{"a":"\u0000"}]}`,
      `{${TYPE},"items":[{]]}`,
      `{${TYPE},\u0000"items":[]}`,
      `{${TYPE},"\\u0069tems":[{}]}`,
    ])
      for (const length of [1, 1_000]) expect(() => read(text, [length]), text).toThrow(WireError)
  })

  it('is refused when it is not UTF-8', () => {
    const [before, behind] = `{${TYPE},"items":[{"a":"?"}]}`.split('?')
    const body = Buffer.concat([
      Buffer.from(before ?? ''),
      Buffer.from([0xc3, 0x28]),
      Buffer.from(behind ?? ''),
    ])
    expect(() => readList(JSON_TYPE, [body])).toThrow('not UTF-8, in an object of 10 bytes')
  })

  it('is refused when an object, or what stands around them, is larger than is accepted', () => {
    const options = { objectBytesMax: 100 }
    const sized = (length: number) =>
      Buffer.from(`{${TYPE},"metadata":{"resourceVersion":"7"},"items":[{"a":"${'x'.repeat(length)}"}]}`)
    expect(readList(JSON_TYPE, [sized(92)], options).items).toHaveLength(1)
    for (const piece of [sized(93), sized(97).subarray(0, -4), sized(10_000).subarray(0, 5_000)])
      expect(() => readList(JSON_TYPE, [piece], options)).toThrow('an object of more than 100 bytes')
    const rows = Buffer.from(`{"kind":"Table","rows":["${'x'.repeat(100)}`)
    expect(() => readList(JSON_TYPE, [rows], options)).toThrow('100 bytes without its items')
  })

  it('is refused when something follows it, also where that has no end', () => {
    const text = `{${TYPE},${METADATA},"items":[]}`
    for (const more of ['{', '{"items":[{"a":', text])
      expect(() => readList(JSON_TYPE, [Buffer.from(text + more)]), more).toThrow('data after the end')
  })
})

const readEvents = (text: string, lengths: readonly number[] = [1 << 20]) =>
  readWatch(JSON_TYPE, pieces(Buffer.from(text), lengths))

describe('a watch in JSON', () => {
  it('gives each event as soon as its line has ended', () => {
    const reader = createWatchReader(JSON_TYPE, { kind: 'Service', objectBytesMax: 1_000 })
    expect(
      reader.push(Buffer.from('{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1"}}')),
    ).toEqual([])
    expect(reader.push(Buffer.from('\n'))).toEqual([
      { type: 'ADDED', object: { apiVersion: 'v1', kind: 'Service' } },
    ])
    expect(() => reader.end()).not.toThrow()
  })

  it('may be cut anywhere, with lines of either ending and empty ones between', () => {
    const lines = ['ADDED', 'FOO'].map(type => JSON.stringify({ type, object: { name: 'ä\n"😀' } }))
    const text = `${lines[0]}\r\n\r\n \n${lines[1]}\n`
    for (const length of [1, 2, 3, 7, 1_000])
      expect(readEvents(text, [length])).toEqual([
        { type: 'ADDED', object: { apiVersion: 'v1', kind: 'Service', name: 'ä\n"😀' } },
        { type: 'FOO', object: { apiVersion: 'v1', kind: 'Service', name: 'ä\n"😀' } },
      ])
  })

  it('leaves errors as they are', () => {
    const object = { kind: 'Status', apiVersion: 'v1', code: 410 }
    expect(readEvents(`${JSON.stringify({ type: 'ERROR', object })}\n`)).toEqual([{ type: 'ERROR', object }])
    expect(readEvents('{"type":"ERROR","object":{}}\n')[0]?.object).toEqual({})
  })

  it('A27, F24: is broken by a line that is not an event', () => {
    for (const line of [
      '{"type":"ADDED","obj',
      '[]',
      '1',
      '{}',
      '{"type":1,"object":{}}',
      '{"type":"ADDED","object":null}',
      '{"type":"ADDED","object":{}}{}',
      '{"type":"ADDED","object":{"a":"\u0000"}}',
      '\u0000',
    ])
      expect(() => readEvents(`${line}\n`), line).toThrow(WireError)
    const bad = Buffer.from('{"type":"ADDED","object":{"a":"\xff"}}\n', 'latin1')
    expect(() => readWatch(JSON_TYPE, [bad])).toThrow('not UTF-8')
  })

  it('F24: is broken by a line that is larger than is accepted, before it has ended', () => {
    const reader = createWatchReader(JSON_TYPE, { kind: 'Service', objectBytesMax: 1_000 })
    reader.push(Buffer.alloc(600, 'x'))
    expect(() => reader.push(Buffer.alloc(600, 'x'))).toThrow('1000 are accepted')
  })
})
