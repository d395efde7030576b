import { describe, expect, it } from 'vitest'
import { ObjectMaker } from '../../../src/api/object-maker.ts'
import { type ApiObject, SET_ENDPOINTS, SET_SERVICES } from '../../../src/api/state.ts'
import { encodeLocalv1, framed } from '../../support/api/localv1.ts'

const service = (path: string) => ({ set: SET_SERVICES, path }) as const
const endpoint = (path: string) => ({ set: SET_ENDPOINTS, path }) as const
const frameOf = ({ memory, start, end }: ApiObject): Buffer => memory.subarray(start, end)

function expected(set: 1 | 2, path: string, json: object): Buffer {
  const Bytes = encodeLocalv1(set === SET_SERVICES ? 'Service' : 'Endpoint', json)
  return framed(encodeLocalv1('OpItem', { Set: { Ref: { Set: set, Path: path }, Bytes } }))
}

/** Of a text of some hundred bytes instead of one: its length, and those of the two messages around it. */
const LONGER_PREFIXES = 3

describe('objects of a whole state', () => {
  it('stand behind each other, each set by itself', () => {
    const maker = new ObjectMaker({ isWhole: true })
    const [a, a1, b, b1] = [
      maker.make(service('ns/a'), { Name: 'a' }),
      maker.make(endpoint('ns/a/1'), { Hostname: 'one' }),
      maker.make(service('ns/b'), { Name: 'b' }),
      maker.make(endpoint('ns/b/1'), { Hostname: 'two' }),
    ]
    expect(b).toMatchObject({ memory: a.memory, start: a.end })
    expect(b1).toMatchObject({ memory: a1.memory, start: a1.end })
    expect(a1.memory).not.toBe(a.memory)
    expect(frameOf(a)).toEqual(expected(1, 'ns/a', { Name: 'a' }))
    expect(frameOf(b)).toEqual(expected(1, 'ns/b', { Name: 'b' }))
    expect(frameOf(b1)).toEqual(expected(2, 'ns/b/1', { Hostname: 'two' }))
  })

  it('are whole, however long: where one does not fit, other memory begins', () => {
    const maker = new ObjectMaker({ isWhole: true })
    const made = [40_000, 10, 40_000, 200_000, 10].map((length, index) => {
      const json = { Hostname: 'h'.repeat(length) }
      const object = maker.make(endpoint(`ns/a/${index}`), json)
      return [object, expected(2, `ns/a/${index}`, json)] as const
    })
    for (const [object, frame] of made) expect(frameOf(object).equals(frame)).toBe(true)
    const [first, second, third, fourth, fifth] = made.map(([object]) => object)
    expect(second?.memory).toBe(first?.memory)
    expect(third?.memory).not.toBe(first?.memory)
    expect(fourth?.memory.length).toBe(made[3]?.[1].length)
    expect(fifth?.memory).not.toBe(fourth?.memory)
  })
})

describe('shared memory', () => {
  it.each([-2, -1, 0, 1, 2])('is filled to its last byte, and no further: %d bytes', over => {
    const [long, short] = [{ Hostname: 'h'.repeat(65_000) }, { Hostname: 'h' }]
    const lengths = [long, short].map((json, index) => expected(2, `ns/a/${index}`, json).length)
    const left = 65_536 - (lengths[0] ?? 0) - (lengths[1] ?? 0)
    const second = { Hostname: 'h'.repeat(1 + left + over - LONGER_PREFIXES) }
    const maker = new ObjectMaker({ isWhole: true })
    const made = [long, second].map((json, index) => maker.make(endpoint(`ns/a/${index}`), json))
    expect(made.map(frameOf)).toEqual([long, second].map((json, i) => expected(2, `ns/a/${i}`, json)))
    expect(made[1]?.end).toBe(over <= 0 ? 65_536 + over : (made[1]?.end ?? 0) - (made[1]?.start ?? 0))
    expect(made[1]?.memory === made[0]?.memory).toBe(over <= 0)
  })
})

describe('objects of a change', () => {
  it('have memory of their own, of their length', () => {
    const maker = new ObjectMaker({ isWhole: false })
    const made = ['1', '2'].map(key => maker.make(endpoint(`ns/a/${key}`), { Hostname: key }))
    for (const object of made) expect(object.memory.buffer.byteLength).toBe(object.end)
    expect(made.map(frameOf)).toEqual(['1', '2'].map(key => expected(2, `ns/a/${key}`, { Hostname: key })))
  })

  it('are those that are known when they say the same', () => {
    const known = new ObjectMaker({ isWhole: true }).make(endpoint('ns/a/1'), { Hostname: 'one' })
    const maker = new ObjectMaker({ isWhole: false })
    expect(maker.make(endpoint('ns/a/1'), { Hostname: 'one' }, known)).toBe(known)
    const other = maker.make(endpoint('ns/a/1'), { Hostname: 'two' }, known)
    expect(frameOf(other)).toEqual(expected(2, 'ns/a/1', { Hostname: 'two' }))
    expect(frameOf(known)).toEqual(expected(2, 'ns/a/1', { Hostname: 'one' }))
  })
})
