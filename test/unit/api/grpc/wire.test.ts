import { once } from 'node:events'
import fc from 'fast-check'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { FrameEncoder } from '../../../../src/api/grpc/rpc.ts'
import { Transfer } from '../../../../src/api/grpc/transfers.ts'
import { ObjectMaker } from '../../../../src/api/object-maker.ts'
import { localv1 } from '../../../../src/api/schema.ts'
import { type ApiObject, SET_ENDPOINTS, SET_SERVICES } from '../../../../src/api/state.ts'
import { encodeLocalv1, framed } from '../../../support/api/localv1.ts'
import { type ApiRig, apiRig } from '../../../support/api/rig.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  messageIn,
  nextState,
  objectOf,
  serviceObject,
} from '../../../support/api/states.ts'
import { openStream } from '../../../support/api/watch-client.ts'
import { runs } from '../../../support/runs.ts'

let rig: ApiRig | undefined
afterEach(() => rig?.end())

describe('on the wire', () => {
  it('operations are what another implementation of protobuf writes, byte for byte', () => {
    const path = fc.oneof(fc.string({ unit: 'grapheme', minLength: 1 }), fc.constant('n'.repeat(20_000)))
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 300 }),
      fc.integer({ min: 0, max: 300_000 }).map(length => new Uint8Array(length).fill(7)),
    )
    const ref = fc.record({ Set: fc.constantFrom(1, 2), Path: path }, { noNullPrototype: true })
    const frames = new FrameEncoder()
    fc.assert(
      fc.property(ref, fc.option(bytes), (Ref, message) => {
        const Bytes = Buffer.from(message ?? [])
        const ours = frames.encode(
          localv1.OpItem,
          message === null ? { Delete: Ref } : { Set: { Ref, Bytes } },
        )
        const item =
          message === null ? { Delete: Ref } : { Set: { Ref, ...(message.length > 0 && { Bytes: message }) } }
        expect(ours.equals(framed(encodeLocalv1('OpItem', item)))).toBe(true)
      }),
      { numRuns: runs(300) },
    )
  })

  it('a stream is the messages of KPNG in the order that its clients need', async () => {
    const [a, b] = [serviceObject('default/a', 80), serviceObject('default/b', 81)]
    const [a1, b1] = [endpointObject('default/a/1', 1), endpointObject('default/b/1', 2)]
    const first = nextState(EMPTY, { services: [[a.path, a]], endpoints: [[a1.path, a1]] })
    const second = nextState(first, {
      services: [
        [a.path, undefined],
        [b.path, b],
      ],
      endpoints: [
        [a1.path, undefined],
        [b1.path, b1],
      ],
    })
    const feed = feedOf(first)
    rig = await apiRig(feed)
    const stream = openStream(rig.client(), '/localv1.Sets/Watch')
    stream.on('error', () => undefined)
    const received: string[] = []
    const read = async (count: number): Promise<string[]> => {
      while (received.length < count) {
        const [message]: unknown[] = await once(stream, 'data')
        if (message instanceof Buffer) received.push(message.toString('hex'))
      }
      return received.splice(0)
    }
    const hex = (...items: object[]) => items.map(item => encodeLocalv1('OpItem', item).toString('hex'))
    const request = encodeLocalv1('WatchReq', { NodeName: 'node-a' })
    expect(request.toString('hex')).toBe('0a066e6f64652d61')

    stream.write(request)
    expect(await read(3)).toEqual(
      hex(
        { Set: { Ref: { Set: 1, Path: a.path }, Bytes: messageIn(a) } },
        { Set: { Ref: { Set: 2, Path: a1.path }, Bytes: messageIn(a1) } },
        { Sync: {} },
      ),
    )
    feed.offer(second)
    stream.write(request)
    expect(await read(5)).toEqual(
      hex(
        { Set: { Ref: { Set: 1, Path: b.path }, Bytes: messageIn(b) } },
        { Set: { Ref: { Set: 2, Path: b1.path }, Bytes: messageIn(b1) } },
        { Delete: { Set: 2, Path: a1.path } },
        { Delete: { Set: 1, Path: a.path } },
        { Sync: {} },
      ),
    )
  })
})

