import { describe, expect, it } from 'vitest'
import { type Block, type Reader, type Transfer, Transfers } from '../../../../src/api/grpc/transfers.ts'
import { type ApiState, SET_SERVICES } from '../../../../src/api/state.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  largeState,
  nextState,
  objectOf,
  serviceObject,
} from '../../../support/api/states.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { IS_QUICK } from '../../../support/runs.ts'

function rigOf(state: ApiState, keepsWhole = true) {
  const feed = feedOf(state)
  const errors: Error[] = []
  const transfers = new Transfers({
    feed,
    clock: new FakeClock(),
    failed: error => errors.push(error),
    keepsWhole,
  })
  const move = (to: ApiState): void => {
    feed.offer(to)
    transfers.moved()
  }
  transfers.moved()
  return { feed, transfers, move, errors }
}

/** Everything that was begun aside is done. */
const settled = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 20))

function all(transfer: Transfer): readonly Block[] {
  const blocks: Block[] = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block)
  return blocks
}

/** One that stops in the middle, as long as it is not told to let go. */
class Stalled implements Reader {
  transfer: Transfer | undefined
  evictions = 0
  readonly #transfers: Transfers

  constructor(transfers: Transfers, from: ApiState | undefined, to: ApiState) {
    this.#transfers = transfers
    this.transfer = transfers.open(from, to, this)
  }

  evicted(): void {
    this.evictions++
    this.leave()
  }

  leave(): void {
    if (this.transfer !== undefined) this.#transfers.close(this.transfer, this)
    this.transfer = undefined
  }
}

const READER: Reader = { evicted: () => expect.fail('who reads to the end at once is not evicted') }

/** What a new client is told: a whole state, and what has changed since; and how many operations in each. */
function readWhole({ feed, transfers }: ReturnType<typeof rigOf>, to: ApiState) {
  const whole = transfers.open(undefined, to, READER)
  const blocks = all(whole)
  feed.hold(whole.to)
  transfers.close(whole, READER)
  const rest = transfers.open(whole.to, to, READER)
  const more = all(rest)
  feed.release(whole.to)
  transfers.close(rest, READER)
  return { blocks, counts: [sent(blocks), sent(more)] }
}

const sent = (blocks: readonly Block[]): number => blocks.reduce((sum, { operations }) => sum + operations, 0)

const path = 'namespace-0/service-0'

describe('a new client', () => {
  it.skipIf(IS_QUICK)('gets blocks that were made before it came', async () => {
    const state = largeState(2_000, 2)
    const { transfers } = rigOf(state)
    await settled()
    const transfer = transfers.open(undefined, state, READER)
    const made = [...transfer.blocks]
    expect(all(transfer)).toEqual(made)
    expect(sent(made)).toBe(6_000)
    expect(transfers.heldBytes).toBe(transfer.bytes)
    transfers.close(transfer, READER)
  })

  it('shares those that are being made', () => {
    const state = largeState(2_000, 2)
    const { transfers } = rigOf(state)
    const transfer = transfers.open(undefined, state, READER)
    expect(transfer.blocks).toHaveLength(1)
    all(transfer)
    expect(transfers.heldBytes).toBe(transfer.bytes)
    transfers.close(transfer, READER)
  })

  it('gets the very same after a change, and then what has changed', async () => {
    const state = largeState(2_000, 2)
    const rig = rigOf(state)
    await settled()
    const before = readWhole(rig, state)
    const [gone = ''] = state.endpoints.keys()
    const changed = nextState(state, {
      services: [[path, serviceObject(path, 99)]],
      endpoints: [[gone, undefined]],
    })
    rig.move(changed)
    const after = readWhole(rig, changed)
    expect(before.counts).toEqual([6_000, 0])
    expect(after.counts).toEqual([6_000, 2])
    expect(after.blocks.every((block, index) => block === before.blocks[index])).toBe(true)
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })

  it('gets what was made anew aside when much has changed, and the old with what has changed until then', async () => {
    const state = largeState(2_000, 2)
    const rig = rigOf(state)
    await settled()
    const endpoints = state.endpoints.keys().map((key, i) => [key, endpointObject(key, 50_000 + i)] as const)
    const changed = nextState(state, { endpoints })
    rig.move(changed)
    const more = nextState(changed, { services: [[path, serviceObject(path, 99)]] })
    rig.move(more)
    expect(readWhole(rig, more).counts).toEqual([6_000, 4_001])
    await settled()
    expect(readWhole(rig, more).counts).toEqual([6_000, 1])
    // The one that was made, and the newest.
    expect(rig.feed.kept).toBe(2)
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
    expect(rig.transfers.heldBytes).toBe(0)
  })

  it.skipIf(IS_QUICK)(
    'costs nothing to keep waiting for: what has changed since is bounded without any',
    async () => {
      let state = largeState(1_000, 2)
      const rig = rigOf(state)
      const keys = state.endpoints.keys()
      for (let round = 0; round < 60; round++) {
        const some = keys.slice((round * 50) % 2_000, ((round * 50) % 2_000) + 50)
        state = nextState(state, {
          endpoints: some.map((key, i) => [key, endpointObject(key, round * 50 + i)]),
        })
        rig.move(state)
        await settled()
        expect(rig.feed.kept).toBeLessThanOrEqual(2)
      }
      // 3,000 endpoints were told since the start; at most 1,000 and one round are since what was made last.
      const [whole, rest = 0] = readWhole(rig, state).counts
      expect(whole).toBe(3_000)
      expect(rest).toBeLessThanOrEqual(1_050)
      rig.transfers.end()
    },
  )

  it('of a state without objects gets the Sync alone, and then what came', async () => {
    const rig = rigOf(EMPTY)
    await settled()
    expect(readWhole(rig, EMPTY)).toEqual({ blocks: [], counts: [0, 0] })
    const filled = nextState(EMPTY, { services: [[path, serviceObject(path, 80)]] })
    rig.move(filled)
    expect(readWhole(rig, filled).counts).toEqual([0, 1])
    rig.transfers.end()
  })
})

