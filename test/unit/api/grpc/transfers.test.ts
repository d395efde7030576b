import { describe, expect, it } from 'vitest'
import type { Block, Transfer } from '../../../../src/api/grpc/transfer.ts'
import { Transfers } from '../../../../src/api/grpc/transfers.ts'
import type { ApiState } from '../../../../src/api/state.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  largeState,
  nextState,
  serviceObject,
} from '../../../support/api/states.ts'
import { FakeClock } from '../../../support/fake-clock.ts'

const SYNC_BYTES = 7

function rigOf(state: ApiState) {
  const clock = new FakeClock()
  const feed = feedOf(state)
  const transfers = new Transfers(feed, clock)
  const move = (to: ApiState): void => {
    feed.offer(to)
    transfers.moved()
  }
  transfers.moved()
  return { clock, feed, transfers, move }
}

/** Everything that was begun aside is done. */
const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 20))

function all(transfer: Transfer): readonly Block[] {
  const blocks: Block[] = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block)
  return blocks
}

/** Reads a whole state as a new client does. */
function readWhole(transfers: Transfers, to: ApiState): readonly Block[] {
  const { transfer } = transfers.open(undefined, to)
  const blocks = all(transfer)
  transfers.close(transfer)
  return blocks
}

const sent = (blocks: readonly Block[]): number => blocks.reduce((sum, { operations }) => sum + operations, 0)

const path = 'namespace-0/service-0'

describe('a new client', () => {
  it('gets blocks that were made before it came', async () => {
    const state = largeState(2_000, 2)
    const { transfers } = rigOf(state)
    await settled()
    const { transfer } = transfers.open(undefined, state)
    const made = [...transfer.blocks]
    expect(all(transfer)).toEqual(made)
    expect(sent(made)).toBe(6_000)
    expect(transfers.held().bytes).toBe(transfer.bytes)
    transfers.close(transfer)
  })

  it('shares those that are being made', () => {
    const state = largeState(2_000, 2)
    const { transfers } = rigOf(state)
    const { transfer } = transfers.open(undefined, state)
    expect(transfer.blocks).toHaveLength(1)
    all(transfer)
    expect(transfers.held().bytes).toBe(transfer.bytes)
    transfers.close(transfer)
  })

  it('gets them after a change as well, what has changed behind them, and one Sync', async () => {
    const state = largeState(2_000, 2)
    const { feed, transfers, move } = rigOf(state)
    await settled()
    const before = readWhole(transfers, state)
    const [gone = ''] = state.endpoints.keys()
    const changed = nextState(state, {
      services: [[path, serviceObject(path, 99)]],
      endpoints: [[gone, undefined]],
    })
    move(changed)
    const { transfer } = transfers.open(undefined, changed)
    const after = all(transfer)
    expect(before.length).toBeGreaterThan(3)
    expect(after.slice(0, -2).every((block, index) => block === before[index])).toBe(true)
    expect(sent(after)).toBe(6_002)
    const bytes = Buffer.concat(after.map(block => block.frames))
    const sync = Buffer.from('00000000020a00', 'hex')
    expect(bytes.indexOf(sync)).toBe(bytes.length - SYNC_BYTES)
    transfers.close(transfer)
    transfers.end()
    expect(feed.kept).toBe(1)
  })

  it('gets what was made anew aside when much has changed, and the old with what has changed until then', async () => {
    const state = largeState(2_000, 2)
    const { feed, transfers, move } = rigOf(state)
    await settled()
    const endpoints = state.endpoints.keys().map((key, i) => [key, endpointObject(key, 50_000 + i)] as const)
    const changed = nextState(state, { endpoints })
    move(changed)
    const more = nextState(changed, { services: [[path, serviceObject(path, 99)]] })
    move(more)
    expect(sent(readWhole(transfers, more))).toBe(10_001)
    await settled()
    const last = nextState(more, { services: [[path, serviceObject(path, 98)]] })
    move(last)
    expect(sent(readWhole(transfers, last))).toBe(6_001)
    // The one that was made, and the newest.
    expect(feed.kept).toBe(2)
    transfers.end()
    expect(feed.kept).toBe(1)
    expect(transfers.held().bytes).toBe(0)
  })

  it('costs nothing to keep waiting for: what has changed since is bounded without any', async () => {
    let state = largeState(1_000, 2)
    const { feed, transfers, move } = rigOf(state)
    const keys = state.endpoints.keys()
    for (let round = 0; round < 60; round++) {
      const some = keys.slice((round * 50) % 2_000, ((round * 50) % 2_000) + 50)
      state = nextState(state, {
        endpoints: some.map((key, i) => [key, endpointObject(key, round * 50 + i)]),
      })
      move(state)
      await settled()
      expect(feed.kept).toBeLessThanOrEqual(2)
    }
    // 3,000 endpoints were told since the start; at most 1,000 and one round are since what was made last.
    expect(sent(readWhole(transfers, state))).toBeLessThanOrEqual(3_000 + 1_050)
    expect(sent(readWhole(transfers, state))).toBeGreaterThan(3_000)
    transfers.end()
  })

  it('of a state without objects gets the Sync alone, and then what came', async () => {
    const { transfers, move } = rigOf(EMPTY)
    await settled()
    expect(readWhole(transfers, EMPTY).map(({ frames }) => frames.length)).toEqual([SYNC_BYTES])
    const filled = nextState(EMPTY, { services: [[path, serviceObject(path, 80)]] })
    move(filled)
    expect(sent(readWhole(transfers, filled))).toBe(1)
    transfers.end()
  })
})

describe('what is made aside', () => {
  it('is let go when its server ends before it is done', async () => {
    const state = largeState(2_000, 2)
    const { feed, transfers } = rigOf(state)
    transfers.end()
    await settled()
    feed.offer(nextState(state, { services: [[path, serviceObject(path, 99)]] }))
    expect(feed.kept).toBe(1)
    expect(transfers.held().bytes).toBe(0)
  })
})
