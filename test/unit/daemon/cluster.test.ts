import { describe, expect, it } from 'vitest'
import { Cluster, KernelReport } from '../../../src/daemon/cluster.ts'
import { EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { ApiError, type ApiRequest } from '../../../src/source/kube/api-client.ts'
import type { KernelState, LocatedRefusal } from '../../../src/source/source.ts'
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
    const { cluster, asked, counted, log } = clusterOf(status === undefined ? {} : { status })
    expect(await cluster.post(EVENT, log)).toBe(result)
    expect(asked).toMatchObject([{ method: 'POST', path: '/events', body: '{"note":"a"}' }])
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
})

/** A report by hand: Snapshots by number, and what is said of the kernel. */
function begin() {
  const said: KernelState[] = []
  const refused: LocatedRefusal[] = []
  const intake = {
    complete: true,
    snapshot: EMPTY_SNAPSHOT,
    refused,
    stale: false,
    isStale: () => intake.stale,
  }
  const report = new KernelReport({
    intake,
    quarantined: () => [],
    proof: () => undefined,
    report: state => void said.push(state),
  })
  const at = (revision: number) => ({ Service: String(revision), EndpointSlice: String(revision) })
  return {
    intake,
    report,
    said,
    reached: (revision: number, number: number) => {
      intake.snapshot = { ...EMPTY_SNAPSHOT, number }
      report.reached(at(revision))
    },
    synced: (number: number) =>
      report.take({ kind: 'synced', number, reason: 'change', durationMs: 1, readWhole: false }),
    held: () => said.at(-1)?.held?.Service,
  }
}

it('holds a revision once the Snapshot that has it is in the kernel, and not before', () => {
  const { reached, synced, held, said } = begin()
  reached(10, 1)
  expect(said).toEqual([])
  synced(1)
  expect(held()).toBe('10')
  reached(11, 2)
  reached(12, 3)
  synced(2)
  expect(held()).toBe('11')
  synced(3)
  expect(held()).toBe('12')
  // A bookmark: the kernel holds all of it already.
  reached(20, 3)
  expect(held()).toBe('20')
})

it('holds the later revision late, where many Snapshots wait for the kernel', () => {
  const { reached, synced, held } = begin()
  for (let number = 1; number <= 500; number++) reached(1_000 + number, number)
  synced(40)
  expect(held()).toBe('1040')
  synced(499)
  expect(Number(held())).toBeLessThanOrEqual(1_499)
  synced(500)
  expect(held()).toBe('1500')
})

it('claims nothing of saved objects, nor of a source that is not complete', () => {
  const { intake, reached, synced, held } = begin()
  intake.stale = true
  reached(10, 1)
  synced(1)
  expect(held()).toBeUndefined()
  intake.stale = false
  intake.complete = false
  reached(11, 2)
  synced(2)
  expect(held()).toBeUndefined()
  intake.complete = true
  reached(12, 2)
  expect(held()).toBe('12')
})

it('says why the kernel holds less, until it holds it', () => {
  const { intake, report, reached, synced, said } = begin()
  reached(10, 1)
  synced(1)
  report.take({ kind: 'failed', error: new Error('EPERM'), retryMs: 1 })
  expect(said.at(-1)).toMatchObject({ held: { Service: '10' }, failure: 'EPERM' })
  const refusal = { object: 'Service shop/cart', field: 'metadata.name', value: '', reason: 'too long' }
  intake.refused.push({ location: 'services', refusal })
  synced(2)
  expect(said.at(-1)).toMatchObject({
    failure: '',
    lacking: [{ service: 'shop/cart', reason: 'metadata.name: too long' }],
    lackingCount: 1,
  })
})