/** Everything is another than in the round before: 250 kB. */
function texts(before: ApiState, round: number): ApiState {
  const services = Array.from({ length: 1_100 }, (_, index) => {
    const its = `default/text-${index}`
    return [its, objectOf(SET_SERVICES, its, { Name: `${round}`.padEnd(200, '-') })] as const
  })
  return nextState(before, { services })
}

describe('those who do not read', () => {
  it.skipIf(IS_QUICK)(
    'hold at most four whole states: of the one that is held longest they are evicted',
    async () => {
      let state = texts(EMPTY, 0)
      const rig = rigOf(state)
      await settled()
      const stalled: Stalled[] = []
      for (let round = 1; round <= 5; round++) {
        stalled.push(new Stalled(rig.transfers, undefined, state))
        state = texts(state, round)
        rig.move(state)
        await settled()
      }
      expect(stalled.map(({ evictions }) => evictions)).toEqual([1, 1, 0, 0, 0])
      expect(new Set(stalled.map(({ transfer }) => transfer)).size).toBe(4)
      expect(rig.feed.kept).toBe(4)
      for (const each of stalled) each.leave()
      expect(rig.feed.kept).toBe(1)
      rig.transfers.end()
    },
  )

  it.skipIf(IS_QUICK)(
    'hold at most sixteen large differences: the one that was read least lately is let go',
    async () => {
      let state = texts(EMPTY, 0)
      const rig = rigOf(state)
      await settled()
      const stalled: Stalled[] = []
      for (let round = 1; round <= 18; round++) {
        const from = state
        rig.feed.hold(from)
        state = texts(state, round)
        rig.move(state)
        stalled.push(new Stalled(rig.transfers, from, state))
        rig.feed.release(from)
        // The first goes on reading.
        const [first] = stalled
        if (first?.transfer !== undefined) rig.transfers.progressed(first.transfer)
      }
      expect(stalled.flatMap(({ evictions }, index) => (evictions > 0 ? [index] : []))).toEqual([1, 2])
      for (const each of stalled) each.leave()
      await settled()
      rig.transfers.end()
      expect(rig.feed.kept).toBe(1)
      expect(rig.transfers.heldBytes).toBe(0)
    },
  )

  it('share a difference, however large, and it is gone with the last of them', async () => {
    const state = texts(EMPTY, 0)
    const rig = rigOf(state)
    await settled()
    rig.feed.hold(state)
    const changed = texts(state, 1)
    rig.move(changed)
    const stalled = Array.from({ length: 20 }, () => new Stalled(rig.transfers, state, changed))
    expect(new Set(stalled.map(({ transfer }) => transfer)).size).toBe(1)
    expect(stalled.every(({ evictions }) => evictions === 0)).toBe(true)
    await settled()
    const before = rig.transfers.heldBytes
    for (const each of stalled) each.leave()
    expect(rig.transfers.heldBytes).toBeLessThan(before)
    rig.feed.release(state)
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })

  it('share small differences with others, of which sixteen are kept', async () => {
    let state = largeState(50, 2)
    const rig = rigOf(state)
    await settled()
    const states: ApiState[] = []
    for (let round = 0; round < 20; round++) {
      rig.feed.hold(state)
      states.push(state)
      state = nextState(state, { services: [[path, serviceObject(path, 100 + round)]] })
      rig.move(state)
    }
    const first = states.map(from => {
      const transfer = rig.transfers.open(from, state, READER)
      rig.transfers.close(transfer, READER)
      return transfer
    })
    const held = rig.transfers.heldBytes
    const again = states.slice(4).map(from => rig.transfers.open(from, state, READER))
    expect(again.every((transfer, index) => transfer === first[index + 4])).toBe(true)
    expect(rig.transfers.heldBytes).toBe(held)
    for (const transfer of again) rig.transfers.close(transfer, READER)
    for (const from of states) rig.feed.release(from)
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })
})

