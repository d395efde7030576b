import { describe, expect, it } from 'vitest'
import { rfc3339, tableFor } from '../../../../../src/source/kube/wire/tables.ts'
import { decodeMessage } from '../../../../../src/wire/protobuf/decoder.ts'

const VARINT_MAX = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]

/** A Node whose metadata has only this creationTimestamp. */
function created(...time: readonly number[]): unknown {
  const node = [0x0a, 2 + time.length, 0x42, time.length, ...time]
  return decodeMessage(tableFor({ kind: 'Node', objectBytesMax: 0 }), Buffer.from(node))
}

describe('a time', () => {
  it('is the text that RFC 3339 has for it', () => {
    const at = (creationTimestamp: string) => ({ metadata: { creationTimestamp } })
    expect(created(0x10, 0)).toEqual(at('1970-01-01T00:00:00Z'))
    expect(created(0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06)).toEqual(at('2023-11-14T22:13:20Z'))
    expect(created(0x08, ...VARINT_MAX)).toEqual(at('1969-12-31T23:59:59Z'))
    expect(() => created(0x08, ...VARINT_MAX.slice(0, 8), 0x7f)).toThrow('seconds from 1970')
  })

  it('goes from the year 0 to the year 9999', () => {
    const [first, last] = ['0000-01-01T00:00:00Z', '9999-12-31T23:59:59Z']
    for (const text of [first, last]) expect(rfc3339(Date.parse(text) / 1000)).toBe(text)
    for (const seconds of [Date.parse(first) / 1000 - 1, Date.parse(last) / 1000 + 1, 2 ** 63, Number.NaN])
      expect(rfc3339(seconds)).toBeUndefined()
  })

  it('is absent where it is empty, as Go writes the zero time', () => {
    expect(created()).toEqual({ metadata: {} })
  })
})
