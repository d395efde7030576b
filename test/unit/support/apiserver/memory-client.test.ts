import { describe, expect, it } from 'vitest'
import { ApiError, type ApiRequest } from '../../../../src/source/kube/api-client.ts'
import { FaultScript } from '../../../support/apiserver/faults.ts'
import { MemoryClient } from '../../../support/apiserver/memory-client.ts'
import { MemoryNetwork } from '../../../support/apiserver/memory-network.ts'
import { createRandom } from '../../../support/apiserver/random.ts'
import { Semantics } from '../../../support/apiserver/semantics.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { service } from './ask.ts'

const SERVICES = '/api/v1/services'

function rig(seed = 1) {
  const clock = new FakeClock()
  const semantics = new Semantics({ clock, bookmarkEveryMs: 0 })
  for (const name of ['a', 'b']) semantics.store.create('services', service(name))
  const faults = new FaultScript()
  const network = new MemoryNetwork({ clock, random: createRandom(seed), cutChance: 0.5 })
  const tokens: (string | undefined)[] = [undefined]
  const client = new MemoryClient({ backend: { semantics, faults }, network, clock, token: () => tokens[0] })
  return { clock, semantics, faults, network, tokens, client }
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
  pieces = 0
  over = false
  error: unknown

  constructor(client: MemoryClient, request: ApiRequest) {
    const read = async () => {
      const { status, body } = await client.send(request)
      this.status = status
      for await (const piece of body) {
        this.text += Buffer.from(piece).toString()
        this.pieces++
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
  it('brings a list, late and in pieces, and the same way for the same seed', async () => {
    const runs: unknown[] = []
    for (let run = 0; run < 2; run++) {
      const { clock, client, network } = rig(3)
      const story = new Story(client, asking(SERVICES))
      await clock.advance(100)
      expect(JSON.parse(story.text).items).toHaveLength(2)
      expect(network.busy).toBe(0)
      runs.push([story.pieces, clock.nowMs()])
    }
    expect(runs[1]).toEqual(runs[0])
  })

  it('follows a watch, and ends it when nobody reads any more', async () => {
    const { clock, client, semantics } = rig()
    const controller = new AbortController()
    const story = new Story(client, { ...WATCH, signal: controller.signal })
    await clock.advance(100)
    semantics.store.delete('services', 'ns/a')
    await clock.advance(100)
    expect(story.text.trimEnd().split('\n')).toHaveLength(3)
    controller.abort()
    await clock.advance(0)
    expect(story.kind).toBe('aborted')
    expect([client.openCount, clock.pending]).toEqual([0, 0])
  })

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

  it('finds nobody while the network refuses, and the server once it is back', async () => {
    const { clock, client, network } = rig()
    network.refuse()
    const first = new Story(client, asking(SERVICES))
    await clock.advance(100)
    expect(first.kind).toBe('unreachable')
    network.heal()
    const second = new Story(client, asking(SERVICES))
    await clock.advance(100)
    expect(second).toMatchObject({ status: 200, over: true, error: undefined })
  })

  it('gives up on a silent server after idleMs', async () => {
    const { clock, client, network } = rig()
    network.die()
    const story = new Story(client, asking(SERVICES))
    await clock.advance(29_999)
    expect(story.over).toBe(false)
    await clock.advance(1)
    expect(story.kind).toBe('silent')
  })

  it('repeats a request once when the token has changed (F13)', async () => {
    const { clock, client, semantics, tokens } = rig()
    semantics.access.tokens.set('new', { name: 'proxy' })
    tokens[0] = 'old'
    const refused = new Story(client, asking(SERVICES))
    await clock.advance(100)
    expect(refused.status).toBe(401)
    const story = new Story(client, asking(SERVICES))
    tokens[0] = 'old'
    await clock.advance(0)
    tokens[0] = 'new'
    await clock.advance(100)
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
