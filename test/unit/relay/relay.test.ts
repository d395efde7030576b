import { afterEach, describe, expect, it } from 'vitest'
import { type Follower, RelayWorld, type RelayWorldOptions } from '../../support/relay.ts'

const stop: (() => Promise<void>)[] = []

afterEach(async () => {
  for (const each of stop.splice(0)) await each()
})

/** A world with a direct watcher and nodes at its relays, all of them in the same state. */
async function begin(options: RelayWorldOptions = {}, nodes = 2) {
  const world = new RelayWorld(options)
  for (const relay of world.relays) relay.start()
  await world.clock.advance(2_000)
  const direct = await world.direct().start()
  const followers: (Follower & ReturnType<RelayWorld['node']>)[] = []
  for (let index = 0; index < nodes; index++) {
    const node = world.node(`node-0`)
    await node.start()
    followers.push(node)
  }
  await world.clock.advance(2_000)
  stop.push(async () => {
    for (const { source } of [direct, ...followers]) await source.stop()
    for (const relay of world.relays) await relay.kill()
  })
  const agree = (): void => {
    for (const node of followers) {
      expect(node.known).toEqual(direct.known)
      expect(node.spurious).toEqual([])
    }
  }
  return { world, direct, nodes: followers, agree }
}

describe('relay', () => {
  it('gives a node what a direct watcher has, and then every change', async () => {
    const { world, nodes, agree } = await begin()
    agree()
    expect(nodes[0]?.synced).toBe(1)
    expect(nodes[0]?.snapshot.services.size).toBeGreaterThan(1)
    expect(nodes[0]?.snapshot.node).toBeDefined()
    for (let round = 0; round < 30; round++) {
      world.change()
      await world.clock.advance(round % 3 === 0 ? 300 : 3)
    }
    await world.clock.advance(1_000)
    agree()
  })

  it('F178: nodes resume at a relay that was killed and restarted empty, and hear only what changed', async () => {
    const { world, nodes, agree } = await begin()
    const [relay] = world.relays
    const before = nodes.map(({ changes }) => changes)
    await relay?.kill()
    await world.clock.advance(3_000)
    for (let round = 0; round < 5; round++) world.change()
    relay?.start()
    await world.clock.advance(60_000)
    agree()
    for (const [index, { changes }] of nodes.entries())
      expect(changes - (before[index] ?? 0)).toBeLessThanOrEqual(5)
    expect(nodes.flatMap(({ problems }) => problems)).not.toContain(expect.stringContaining('older'))
  })
})
