import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import { createWatchReader } from '../../../../../src/source/kube/wire/encodings.ts'
import { pieces } from './api-arbitraries.ts'
import { JSON_TYPE, readWatch } from './bodies.ts'

const read = (text: string, lengths: readonly number[] = [1 << 20]) =>
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
      expect(read(text, [length])).toEqual([
        { type: 'ADDED', object: { apiVersion: 'v1', kind: 'Service', name: 'ä\n"😀' } },
        { type: 'FOO', object: { apiVersion: 'v1', kind: 'Service', name: 'ä\n"😀' } },
      ])
  })

  it('leaves errors as they are', () => {
    const object = { kind: 'Status', apiVersion: 'v1', code: 410 }
    expect(read(`${JSON.stringify({ type: 'ERROR', object })}\n`)).toEqual([{ type: 'ERROR', object }])
    expect(read('{"type":"ERROR","object":{}}\n')[0]?.object).toEqual({})
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
      expect(() => read(`${line}\n`), line).toThrow(WireError)
    const bad = Buffer.from('{"type":"ADDED","object":{"a":"\xff"}}\n', 'latin1')
    expect(() => readWatch(JSON_TYPE, [bad])).toThrow('not UTF-8')
  })

  it('F24: is broken by a line that is larger than is accepted, before it has ended', () => {
    const reader = createWatchReader(JSON_TYPE, { kind: 'Service', objectBytesMax: 1_000 })
    reader.push(Buffer.alloc(600, 'x'))
    expect(() => reader.push(Buffer.alloc(600, 'x'))).toThrow('1000 are accepted')
  })
})
