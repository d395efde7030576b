import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WireError } from '../../src/base/errors.ts'
import { parseObject } from '../../src/model/parse.ts'
import { readStatus } from '../../src/source/kube/wire/encodings.ts'
import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { encodeStatus } from '../support/apiserver/encode-protobuf.ts'
import { runs } from '../support/runs.ts'
import { API_OBJECTS, cuts, KINDS, pieces } from '../unit/source/kube/wire/api-arbitraries.ts'
import {
  type BodyType,
  eventBytes,
  listBody,
  PROTOBUF,
  readList,
  readWatch,
  TYPES,
  wired,
} from '../unit/source/kube/wire/bodies.ts'

/** Few objects, so that a body can be damaged in every place. */
const [FIRST, SECOND] = fc.sample(API_OBJECTS.EndpointSlice, { numRuns: 2, seed: 44 })
const ITEMS: readonly ApiObject[] = [FIRST ?? {}, SECOND ?? {}]
const kind = 'EndpointSlice'

const bodyOf = (type: BodyType): Buffer => listBody(type, kind, ITEMS)
const watchOf = (type: BodyType): Buffer =>
  Buffer.concat(
    [...ITEMS.map(object => ({ type: 'ADDED', object })), { type: 'ERROR', object: STATUS }].map(event =>
      eventBytes(type, event),
    ),
  )
const STATUS = {
  kind: 'Status',
  apiVersion: 'v1',
  code: 410,
  reason: 'Expired',
  details: { causes: [] },
} as const

/** Reads what may be damaged; gives what was read, or that it was refused. Any other error fails the test. */
function outcome(type: BodyType, body: Uint8Array, lengths: readonly number[] = [1 << 20]): unknown {
  return wired(() => {
    const read = readList(type, pieces(body, lengths), { kind })
    // What was read is of any shape, and the model takes it all the same.
    for (const item of read.items) parseObject(item)
    return read
  })
}

function watchOutcome(type: BodyType, body: Uint8Array, lengths: readonly number[] = [1 << 20]): unknown {
  return wired(() => {
    const events = readWatch(type, pieces(body, lengths), { kind })
    for (const { object } of events) parseObject(object)
    return events
  })
}

function isRefused(outcome: unknown): boolean {
  return outcome instanceof WireError
}

describe.each(TYPES)('a body of type %s', type => {
  it('is refused wherever a list is truncated', () => {
    const body = bodyOf(type)
    // Behind the list two empty fields follow, and nothing says that they are to come.
    const complete = type === PROTOBUF ? [body.length - 4, body.length - 2] : []
    for (let length = 0; length < body.length; length++)
      if (!complete.includes(length))
        expect(isRefused(outcome(type, body.subarray(0, length))), `${length}`).toBe(true)
    expect(isRefused(outcome(type, body))).toBe(false)
  })

  it('is refused wherever a watch is truncated, but between two events', () => {
    const body = watchOf(type)
    const accepted: number[] = []
    for (let length = 0; length <= body.length; length++)
      if (!isRefused(watchOutcome(type, body.subarray(0, length)))) accepted.push(length)
    expect(accepted).toHaveLength(1 + ITEMS.length + 1)
  })

  it('is read or refused whichever bit is flipped, and cut as it may be to the same result', () => {
    for (const [body, read] of [
      [bodyOf(type), outcome],
      [watchOf(type), watchOutcome],
    ] as const)
      for (let bit = 0; bit < body.length * 8; bit += 23) {
        const damaged = Buffer.from(body)
        damaged[bit >> 3] = (damaged[bit >> 3] ?? 0) ^ (1 << (bit & 7))
        const whole = read(type, damaged)
        const cut = read(type, damaged, [1 + (bit % 97)])
        if (isRefused(whole)) expect(isRefused(cut), `bit ${bit}`).toBe(true)
        else expect(cut, `bit ${bit}`).toEqual(whole)
      }
  })

  it('is read or refused when bytes are taken out, put in or repeated', () => {
    const edit = fc.record({ at: fc.nat(), drop: fc.nat(20), insert: fc.uint8Array({ maxLength: 12 }) })
    fc.assert(
      fc.property(fc.array(edit, { minLength: 1, maxLength: 4 }), cuts, (edits, cuts) => {
        for (const [body, read] of [
          [bodyOf(type), outcome],
          [watchOf(type), watchOutcome],
        ] as const) {
          let damaged = body
          for (const { at, drop, insert } of edits) {
            const start = at % (damaged.length + 1)
            damaged = Buffer.concat([damaged.subarray(0, start), insert, damaged.subarray(start + drop)])
          }
          const whole = read(type, damaged)
          const cut = read(type, damaged, cuts)
          if (isRefused(whole)) expect(isRefused(cut)).toBe(true)
          else expect(cut).toEqual(whole)
        }
      }),
      { seed: 45, numRuns: runs(300) },
    )
  })

  it('is refused when it is noise', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 1, maxLength: 400 }), cuts, (noise, cuts) => {
        expect(isRefused(outcome(type, noise, cuts))).toBe(true)
        watchOutcome(type, noise, cuts)
        readStatus(type, noise)
      }),
      { seed: 46, numRuns: runs(500) },
    )
  })
})

describe.each(KINDS)('a list of kind %s', kind => {
  it('gives the same in random pieces as in one', () => {
    fc.assert(
      fc.property(fc.array(API_OBJECTS[kind], { maxLength: 4 }), cuts, (objects, cuts) => {
        for (const type of TYPES) {
          const body = listBody(type, kind, objects)
          const whole = readList(type, [body], { kind })
          expect(readList(type, pieces(body, cuts), { kind })).toEqual(whole)
        }
      }),
      { seed: 47, numRuns: runs(50) },
    )
  })
})

describe('a Status', () => {
  it('is read or is not one, whichever bit is flipped', () => {
    const body = encodeStatus(STATUS)
    for (let bit = 0; bit < body.length * 8; bit++) {
      const damaged = Buffer.from(body)
      damaged[bit >> 3] = (damaged[bit >> 3] ?? 0) ^ (1 << (bit & 7))
      expect(['object', 'undefined']).toContain(typeof readStatus(PROTOBUF, damaged))
    }
  })
})
