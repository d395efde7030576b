import { expect, it, vi } from 'vitest'
import type { Call } from '../../../../src/api/grpc/rpc.ts'
import { Watcher } from '../../../../src/api/grpc/server.ts'
import { Transfers } from '../../../../src/api/grpc/transfers.ts'
import type { ApiState } from '../../../../src/api/state.ts'
import { encodeLocalv1, framed } from '../../../support/api/localv1.ts'
import { EMPTY, feedOf, nextState, serviceObject } from '../../../support/api/states.ts'

const REQUEST = Buffer.alloc(0)
const frame = (item: object): string => framed(encodeLocalv1('OpItem', item)).toString('hex')
const SYNC = frame({ Sync: {} })
const RESET = frame({ Reset: {} })

function rigOf(state: ApiState) {
  const written: string[] = []
  const rig = { written, reads: true, feed: feedOf(state) }
  const call: Call = {
    organizations: [],
    write: frames => {
      written.push(frames.toString('hex'))
      return rig.reads
    },
    end: () => undefined,
    attempt: step => step(),
  }
  const transfers = new Transfers(rig.feed)
  const watcher = new Watcher(call, {
    nodeName: 'node-a',
    feed: rig.feed,
    transfers,
    sent: () => undefined,
    closed: () => undefined,
  })
  return Object.assign(rig, { watcher, transfers })
}

const [a, b] = [serviceObject('default/a', 80), serviceObject('default/b', 81)]
const withA = nextState(EMPTY, { services: [[a.path, a]] })
const hexOf = ({ memory }: { readonly memory: Buffer }): string => memory.toString('hex')

it('an evicted client gets a Reset once it reads again, and then everything', () => {
  const rig = rigOf(withA)
  rig.reads = false
  rig.watcher.message(REQUEST)
  expect(rig.written).toEqual([hexOf(a)])
  rig.watcher.evicted()
  const onlyB = nextState(withA, {
    services: [
      [a.path, undefined],
      [b.path, b],
    ],
  })
  rig.feed.offer(onlyB)
  // It has not read: nothing is opened for it, and nothing held.
  rig.watcher.moved()
  expect(rig.written).toHaveLength(1)
  rig.reads = true
  rig.watcher.drained()
  expect(rig.written.slice(1).join('')).toBe([RESET, hexOf(b), SYNC].join(''))
})

it('an evicted client gets a Reset even where nothing is left', () => {
  const rig = rigOf(withA)
  rig.reads = false
  rig.watcher.message(REQUEST)
  rig.watcher.evicted()
  rig.feed.offer(nextState(withA, { services: [[a.path, undefined]] }))
  rig.reads = true
  rig.watcher.drained()
  expect(rig.written.slice(1).join('')).toBe([RESET, SYNC].join(''))
})

it('who reads on keeps its place longer than who does not', () => {
  const rig = rigOf(withA)
  rig.watcher.message(REQUEST)
  rig.watcher.message(REQUEST)
  rig.reads = false
  rig.feed.offer(nextState(withA, { services: [[b.path, b]] }))
  rig.watcher.moved()
  const progressed = vi.spyOn(rig.transfers, 'progressed')
  rig.watcher.drained()
  expect(progressed).toHaveBeenCalledTimes(1)
})

it('a host name in capitals is the name of its node', () => {
  const rig = rigOf(EMPTY)
  rig.watcher.message(encodeLocalv1('WatchReq', { NodeName: 'Node-A' }))
  expect(rig.written).toEqual([SYNC])
  expect(() => rig.watcher.message(encodeLocalv1('WatchReq', { NodeName: 'node-b' }))).toThrow('"node-b"')
})

it('closing lets go of everything, in the middle as well', () => {
  for (const reads of [true, false]) {
    const rig = rigOf(withA)
    rig.reads = reads
    rig.watcher.message(REQUEST)
    rig.watcher.message(REQUEST)
    rig.feed.offer(nextState(withA, { services: [[b.path, b]] }))
    rig.transfers.moved()
    rig.watcher.moved()
    rig.watcher.closed()
    rig.transfers.moved()
    expect(rig.feed.kept).toBe(1)
  }
})
