import { describe, expect, it } from 'vitest'
import { ApiError, type ApiRequest } from '../../../../src/source/kube/api-client.ts'
import { FaultScript } from '../../../support/apiserver/faults.ts'
import { MemoryClient } from '../../../support/apiserver/memory-client.ts'
import { MemoryNetwork } from '../../../support/apiserver/memory-network.ts'
import { createRandom } from '../../../support/apiserver/random.ts'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { service } from './service.ts'

const SERVICES = '/api/v1/services'

function rig() {
  const clock = new FakeClock()
  const semantics = new Semantics({ clock, bookmarkEveryMs: 0 })
  for (const name of ['a', 'b']) semantics.store.create('services', service(name))
  const faults = new FaultScript()
  const network = new MemoryNetwork({ clock, random: createRandom(1), cutChance: 0.5 })
  const client = new MemoryClient({ backend: { semantics, faults }, network, clock, token: () => undefined })
  return { clock, semantics, faults, network, client }
}

function asking(path: string, more: Partial<ApiRequest> = {}): ApiRequest {
  const { signal } = new AbortController()
  return {
    method: 'GET',
    path,
    accept: 'application/json',
    idleMs: 30_000,
    longLived: false,
    signal,
    ...more,
  }
}

const WATCH = asking(`${SERVICES}?watch=true&resourceVersion=0`, { longLived: true })

/** What becomes of a request while time goes by. */
class Story {
  text = ''
  status = 0
  over = false
  error: unknown

  constructor(client: MemoryClient, request: ApiRequest) {
    const read = async () => {
      const { status, body } = await client.send(request)
      this.status = status
      for await (const piece of body) {
        this.text += Buffer.from(piece).toString()
      }
    }
    const done = () => {
      this.over = true
    }
    read().then(done, error => {
      this.error = error
      done()
    })
  }

  get kind(): string | undefined {
    return this.error instanceof ApiError ? this.error.kind : undefined
  }
}

describe('the client in memory', () => {
  it.each([
    ['cut', 'lost', 0],
    ['refuse', 'lost', 0],
    ['die', 'silent', 45_000],
  ] as const)('loses a watch when the network is to %s', async (how, kind, afterMs) => {
    const { clock, client, network } = rig()
    const story = new Story(client, WATCH)
    await clock.advance(100)
    network[how]()
    await clock.advance(afterMs)
    expect(story.kind).toBe(kind)
    expect(story.status).toBe(200)
  })

  it('says which answers came to no end', async () => {
    const { clock, client, faults } = rig()
    const at = { bytes: 20 }
    faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'rst-stream', at }] })
    const cut = new Story(client, asking(SERVICES))
    await clock.advance(100)
    expect(cut).toMatchObject({ kind: 'lost', status: 200 })
    expect(cut.text).toHaveLength(20)
    faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'end', at: 'before' }] })
    const none = new Story(client, asking(SERVICES))
    await clock.advance(100)
    expect(none).toMatchObject({ kind: 'lost', status: 0 })
  })
})
