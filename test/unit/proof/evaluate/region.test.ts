import { expect, test } from 'vitest'
import {
  difference,
  includes,
  intersection,
  meets,
  onlyValue,
  prefix,
  type Region,
  sizeOf,
  union,
} from '../../../../src/proof/evaluate/region.ts'
import { runs } from '../../../support/runs.ts'
import { generator } from '../../../support/walk.ts'

const VALUES = Array.from({ length: 256 }, (_, octet) => String.fromCharCode(octet))

function members(region: Region): readonly string[] {
  return VALUES.filter(value => includes(region, value))
}

test('operations on regions are those on the sets of their values', () => {
  const random = generator(5)
  const any = (): Region =>
    union(
      Array.from({ length: random(30) }, () => {
        const [from, length] = [random(256), random(12)]
        return { from: String.fromCharCode(from), to: String.fromCharCode(Math.min(255, from + length)) }
      }),
    )
  for (let round = 0; round < runs(2_000); round++) {
    const [a, b] = [any(), any()]
    const [inA, inB] = [members(a), members(b)]
    expect(members(intersection(a, b))).toEqual(inA.filter(value => inB.includes(value)))
    expect(members(difference(a, b))).toEqual(inA.filter(value => !inB.includes(value)))
    expect(members(union([...a, ...b]))).toEqual(
      VALUES.filter(value => inA.includes(value) || inB.includes(value)),
    )
    for (const interval of b) expect(meets(a, interval)).toBe(intersection(a, [interval]).length > 0)
    expect(sizeOf(a)).toBe(inA.length)
    expect(onlyValue(a)).toBe(inA.length === 1 ? inA[0] : undefined)
  }
})

test('a prefix has the values that begin with its bits', () => {
  expect(prefix('\x0a\xf4\x80\x01', 9)).toEqual({ from: '\x0a\x80\0\0', to: '\x0a\xff\xff\xff' })
  expect(prefix('\x0a\x01', 16)).toEqual({ from: '\x0a\x01', to: '\x0a\x01' })
  expect(prefix('\x0a\x01', 0)).toEqual({ from: '\0\0', to: '\xff\xff' })
  expect(sizeOf([prefix('\0\0\0\0', 0)])).toBe(2 ** 32)
})
