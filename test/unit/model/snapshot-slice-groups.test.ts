import { describe, expect, it } from 'vitest'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { endpoint, eventsOf, slice, snapshotOf } from './objects.ts'

describe('the slices of a Service', () => {
  const web = ['web-c', 'web-a', 'web-b'].map(name => slice(name, 'web', [endpoint('10.1.0.1')]))

  it('are the ones of before where a batch says the same of them', () => {
    const before = snapshotOf(web)
    const after = applyEvents(before, eventsOf([...web, slice('web-b', 'web', [endpoint('10.1.0.9')])]))
    const [a, b, c] = before.slices.get('ns/web') ?? []
    const [a2, b2, c2] = after.slices.get('ns/web') ?? []
    expect([a2 === a, b2 === b, c2 === c]).toEqual([true, false, true])
  })

  it.skipIf(IS_QUICK)('cost time in proportion when one Service has very many, in the worst order', () => {
    const many = eventsOf(
      Array.from({ length: 50_000 }, (_, index) => slice(`web-${99_999 - index}`, 'web', [])),
    )
    const start = performance.now()
    const full = applyEvents(EMPTY_SNAPSHOT, many)
    const empty = applyEvents(
      full,
      many.map((_, index) => ({ kind: 'EndpointSlice', key: `ns/web-${99_999 - index}`, value: undefined })),
    )
    expect(performance.now() - start).toBeLessThan(50_000)
    expect(full.slices.get('ns/web')).toHaveLength(50_000)
    expect(empty.slices.size).toBe(0)
  })
})
