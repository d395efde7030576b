import { once } from 'node:events'
import { connect } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import type { ApiServerOptions } from '../../../../src/api/grpc/server.ts'
import { GrpcPeer } from '../../../support/api/grpc-peer.ts'
import { type ApiRig, apiRig } from '../../../support/api/rig.ts'
import { EMPTY, feedOf } from '../../../support/api/states.ts'
import { statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { eventually } from '../../../support/patience.ts'

let rig: ApiRig
const start = async (options: Partial<ApiServerOptions>): Promise<void> => {
  rig = await apiRig(feedOf(EMPTY), options)
}
afterEach(() => rig.end())

const path = (): string => rig.server.address.replace('unix://', '')

describe('shares', () => {
  it('F132: a call of the connection with most of them gives way to one of a connection with none', async () => {
    await start({ callsMax: 3 })
    const greedy = rig.client()
    const streams = Array.from({ length: 3 }, () => new WatchClient(greedy))
    await Promise.all(streams.map(stream => stream.ask()))
    const status = statusOf(streams[0]?.stream ?? expect.fail('there is one'))
    const other = new WatchClient(rig.client())
    expect(await other.ask()).toBe(1)
    expect(await status).toMatchObject({ code: 8, details: 'too many calls, and other clients have fewer' })
    for (const { stream } of [...streams, other]) stream.cancel()
  })

  it('F132: a silent connection gives way to one that comes', async () => {
    await start({ connectionsMax: 2 })
    const silent = connect({ path: path() })
    await eventually(() => rig.server.counts().connections === 1, 'it is there')
    const gone = once(silent.resume(), 'close')
    const peers = [new GrpcPeer(path()), new GrpcPeer(path())]
    await Promise.all(peers.map(peer => peer.ask(7)))
    await gone
    expect(rig.server.overShare).toEqual({ evicted: 1, refused: 0 })
    for (const peer of peers) peer.destroy()
    await eventually(() => rig.server.counts().connections === 0, 'they are gone')
  })
})
