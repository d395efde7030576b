import { afterEach, expect, it } from 'vitest'
import type { ApiFeed } from '../../../../src/api/feed.ts'
import type { ApiServer } from '../../../../src/api/grpc/server.ts'
import { Transfer } from '../../../../src/api/grpc/transfers.ts'
import type { ApiState } from '../../../../src/api/state.ts'
import { GrpcPeer } from '../../../support/api/grpc-peer.ts'
import { type ApiRig, apiRig, quiet } from '../../../support/api/rig.ts'
import { endpointObject, feedOf, largeState, nextState } from '../../../support/api/states.ts'
import { contentOf, WatchClient } from '../../../support/api/watch-client.ts'
import { eventually } from '../../../support/patience.ts'

/** Of `OpItem{Sync: {}}` behind its prefix. */
const SYNC_BYTES = 7

const CLIENTS = 998
const CHANGES = 5
/** What a socket and the windows of a connection take before the writer is told to wait: far less than the state. */
const UNREAD_MAX = 1 << 20

let rig: ApiRig | undefined
const peers: GrpcPeer[] = []
afterEach(async () => {
  for (const peer of peers.splice(0)) peer.destroy()
  await rig?.end()
})

it('1,000 clients, of which one is slow and one is dead, hold no more than the states in transfer', async () => {
  const small = largeState(20, 2)
  const feed = feedOf(small)
  rig = await apiRig(feed)
  const { server } = rig
  const path = server.address.replace('unix://', '')
  const whole = bytesOf(new Transfer(undefined, small)) + SYNC_BYTES
  await attach(path, whole)
  expect(server.counts()).toMatchObject({ streams: CLIENTS, waiting: 0, bytes: CLIENTS * whole })

  const more = largeState(5_000, 8)
  const [services, endpoints] = [more.services.entries(), more.endpoints.entries()]
  const large = nextState(small, { services, endpoints })
  const largeBytes = bytesOf(new Transfer(undefined, large)) + SYNC_BYTES
  expect(largeBytes).toBeGreaterThan(3 * UNREAD_MAX)
  feed.offer(large)
  const givenBefore = server.counts().bytes
  const dead = new GrpcPeer(path)
  peers.push(dead)
  dead.socket.pause()
  void dead.ask(largeBytes)
  const slow = new WatchClient(rig.client())
  slow.stream.pause()
  const slowSynced = slow.ask()
  await eventually(() => server.counts().streams === CLIENTS + 2, 'both have begun')
  await quiet(() => server.counts().bytes)

  // Everything that was large goes away again: for those who never heard of it nothing has happened.
  let state = nextState(large, {
    services: more.services.keys().map(key => [key, small.services.get(key)] as const),
    endpoints: more.endpoints.keys().map(key => [key, small.endpoints.get(key)] as const),
  })
  feed.offer(state)
  for (let change = 0; change < CHANGES; change++) {
    state = await tellAll(server, feed, state, change)
    // The position of those who read, the newest state, and what the two others are being told.
    expect(feed.kept).toBeLessThanOrEqual(3)
  }
  const received = peers.slice(0, CLIENTS).reduce((sum, peer) => sum + peer.received, 0)
  expect(server.counts().bytes - givenBefore - (received - CLIENTS * whole)).toBeLessThan(2 * UNREAD_MAX)

  // The slow one gets the state that was begun, and one difference from it.
  slow.stream.resume()
  await slowSynced
  expect(slow.store.content()).toEqual(contentOf(state))

  for (const peer of peers.splice(0)) peer.destroy()
  slow.stream.cancel()
  await eventually(() => server.counts().streams === 0, 'nothing is left of them')
  expect(feed.kept).toBe(1)
  expect(rig.errors).toEqual([])
})

async function attach(path: string, whole: number): Promise<void> {
  const buffer = Buffer.alloc(64 * 1024)
  for (let index = 0; index < CLIENTS; index++) {
    const peer = new GrpcPeer(path, buffer)
    peers.push(peer)
    await peer.ask(whole)
  }
}

/** One endpoint changes, and all who read have asked for it; the state that they are told. */
async function tellAll(
  server: ApiServer,
  feed: ApiFeed,
  before: ApiState,
  change: number,
): Promise<ApiState> {
  const [key = ''] = before.endpoints.keys()
  const state = nextState(before, { endpoints: [[key, endpointObject(key, 5_000 + change)]] })
  const bytes = bytesOf(new Transfer(before, state))
  const asked = peers.slice(0, CLIENTS).map(peer => peer.ask(bytes))
  await eventually(() => server.counts().waiting === CLIENTS, 'all requests wait')
  feed.offer(state)
  await Promise.all(asked)
  return state
}

function bytesOf(transfer: Transfer): number {
  let bytes = 0
  for (let index = 0, block = transfer.block(0); block !== undefined; block = transfer.block(++index))
    bytes += block.length
  return bytes
}
