import { once } from 'node:events'
import fc from 'fast-check'
import { afterEach, describe, expect, it } from 'vitest'
import { roomFor, writeOperation } from '../../../../src/api/grpc/op-item.ts'
import { Transfer } from '../../../../src/api/grpc/transfer.ts'
import type { ApiOperation } from '../../../../src/api/state.ts'
import { encodeLocalv1 } from '../../../support/api/localv1.ts'
import { type ApiRig, apiRig } from '../../../support/api/rig.ts'
import {
  EMPTY,
  endpointObject,
  feedOf,
  largeState,
  nextState,
  serviceObject,
} from '../../../support/api/states.ts'
import { openStream } from '../../../support/api/watch-client.ts'

let rig: ApiRig | undefined
afterEach(() => rig?.end())

function framed(message: Buffer): Buffer {
  const prefix = Buffer.alloc(5)
  prefix.writeUInt32BE(message.length, 1)
  return Buffer.concat([prefix, message])
}

function expected(operation: ApiOperation): Buffer {
  if (operation.kind === 'delete')
    return encodeLocalv1('OpItem', { Delete: { Set: operation.set, Path: operation.path } })
  const { path, bytes } = operation.object
  const Value = { Ref: { Set: operation.set, Path: path }, ...(bytes.length > 0 && { Bytes: bytes }) }
  return encodeLocalv1('OpItem', { Set: Value })
}

describe('on the wire', () => {
  it('operations are what another implementation of protobuf writes, byte for byte', () => {
    const path = fc.oneof(fc.string({ unit: 'grapheme', minLength: 1 }), fc.constant('n'.repeat(20_000)))
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 300 }),
      fc.integer({ min: 0, max: 300_000 }).map(length => new Uint8Array(length).fill(7)),
    )
    const set = fc.constantFrom(1, 2)
    const operation: fc.Arbitrary<ApiOperation> = fc.oneof(
      fc.record({ kind: fc.constant('delete' as const), set, path }),
      fc.record({
        kind: fc.constant('set' as const),
        set,
        object: fc.record({ path, bytes, json: fc.constant({}) }),
      }),
    )
    fc.assert(
      fc.property(operation, fc.integer({ min: 0, max: 9 }), (its, start) => {
        const block = Buffer.alloc(start + roomFor(its))
        const end = writeOperation(block, start, its)
        expect(block.subarray(start, end).equals(framed(expected(its)))).toBe(true)
      }),
      { numRuns: 300 },
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
        { Set: { Ref: { Set: 1, Path: a.path }, Bytes: a.bytes } },
        { Set: { Ref: { Set: 2, Path: a1.path }, Bytes: a1.bytes } },
        { Sync: {} },
      ),
    )
    feed.offer(second)
    stream.write(request)
    expect(await read(5)).toEqual(
      hex(
        { Set: { Ref: { Set: 1, Path: b.path }, Bytes: b.bytes } },
        { Set: { Ref: { Set: 2, Path: b1.path }, Bytes: b1.bytes } },
        { Delete: { Set: 2, Path: a1.path } },
        { Delete: { Set: 1, Path: a.path } },
        { Sync: {} },
      ),
    )
    const moved = read(2)
    rig.server.replace(feedOf(EMPTY))
    stream.write(request)
    expect(await moved).toEqual(hex({ Reset: {} }, { Sync: {} }))
  })
})

describe('a transfer', () => {
  it('makes its blocks when the first reader gets there, of whole messages', () => {
    const state = largeState(500, 3)
    const transfer = new Transfer(undefined, state)
    const afterOne = transfer.bytes
    expect(afterOne).toBeLessThanOrEqual(64 * 1024)
    let all = Buffer.alloc(0)
    let operations = 0
    for (let index = 0; ; index++) {
      const block = transfer.block(index)
      if (block === undefined) break
      expect(block.frames.readUInt32BE(1)).toBeLessThan(block.frames.length)
      all = Buffer.concat([all, block.frames])
      operations += block.operations
    }
    expect(operations).toBe(2_000)
    expect(transfer.bytes).toBe(all.length)
    expect(afterOne).toBeLessThan(all.length)
    const whole = [
      ...state.services.values().map(object => ({ kind: 'set', set: 1, object }) as const),
      ...state.endpoints.values().map(object => ({ kind: 'set', set: 2, object }) as const),
    ].map(its => framed(expected(its)))
    expect(all.equals(Buffer.concat([...whole, framed(encodeLocalv1('OpItem', { Sync: {} }))]))).toBe(true)
  })

  it('has room for an object that is larger than a block', () => {
    const object = { path: 'default/large', bytes: new Uint8Array(1 << 20).fill(1), json: {} }
    const state = nextState(EMPTY, { services: [[object.path, object]] })
    const block = new Transfer(undefined, state).block(0)
    expect(block?.operations).toBe(1)
    expect(block?.frames.length).toBeGreaterThan(1 << 20)
  })
})
