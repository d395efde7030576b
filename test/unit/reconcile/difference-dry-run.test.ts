import { expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { dryRun } from '../../../src/reconcile/dataplane.ts'
import { FakePlane } from '../../support/fake-plane.ts'
import { tableOf } from '../../support/tables.ts'

it('reads the kernel once, and then believes its own plans', async () => {
  const inner = new FakePlane()
  const planned: number[] = []
  const plane = dryRun(inner, { planned: plan => void planned.push(plan.changes), unreadable: fail })
  const { state } = await plane.observe()
  const wanted = finish(plane.render(tableOf(1, { 'ns/a': '1' }), { base: state, without: new Set() }))
  const receipt = await plane.commit(finish(plane.diff(state, wanted)), {})
  expect(receipt.outcome).toBe('committed')
  expect(planned).toEqual([1])
  const observed = await plane.observe()
  expect(finish(plane.diff(observed.state, wanted)).empty).toBe(true)
  expect((await inner.observe()).state).toEqual(state)
  expect(plane.generation()).toBe(observed.generation)
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
  const { state, generation } = await plane.observe()
  const wanted = finish(plane.render(tableOf(1, { 'ns/a': '1' }), { base: state, without: new Set() }))
  const plan = finish(plane.diff(state, wanted))
  await expect((async () => await plane.commit(plan, {}))()).rejects.toThrow('ENOSPC')
  expect(await plane.observe()).toEqual({ state, generation })
  isFull = false
  expect((await plane.commit(plan, {})).outcome).toBe('committed')
  expect(finish(plane.diff((await plane.observe()).state, wanted)).empty).toBe(true)
})

function fail(error: Error): never {
  throw error
}