describe('a small difference', () => {
  const rigOfTwo = async () => {
    const from = largeState(50, 2)
    const rig = rigOf(from)
    await settled()
    rig.feed.hold(from)
    const to = nextState(from, { services: [[path, serviceObject(path, 99)]] })
    rig.move(to)
    return { rig, from, to }
  }

  it('is held by its reader when the state moves on, and is released afterwards', async () => {
    const { rig, from, to } = await rigOfTwo()
    const transfer = rig.transfers.open(from, to, READER)
    rig.move(nextState(to, { services: [[path, serviceObject(path, 98)]] }))
    rig.feed.release(from)
    // The one that is made, what is read, and the newest.
    expect(rig.feed.kept).toBe(3)
    rig.transfers.close(transfer, READER)
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })

  it('is released when a client requests a newer state before others know of it', async () => {
    const { rig, from, to } = await rigOfTwo()
    rig.transfers.close(rig.transfers.open(from, to, READER), READER)
    const newest = nextState(to, { services: [[path, serviceObject(path, 98)]] })
    rig.feed.offer(newest)
    rig.transfers.close(rig.transfers.open(from, newest, READER), READER)
    rig.feed.release(from)
    rig.transfers.moved()
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })

  it('holds no memory that it does not fill', async () => {
    const { rig, from, to } = await rigOfTwo()
    const transfer = rig.transfers.open(from, to, READER)
    const [block] = all(transfer)
    expect(block?.frames.buffer.byteLength).toBe(block?.frames.length)
    rig.transfers.close(transfer, READER)
  })
})

describe('what is made aside', () => {
  it('follows a state that begins with nothing, and one that goes through nothing', async () => {
    const rig = rigOf(EMPTY)
    await settled()
    const filled = { ...largeState(2_000, 2), number: 2 }
    rig.move(filled)
    await settled()
    expect(readWhole(rig, filled).counts).toEqual([6_000, 0])
    const emptied = nextState(filled, {
      services: filled.services.keys().map(key => [key, undefined]),
      endpoints: filled.endpoints.keys().map(key => [key, undefined]),
    })
    rig.move(emptied)
    await settled()
    expect(readWhole(rig, emptied).counts).toEqual([0, 0])
    const again = { ...largeState(2_000, 2), number: 4 }
    rig.move(again)
    await settled()
    expect(readWhole(rig, again).counts).toEqual([6_000, 0])
    rig.transfers.end()
    expect(rig.feed.kept).toBe(1)
  })

  it('reports an internal error, and keeps its state', async () => {
    const state = largeState(2_000, 2)
    const rig = rigOf(state)
    await settled()
    const broken = state.endpoints
      .entries()
      .map(([key, object]) => [key, { ...object, memory: undefined } as never] as const)
    const next = nextState(state, { endpoints: broken })
    rig.move(next)
    await settled()
    expect(rig.errors).toHaveLength(1)
    const transfer = rig.transfers.open(undefined, next, READER)
    expect(transfer.to).toBe(state)
    rig.transfers.close(transfer, READER)
  })

  it('is let go when its server ends before it is done', async () => {
    const state = largeState(2_000, 2)
    const { feed, transfers } = rigOf(state)
    transfers.end()
    await settled()
    feed.offer(nextState(state, { services: [[path, serviceObject(path, 99)]] }))
    expect(feed.kept).toBe(1)
    expect(transfers.heldBytes).toBe(0)
  })
})

it('keeps a whole state only while a client reads it, where it is to', async () => {
  const state = largeState(200, 2)
  const rig = rigOf(state, false)
  const { feed, transfers } = rig
  expect(transfers.heldBytes).toBe(0)
  for (const isMadeFirst of [false, true]) {
    const [one, other] = [new Stalled(transfers, undefined, state), new Stalled(transfers, undefined, state)]
    if (isMadeFirst) await settled()
    expect(transfers.heldBytes).toBeGreaterThan(0)
    one.leave()
    expect(transfers.heldBytes).toBeGreaterThan(0)
    other.leave()
    await settled()
    expect(transfers.heldBytes).toBe(0)
  }
  expect(readWhole(rig, state).counts).toEqual([600, 0])
  await settled()
  expect([feed.kept, rig.errors]).toEqual([1, []])
})
