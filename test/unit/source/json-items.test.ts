import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parseJson } from '../../../src/source/file/read-objects.ts'
import { JsonItems, JsonTextError } from '../../../src/source/json-items.ts'
import { runs } from '../../support/runs.ts'

/** Feeds `text` in pieces of `size` bytes. */
function read(text: string, size = 1 << 20) {
  const items = new JsonItems(1 << 20)
  const bytes = Buffer.from(text)
  const parts = []
  for (let at = 0; at < bytes.length; at += size)
    for (const { kind, bytes: its, line } of items.push(bytes.subarray(at, at + size))) {
      const text = its.toString()
      parts.push({ kind, value: parseJson(text, line), line, text })
    }
  const { unfinished } = items
  if (unfinished !== undefined)
    throw new JsonTextError(`the end of the object that begins at line ${unfinished.from}`, unfinished.at)
  return parts
}

function lineOfError(text: string, size?: number): number {
  try {
    read(text, size)
  } catch (error) {
    if (error instanceof JsonTextError) return error.line
    throw error
  }
  throw new Error('no error')
}

describe('JsonItems', () => {
  it('gives the items of a List one by one, then the list without them', () => {
    expect(read('{"kind":"List","items":[{"a":1},\n{"b":{"c":[2]}}],"metadata":{}}')).toEqual([
      { kind: 'item', value: { a: 1 }, line: 1, text: '{"a":1}' },
      { kind: 'item', value: { b: { c: [2] } }, line: 2, text: '{"b":{"c":[2]}}' },
      {
        kind: 'document',
        value: { kind: 'List', items: [], metadata: {} },
        line: 1,
        text: '{"kind":"List","items":[],"metadata":{}}',
      },
    ])
  })

  it('gives an object without items whole, and several objects after each other', () => {
    expect(read('{"a":{"items":[{"x":1}]}}\n{"b":"items"}').map(({ value }) => value)).toEqual([
      { a: { items: [{ x: 1 }] } },
      { b: 'items' },
    ])
  })

  it('is not misled by brackets, quotes and the word items within strings', () => {
    const list = { kind: 'items', items: [{ text: 'a"]}\\' }, { '"items": [': '{' }] }
    expect(read(JSON.stringify(list)).map(({ value }) => value)).toEqual([
      ...list.items,
      { kind: 'items', items: [] },
    ])
  })

  it('gives the same for any lists and any size of the pieces', () => {
    const item = fc.dictionary(fc.string({ unit: 'grapheme' }), fc.jsonValue())
    fc.assert(
      fc.property(fc.array(item), fc.integer({ min: 1, max: 40 }), fc.boolean(), (items, size, pretty) => {
        const text = JSON.stringify({ apiVersion: 'v1', items, kind: 'List' }, undefined, pretty ? 2 : 0)
        const values = read(text, size).map(({ value }) => value)
        const expected = JSON.parse(JSON.stringify([...items, { apiVersion: 'v1', items: [], kind: 'List' }]))
        expect(values).toEqual(expected)
      }),
    )
  })

  it('never takes a text that JSON.parse refuses', () => {
    const mutilated = fc.tuple(fc.nat(), fc.constantFrom('', ',', '}', ']', '"', '{', ':', 'x'))
    fc.assert(
      fc.property(mutilated, fc.integer({ min: 1, max: 9 }), ([at, insert], size) => {
        const whole = '{"kind":"List","items":[{"a":[1,{}]},{"b":"c"}],"m":{"items":[1]}}'
        const cut = at % whole.length
        const text = whole.slice(0, cut) + insert + whole.slice(cut + 1)
        if (isJson(text)) return
        expect(() => read(text, size)).toThrow(JsonTextError)
      }),
      { numRuns: runs(1000) },
    )
  })

  it('skips a byte order mark', () => {
    expect(read('\ufeff{"a":1}').map(({ value }) => value)).toEqual([{ a: 1 }])
  })

  it('names the line of a mistake', () => {
    // Node says where within an object only in some versions: the line where it begins otherwise.
    expect([3, 4]).toContain(lineOfError('{"items":[\n{"a":1},\n{"a":\n x}\n]}'))
    expect(lineOfError('{"a":1}\n\n[]')).toBe(3)
    expect(lineOfError('{"items":[{"a":1}\n{"b":2}]}')).toBe(2)
  })

  it('says on one line what is wrong', () => {
    expect(() => read('{"items":[{"a":\n x}]}')).toThrow(
      /^invalid JSON: Unexpected token '?x'?, in the object that begins at line 1$/,
    )
  })

  it('says where an object began that has no end, and where the text ends', () => {
    expect(() => read('\n\n{"items":[{"a":1},')).toThrow('the object that begins at line 3')
    for (const text of ['\n{"items":[{"a":1},\n\n', '\n{"items":[{"a":1},\n{"b":\n', '\n{"a":\n{\n'])
      for (const size of [1, 100]) expect(lineOfError(text, size)).toBe(4)
  })
})

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}
