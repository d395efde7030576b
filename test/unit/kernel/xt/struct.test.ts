import { expect, it } from 'vitest'
import * as structs from '../../../../src/kernel/xt/struct.ts'

const tables = Object.entries(structs).flatMap(([name, its]) =>
  typeof its === 'object' && 'fields' in its ? [{ title: name, ...its }] : [],
)

// Gaps between fields are found, and structures written, in the order of the table.
it.each(tables)('the fields of $title are in the order of their offsets, and fit', ({ size, fields }) => {
  const ends = Object.values(fields).map(({ offset, length }) => ({ from: offset, to: offset + length }))
  for (const [i, { from }] of ends.entries()) expect(from).toBeGreaterThanOrEqual(ends[i - 1]?.to ?? 0)
  expect(ends.at(-1)?.to).toBeLessThanOrEqual(size)
})
