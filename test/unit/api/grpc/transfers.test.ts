import { describe, expect, it } from 'vitest'
import { MessageReader } from '../../../../src/api/grpc/rpc.ts'
import { type Reader, type Transfer, Transfers } from '../../../../src/api/grpc/transfers.ts'
import { type ApiState, SET_SERVICES } from '../../../../src/api/state.ts'
import { decodeOpItem } from '../../../support/api/localv1.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  largeState,
  nextState,
  objectOf,
  serviceObject,
} from '../../../support/api/states.ts'

function rigOf(state: ApiState) {
  const feed = feedOf(state)
  const transfers = new Transfers(feed)
  const move = (to: ApiState): ApiState => {
    feed.offer(to)
    transfers.moved()
    return to
  }
  return { feed, transfers, move }
}

function all(transfer: Transfer): readonly Buffer[] {
  const blocks: Buffer[] = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block)
  return blocks
}

/** Counts the operations in blocks, without the Sync. */
function operationsIn(blocks: readonly Buffer[]): number {
  let operations = 0
  new MessageReader(1 << 20).read(Buffer.concat(blocks), bytes => {
    if (decodeOpItem(bytes).Op !== 'Sync') operations++
  })
  return operations
}

/** A reader that stops in the middle until it leaves or is evicted. */
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

const READER: Reader = { evicted: () => expect.fail('a reader that reads to the end at once is not evicted') }

/** Reads what a new client gets: a whole state, and what has changed since. Gives the number of operations in each. */
function readWhole({ feed, transfers }: ReturnType<typeof rigOf>, to: ApiState): readonly number[] {
  const whole = transfers.open(undefined, to, READER)
  const blocks = all(whole)
  feed.hold(whole.to)
  transfers.close(whole, READER)
  const rest = transfers.open(whole.to, to, READER)
  const more = all(rest)
  feed.release(whole.to)
  transfers.close(rest, READER)
  return [operationsIn(blocks), operationsIn(more)]
}

const path = 'namespace-0/service-0'

/** Changes all of 1,100 Services: 250 kB. */
function texts(before: ApiState, round: number): ApiState {
  const services = Array.from({ length: 1_100 }, (_, index) => {
    const its = `default/text-${index}`
    return [its, objectOf(SET_SERVICES, its, { Name: `${round}`.padEnd(200, '-') })] as const
  })
  return nextState(before, { services })
}

describe('a new client', () => {
  it('shares the whole state of another until much has changed, and gets what has changed since', () => {
    const state = largeState(2_000, 2)
    const rig = rigOf(state)
    const first = new Stalled(rig.transfers, undefined, state)
    const [gone = ''] = state.endpoints.keys()
    const little = nextState(state, {
      services: [[path, serviceObject(path, 99)]],
      endpoints: [[gone, undefined]],
    })
    rig.move(little)
    expect(readWhole(rig, little)).toEqual([6_000, 2])
    const endpoints = little.endpoints.keys().map((key, i) => [key, endpointObject(key, 50_000 + i)] as const)
    const much = rig.move(nextState(little, { endpoints }))
    expect(readWhole(rig, much)).toEqual([5_999, 0])
    expect(rig.feed.kept).toBe(2)
    first.leave()
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  })

  it('of a state without objects gets the Sync alone, and then what came', () => {
    const rig = rigOf(EMPTY)
    expect(readWhole(rig, EMPTY)).toEqual([0, 0])
    const filled = rig.move(nextState(EMPTY, { services: [[path, serviceObject(path, 80)]] }))
    expect(readWhole(rig, filled)).toEqual([1, 0])
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  })
})

describe('clients that do not read', () => {
  it.each([
    ['whole states', false],
    ['large differences', true],
  ])('hold at most sixteen %s: the one that was read least lately is let go', (_, hasState) => {
    let state = texts(EMPTY, 0)
    const rig = rigOf(state)
    const stalled: Stalled[] = []
    for (let round = 1; round <= 18; round++) {
      const from = state
      rig.feed.hold(from)
      state = rig.move(texts(state, round))
      stalled.push(new Stalled(rig.transfers, hasState ? from : undefined, state))
      rig.feed.release(from)
      // The first one still reads.
      const [first] = stalled
      if (first?.transfer !== undefined) rig.transfers.progressed(first.transfer)
    }
    expect(stalled.flatMap(({ evictions }, index) => (evictions > 0 ? [index] : []))).toEqual([1, 2])
    for (const each of stalled) each.leave()
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  })

  it('share a difference, however large, and it is gone with the last of them', () => {
    const state = texts(EMPTY, 0)
    const rig = rigOf(state)
    rig.feed.hold(state)
    const changed = rig.move(texts(state, 1))
    const stalled = Array.from({ length: 20 }, () => new Stalled(rig.transfers, state, changed))
    const [first] = stalled.map(({ transfer }) => transfer)
    expect(new Set(stalled.map(({ transfer }) => transfer)).size).toBe(1)
    expect(stalled.every(({ evictions }) => evictions === 0)).toBe(true)
    for (const each of stalled) each.leave()
    const next = new Stalled(rig.transfers, state, changed)
    expect(next.transfer).not.toBe(first)
    next.leave()
    rig.feed.release(state)
    expect(rig.feed.kept).toBe(1)
  })

  it('share small differences with others, of which sixteen are kept', () => {
    let state = largeState(50, 2)
    const rig = rigOf(state)
    const states: ApiState[] = []
    for (let round = 0; round < 20; round++) {
      rig.feed.hold(state)
      states.push(state)
      state = rig.move(nextState(state, { services: [[path, serviceObject(path, 100 + round)]] }))
    }
    const read = (from: ApiState): Transfer => {
      const transfer = rig.transfers.open(from, state, READER)
      rig.transfers.close(transfer, READER)
      return transfer
    }
    const first = states.map(read)
    expect(states.slice(4).every((from, index) => read(from) === first[index + 4])).toBe(true)
    expect(read(states[0] ?? state)).not.toBe(first[0])
    for (const from of states) rig.feed.release(from)
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  })
})

describe('a small difference', () => {
  const rigOfTwo = () => {
    const from = largeState(50, 2)
    const rig = rigOf(from)
    rig.feed.hold(from)
    return { rig, from, to: rig.move(nextState(from, { services: [[path, serviceObject(path, 99)]] })) }
  }

  it('is held by its reader when the state moves on, and is released afterwards', () => {
    const { rig, from, to } = rigOfTwo()
    const transfer = rig.transfers.open(from, to, READER)
    rig.move(nextState(to, { services: [[path, serviceObject(path, 98)]] }))
    rig.feed.release(from)
    expect(rig.feed.kept).toBe(2)
    rig.transfers.close(transfer, READER)
    expect(rig.feed.kept).toBe(1)
  })

  it('is released when a client requests a newer state before others know of it', () => {
    const { rig, from, to } = rigOfTwo()
    rig.transfers.close(rig.transfers.open(from, to, READER), READER)
    const newest = nextState(to, { services: [[path, serviceObject(path, 98)]] })
    rig.feed.offer(newest)
    rig.transfers.close(rig.transfers.open(from, newest, READER), READER)
    rig.feed.release(from)
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  })

  it('holds no memory that it does not fill', () => {
    const { rig, from, to } = rigOfTwo()
    const transfer = rig.transfers.open(from, to, READER)
    const [block] = all(transfer)
    expect(block?.buffer.byteLength).toBe(block?.length)
    rig.transfers.close(transfer, READER)
  })
})
