import { expect, it } from 'vitest'
import { finish, systemClock } from '../../../src/base/clock.ts'
import {
  COMMITS_MAX,
  type Dataplane,
  differenceOf,
  dryRun,
  type Plan,
} from '../../../src/reconcile/dataplane.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { tableOf } from '../../support/tables.ts'

const SLICING = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
const WANTED = tableOf(1, { 'ns/new': '1' })

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

/** What the plane would do now for the wanted state. */
async function planOf<S, P extends Plan<S>>(plane: Dataplane<S, P>): Promise<P> {
  const { state } = await plane.observe()
  return finish(plane.diff(state, finish(plane.render(WANTED, { base: state, without: new Set() }))))
}

it('reads the kernel once, and then believes its own plans', async () => {
  const inner = new FakePlane()
  const planned: number[] = []
  const plane = dryRun(inner, { planned: plan => void planned.push(plan.changes), unreadable: fail })
  const receipt = await plane.commit(await planOf(plane), {})
  expect(receipt.outcome).toBe('committed')
  expect(planned).toEqual([1])
  expect((await planOf(plane)).empty).toBe(true)
  expect((await inner.observe()).state).toEqual(new Map())
  expect(plane.generation()).toBe((await plane.observe()).generation)
})

it('starts from nothing when the kernel cannot be read, and says why', async () => {
  const inner = Object.assign(new FakePlane(), { observe: () => Promise.reject(new Error('EPERM')) })
  const reasons: string[] = []
  const plane = dryRun(inner, {
    planned: () => undefined,
    unreadable: error => void reasons.push(error.message),
  })
  expect((await plane.observe()).state).toEqual(inner.empty)
  await plane.observe()
  expect(reasons).toEqual(['EPERM'])
})

it('commits nothing when the plan cannot be handed over', async () => {
  let isFull = true
  const planned = () => {
    if (isFull) throw new Error('ENOSPC')
  }
  const plane = dryRun(new FakePlane(), { planned, unreadable: fail })
  const before = await plane.observe()
  const plan = await planOf(plane)
  await expect((async () => await plane.commit(plan, {}))()).rejects.toThrow('ENOSPC')
  expect(await plane.observe()).toEqual(before)
  isFull = false
  expect((await plane.commit(plan, {})).outcome).toBe('committed')
  expect((await planOf(plane)).empty).toBe(true)
})

function fail(error: Error): never {
  throw error
}
