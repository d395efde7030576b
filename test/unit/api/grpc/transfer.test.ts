import { describe, expect, it } from 'vitest'
import { type Block, type Transfer, Transfers } from '../../../../src/api/grpc/transfer.ts'
import type { ApiState } from '../../../../src/api/state.ts'
import { endpointObject, feedOf, largeState, nextState, serviceObject } from '../../../support/api/states.ts'
import { FakeClock } from '../../../support/fake-clock.ts'

const BASE_MS = 600_000
const SYNC_BYTES = 7

function rigOf(state: ApiState) {
  const clock = new FakeClock()
  const feed = feedOf(state)
  return { clock, feed, transfers: new Transfers(feed, clock) }
}

function all(transfer: Transfer): readonly Block[] {
  const blocks: Block[] = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block)
  return blocks
}

/** Reads a whole state as a new client does. */
function readWhole(transfers: Transfers, to: ApiState): Transfer {
  const { transfer } = transfers.open(undefined, to)
  all(transfer)
  transfers.close(transfer)
  return transfer
}

const path = 'namespace-0/service-0'

describe('a new client after a change', () => {
  it('gets the blocks that the one before had, what has changed behind them, and one Sync', () => {
    const state = largeState(2_000, 2)
    const { feed, transfers } = rigOf(state)
    const first = readWhole(transfers, state)
    const [gone = ''] = state.endpoints.keys()
    const changed = nextState(state, {
      services: [[path, serviceObject(path, 99)]],
      endpoints: [[gone, undefined]],
    })
    feed.offer(changed)
    transfers.moved()
    const { transfer } = transfers.open(undefined, changed)
    const [before, after] = [all(first), all(transfer)]
    expect(before.length).toBeGreaterThan(3)
    expect(after.length).toBe(before.length + 1)
    // The very same, but for the Sync at the end of the last.
    expect(after.slice(0, before.length - 1)).toEqual(before.slice(0, -1))
    expect(after.slice(0, before.length - 1).every((block, i) => block === before[i])).toBe(true)
    const last = before.at(-1)?.frames ?? Buffer.alloc(0)
    expect(after.at(-2)?.frames.equals(last.subarray(0, last.length - SYNC_BYTES))).toBe(true)
    expect(after.at(-1)?.operations).toBe(2)
    // Nothing is held twice.
    const held = transfers.held().bytes
    expect(held).toBeLessThan(first.bytes + (after.at(-1)?.frames.length ?? 0) + 64 * 1024)
    transfers.close(transfer)
    transfers.end()
    expect(feed.kept).toBe(1)
  })

  it('gets all anew when more has changed than fits into a block', () => {
    const state = largeState(2_000, 2)
    const { feed, transfers } = rigOf(state)
    const first = readWhole(transfers, state)
    const endpoints = state.endpoints.keys().map((key, i) => [key, endpointObject(key, 50_000 + i)] as const)
    const changed = nextState(state, { endpoints })
    feed.offer(changed)
    transfers.moved()
    const { transfer } = transfers.open(undefined, changed)
    const after = all(transfer)
    expect(after.length).toBe(all(first).length)
    expect(after.some(block => all(first).includes(block))).toBe(false)
    transfers.close(transfer)
    transfers.end()
    expect(feed.kept).toBe(1)
  })

  it('gets all anew when nobody came for a while, and nothing is held any more', async () => {
    const state = largeState(200, 2)
    const { clock, feed, transfers } = rigOf(state)
    readWhole(transfers, state)
    const changed = nextState(state, { services: [[path, serviceObject(path, 99)]] })
    feed.offer(changed)
    transfers.moved()
    expect(feed.kept).toBe(2)
    await clock.advance(BASE_MS)
    expect(feed.kept).toBe(1)
    expect(transfers.held().bytes).toBe(0)
  })

  it('does not begin with what was never made to its end', () => {
    const state = largeState(2_000, 2)
    const { feed, transfers } = rigOf(state)
    const { transfer } = transfers.open(undefined, state)
    transfers.close(transfer)
    feed.offer(nextState(state, { services: [[path, serviceObject(path, 99)]] }))
    transfers.moved()
    expect(feed.kept).toBe(1)
    expect(transfers.held().bytes).toBe(0)
  })
})
