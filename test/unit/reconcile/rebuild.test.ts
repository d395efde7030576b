import { describe, expect, it } from 'vitest'
import { Pass, type ReconcilerEvent } from '../../../src/reconcile/pass.ts'
import { Quarantine } from '../../../src/reconcile/quarantine.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { tableOf } from '../../support/tables.ts'

function bench() {
  const plane = new FakePlane()
  const events: ReconcilerEvent[] = []
  const pass = new Pass({
    plane,
    slicing: { sliceMs: 5, nowMs: () => 0, breathe: () => Promise.resolve() },
    nowMs: () => 0,
    quarantine: new Quarantine({ minMs: 1, maxMs: 1, random: () => 0 }),
    report: event => events.push(event),
    atGeneration: () => undefined,
    looked: () => undefined,
    pace: () => Promise.resolve(),
  })
  return { plane, pass, kinds: () => events.map(({ kind }) => kind) }
}

describe('a plan that makes anew what packets left state in', () => {
  it('is made again when another program commits after the read', async () => {
    const { plane, pass, kinds } = bench()
    await pass.run(tableOf(1, { a: '1' }), 'start')
    plane.rebuilds = true
    const render = plane.render.bind(plane)
    plane.render = function* (table, options) {
      // After the look, once.
      if (plane.observations === 2) plane.tamper(new Map([['b', '1']]))
      return yield* render(table, options)
    }
    await pass.run(tableOf(2, { a: '2' }), 'change')
    expect(kinds()).toEqual(['committed', 'stale', 'committed'])
    expect(plane.observations).toBe(3)
    expect(plane.kernel).toEqual(new Map([['a', '2']]))
  })
})
