import { expect, it } from 'vitest'
import type { Revisions } from '../../../../src/source/source.ts'
import { serviceOf } from '../../../support/apiserver/generator.ts'
import { MemoryClient } from '../../../support/apiserver/memory-client.ts'
import { RelayWorld } from '../../../support/relay.ts'

/** A source whose reader takes nothing while `held` is true. */
async function begin() {
  const world = new RelayWorld()
  const { clock, backend } = world
  const reached: Revisions[] = []
  const client = new MemoryClient({ backend, network: world.kube, clock, qps: 0 })
  const source = world.source(client, 'node-0', { reached: revisions => void reached.push(revisions) })
  const waiting: (() => void)[] = []
  const reader = { isSlow: false }
  await source.start({
    events: () => (reader.isSlow ? new Promise(resolve => waiting.push(resolve)) : Promise.resolve()),
    synced: () => undefined,
    refusals: () => undefined,
    problem: () => undefined,
  })
  await clock.advance(3_000)
  const changed = async (): Promise<number> => {
    world.store.put('services', serviceOf(42, { namespaces: 1 }, { port: 1 + reached.length }))
    await clock.advance(500)
    return Number(world.store.version)
  }
  const newest = (): number => Number(reached.at(-1)?.Service)
  const release = async (): Promise<void> => {
    for (const resolve of waiting.splice(0)) resolve()
    await clock.advance(500)
  }
  return { source, clock, reader, reached, changed, newest, release }
}

it('has reached a revision once its reader has taken it, also where a list follows that brings nothing', async () => {
  const { source, clock, reader, changed, newest, release } = await begin()
  const first = await changed()
  expect(newest()).toBe(first)
  reader.isSlow = true
  const revision = await changed()
  expect(newest()).toBeLessThan(revision)
  void source.confirm()
  await clock.advance(5_000)
  expect(newest()).toBeLessThan(revision)
  await release()
  expect(newest()).toBeGreaterThanOrEqual(revision)
  await source.stop()
})

it('has reached nothing more once it has ended', async () => {
  const { source, reader, changed, reached, release } = await begin()
  reader.isSlow = true
  await changed()
  const before = reached.length
  const stopped = source.stop()
  await release()
  await stopped
  expect(reached.length).toBe(before)
})