/** Objects, some of which stand behind each other in one memory, and are as long as they say. */
const anyObjects = fc.array(
  fc.record({
    length: fc.oneof(fc.integer({ min: 1, max: 300 }), fc.integer({ min: 1, max: 100_000 })),
    isBehind: fc.boolean(),
  }),
  { maxLength: 60 },
)

function stateOfFrames(parts: readonly { readonly length: number; readonly isBehind: boolean }[]) {
  let object: ApiObject | undefined
  const objects = parts.map(({ length, isBehind }, index): [string, ApiObject] => {
    const start = isBehind && object !== undefined ? object.end : 3
    const memory = isBehind && object !== undefined ? object.memory : Buffer.alloc(8_000_000, index + 1)
    object = { path: `default/${index}`, json: {}, memory, start, end: start + length }
    return [object.path, object]
  })
  const half = objects.length / 2
  return nextState(EMPTY, { services: objects.slice(0, half), endpoints: objects.slice(half) })
}

function blocksOf(transfer: Transfer) {
  const blocks = []
  for (let block = transfer.block(0); block !== undefined; block = transfer.block(blocks.length))
    blocks.push(block)
  return blocks
}

const SYNC = framed(encodeLocalv1('OpItem', { Sync: {} }))

describe('a transfer', () => {
  it('is the frames of its objects in their order, wherever those are, and behind a difference the Sync', () => {
    fc.assert(
      fc.property(anyObjects, parts => {
        const state = stateOfFrames(parts)
        const blocks = blocksOf(new Transfer(undefined, state))
        const objects = [...state.services.values(), ...state.endpoints.values()]
        const frames = objects.map(({ memory, start, end }) => memory.subarray(start, end))
        expect(Buffer.concat(blocks).equals(Buffer.concat(frames))).toBe(true)
        const difference = Buffer.concat(blocksOf(new Transfer(EMPTY, state)))
        expect(difference.equals(Buffer.concat([...frames, SYNC]))).toBe(true)
        expect(blocks.every(({ length }) => length > 0)).toBe(true)
      }),
      { numRuns: runs(60) },
    )
  })

  it('makes its blocks when the first reader gets there', () => {
    const objects = Array.from({ length: 2_000 }, (_, index) =>
      objectOf(SET_ENDPOINTS, `default/a/${index}`, { Hostname: `host-${index}`.padEnd(100, '-') }),
    )
    const state = nextState(EMPTY, { endpoints: objects.map(object => [object.path, object]) })
    const make = vi.spyOn(Buffer, 'allocUnsafeSlow')
    const transfer = new Transfer(undefined, state)
    expect(make).toHaveBeenCalledTimes(1)
    expect(transfer.isSmall).toBe(false)
    expect(blocksOf(transfer).length).toBeGreaterThan(3)
    make.mockRestore()
  })

  it('copies nothing of a state that was made at once', () => {
    const maker = new ObjectMaker({ isWhole: true })
    const objects = Array.from({ length: 2_000 }, (_, index) =>
      maker.make({ set: SET_SERVICES, path: `default/${index}` }, { Name: `${index}`.padEnd(100, '-') }),
    )
    const services = objects.map(object => [object.path, object] as const)
    const state = nextState(EMPTY, { services })
    expect(new Transfer(state, state).isEmpty).toBe(true)
    const memories = new Set(objects.map(({ memory }) => memory.buffer))
    expect(memories.size).toBeLessThan(6)
    const blocks = blocksOf(new Transfer(undefined, state))
    expect(blocks.filter(({ buffer }) => memories.has(buffer)).length).toBeGreaterThan(2)
  })
})
