import { describe, expect, it } from 'vitest'
import { Cluster } from '../../../src/daemon/cluster.ts'
import { ApiError, type ApiRequest } from '../../../src/source/kube/api-client.ts'
import type { EventWrite } from '../../../src/telemetry/event.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const EVENT: EventWrite = { path: '/events', body: { note: 'a' } }
const SERVER = 'https://192.0.2.1:6443'

/** A server that answers with these, in order and then with the last one; without a status, nobody listens. */
function clusterOf(...answers: readonly { readonly status?: number; readonly body?: object }[]) {
  const asked: ApiRequest[] = []
  const counted: (number | undefined)[] = []
  const { log, lines } = recordedLog()
  const cluster = new Cluster({
    client: {
      server: SERVER,
      close: () => Promise.resolve(),
      authorities: () => Promise.resolve(['aa']),
      send(request) {
        const { status, body } = answers[asked.length] ?? answers.at(-1) ?? {}
        asked.push(request)
        if (status === undefined) return Promise.reject(new ApiError('unreachable', 'nobody listens'))
        async function* bytes(): AsyncGenerator<Uint8Array> {
          if (body !== undefined) yield Buffer.from(JSON.stringify(body))
        }
        const contentType = 'application/json'
        return Promise.resolve({ status, contentType, retryAfterMs: undefined, body: bytes() })
      },
    },
    clock: new FakeClock(),
    random: () => 0,
    requested: ({ status }) => counted.push(status),
  })
  return { cluster, asked, counted, log, lines }
}

describe('Cluster', () => {
  it.each([
    [201, 'taken'],
    [409, 'taken'],
    [404, 'refused'],
    [403, 'refused'],
    [429, 'retry'],
    [503, 'retry'],
    [undefined, 'retry'],
  ] as const)('makes of an event answered with %s: %s', async (status, result) => {
    const { cluster, counted, log } = clusterOf(status === undefined ? {} : { status })
    expect(await cluster.post(EVENT, log)).toBe(result)
    expect(counted).toEqual([status])
  })

  it('gives the answer about one object, or the words of the server, or why there is none', async () => {
    const question = { method: 'GET', path: '/api/v1/nodes/here' } as const
    const forbidden = { kind: 'Status', apiVersion: 'v1', code: 403, message: 'nodes "here" is forbidden' }
    const { cluster } = clusterOf({ status: 200, body: { a: 1 } }, { status: 403, body: forbidden }, {})
    expect(await cluster.ask(question)).toEqual({ kind: 'taken', value: { a: 1 } })
    expect(await cluster.ask(question)).toMatchObject({
      kind: 'failed',
      text: expect.stringContaining('nodes "here" is forbidden'),
    })
    expect(await cluster.ask(question)).toEqual({ kind: 'failed', text: 'nobody listens' })
    const owner = { node: 'here', proxy: 'edge', server: SERVER, authorities: ['aa'] }
    expect(await cluster.owner({ nodeName: 'here', serviceProxyName: 'edge' })).toEqual(owner)
  })

  it('F148: names the right that is missing for events, once until an event is taken', async () => {
    const message = 'events is forbidden: User "kprobe" cannot create resource "events"'
    const body = { apiVersion: 'v1', kind: 'Status', code: 403, reason: 'Forbidden', message }
    const { cluster, log, lines } = clusterOf(...[403, 403, 201, 403].map(status => ({ status, body })))
    for (let time = 0; time < 4; time++) await cluster.post(EVENT, log)
    const text = `cannot write events: status 403 Forbidden: ${message}`
    expect(lines.map(({ msg }) => msg)).toEqual([text, text].map(each => expect.stringContaining(each)))
  })

  it('creates events', async () => {
    const { cluster, asked, log } = clusterOf({ status: 200 })
    await cluster.post(EVENT, log)
    expect(asked).toMatchObject([{ method: 'POST', path: '/events', body: '{"note":"a"}' }])
  })
})
