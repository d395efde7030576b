import { expect, it } from 'vitest'
import { isCounted, partsOf } from '../../../src/model/object-parts.ts'
import { endpoint, eventsOf, slice } from './objects.ts'

it('F150: counts long texts and refused fields, which are held as well', () => {
  const uid = 'x'.repeat(1_000)
  const slices = [
    slice('a', 'web', [endpoint('10.0.0.1', { targetRef: { uid } })]),
    slice(
      'a',
      'web',
      Array.from({ length: 50 }, () => endpoint('nowhere')),
    ),
  ]
  const parts = eventsOf(slices).flatMap(event =>
    isCounted(event) && event.value !== undefined ? [partsOf(event.value)] : [],
  )
  expect(parts).toEqual([14, 105])
})
