import { describe, expect, it } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { Cluster } from '../../../src/daemon/cluster.ts'
import { ApiError, type ApiRequest } from '../../../src/source/kube/api-client.ts'
import type { EventWrite } from '../../../src/telemetry/event.ts'
import { FakeClock } from '../../support/fake-clock.ts'

const POST: EventWrite = { method: 'POST', path: '/events', body: { note: 'a' } }
const PATCH: EventWrite = { method: 'PATCH', path: '/events/a', body: {} }
const log = createLog({ format: 'json', verbosity: 0, destination: { write: () => undefined } })

async function* nothing(): AsyncGenerator<Uint8Array> {
  yield* []
}

/** A server that answers with this status, or not at all. */
function clusterOf(status: number | undefined) {
  const asked: ApiRequest[] = []
  const counted: (number | undefined)[] = []
  const cluster = new Cluster({
    client: {
      server: 'https://192.0.2.1:6443',
      close: () => Promise.resolve(),
      send(request) {
        asked.push(request)
        if (status === undefined) return Promise.reject(new ApiError('unreachable', 'nobody listens'))
        const answer = { status, contentType: 'application/json', retryAfterMs: undefined, body: nothing() }
        return Promise.resolve(answer)
      },
    },
    clock: new FakeClock(),
    random: () => 0,
    requested: ({ status: told }) => counted.push(told),
  })
  return { cluster, asked, counted }
}

describe('Cluster', () => {
  it.each([
    [POST, 201, 'taken'],
    [POST, 409, 'taken'],
    [PATCH, 409, 'refused'],
    [PATCH, 404, 'absent'],
    [POST, 404, 'refused'],
    [POST, 403, 'refused'],
    [POST, 429, 'retry'],
    [PATCH, 503, 'retry'],
    [POST, undefined, 'retry'],
  ] as const)('makes of %j answered with %s: %s', async (write, status, result) => {
    const { cluster, counted } = clusterOf(status)
    expect(await cluster.post(write, log)).toBe(result)
    expect(counted).toEqual([status])
  })

  it('gives the answer about one object, or the words of the server, or why there is none', async () => {
    const answer = (status: number, body: object | undefined) => {
      async function* bytes(): AsyncGenerator<Uint8Array> {
        yield Buffer.from(JSON.stringify(body))
      }
      const contentType = 'application/json'
      return new Cluster({
        client: {
          server: 'https://192.0.2.1:6443',
          close: () => Promise.resolve(),
          authorities: () => Promise.resolve(['aa']),
          send: () =>
            body === undefined
              ? Promise.reject(new ApiError('unreachable', 'nobody listens'))
              : Promise.resolve({ status, contentType, retryAfterMs: undefined, body: bytes() }),
        },
        clock: new FakeClock(),
        random: () => 0,
        requested: () => undefined,
      })
    }
    const question = { method: 'GET', path: '/api/v1/nodes/here' } as const
    expect(await answer(200, { a: 1 }).ask(question)).toEqual({ kind: 'taken', value: { a: 1 } })
    const forbidden = { kind: 'Status', apiVersion: 'v1', code: 403, message: 'nodes "here" is forbidden' }
    expect(await answer(403, forbidden).ask(question)).toMatchObject({
      kind: 'failed',
      text: expect.stringContaining('nodes "here" is forbidden'),
    })
    expect(await answer(0, undefined).ask(question)).toEqual({ kind: 'failed', text: 'nobody listens' })
    const owner = { node: 'here', proxy: 'edge', server: 'https://192.0.2.1:6443', authorities: ['aa'] }
    expect(await answer(200, {}).owner({ nodeName: 'here', serviceProxyName: 'edge' })).toEqual(owner)
  })

  it('F148: names the right that is missing for events, once until an event is taken', async () => {
    const message = 'events is forbidden: User "kprobe" cannot create resource "events"'
    const body = JSON.stringify({ apiVersion: 'v1', kind: 'Status', code: 403, reason: 'Forbidden', message })
    let status = 403
    const said: string[] = []
    const heard = createLog({ format: 'json', verbosity: 0, destination: { write: line => said.push(line) } })
    async function* bytes(): AsyncGenerator<Uint8Array> {
      yield Buffer.from(body)
    }
    const cluster = new Cluster({
      client: {
        server: 'https://192.0.2.1:6443',
        close: () => Promise.resolve(),
        send: () =>
          Promise.resolve({
            status,
            contentType: 'application/json',
            retryAfterMs: undefined,
            body: bytes(),
          }),
      },
      clock: new FakeClock(),
      random: () => 0,
      requested: () => undefined,
    })
    for (const next of [403, 403, 201, 403]) {
      status = next
      await cluster.post(POST, heard)
    }
    expect(said).toHaveLength(2)
    for (const line of said)
      expect(JSON.parse(line).msg).toContain(`cannot write events: status 403 Forbidden: ${message}`)
  })

  it('sends events as what they are', async () => {
    const { cluster, asked } = clusterOf(200)
    await cluster.post(POST, log)
    await cluster.post(PATCH, log)
    expect(asked.map(({ contentType, body }) => [contentType, body])).toEqual([
      ['application/json', '{"note":"a"}'],
      ['application/merge-patch+json', '{}'],
    ])
  })
})
