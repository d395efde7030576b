import { expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { COMMITS_MAX, differenceOf } from '../../../src/reconcile/dataplane.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { service, table } from '../../support/frontends.ts'

const SLICING = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
const WANTED = table([service('ns/new', [])])

it('lists what later commits take away together with the first, by Service', async () => {
  const plane = new FakePlane()
  plane.kernel = new Map([['ns/old', 'x']])
  plane.twoCommits = true
  const { lines, complete } = await differenceOf(plane, WANTED, SLICING)
  expect(lines.map(({ verb, service }) => `${verb} ${service}`)).toEqual(['add ns/new', 'remove ns/old'])
  expect(complete).toBe(true)
  expect(plane.commits).toEqual([])
})

it('says when the commits that it looks at are not all', async () => {
  class Endless extends FakePlane {
    override *diff(from: Map<string, string>, to: Map<string, string>) {
      return { ...(yield* super.diff(from, to)), after: from, complete: false }
    }
  }
  const { lines, complete } = await differenceOf(new Endless(), WANTED, SLICING)
  expect(lines).toHaveLength(COMMITS_MAX)
  expect(complete).toBe(false)
})
