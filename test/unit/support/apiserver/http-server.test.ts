import { gunzipSync, gzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { errorEvent } from '../../../support/apiserver/faults.ts'
import { ApiServer } from '../../../support/apiserver/http-server.ts'
import { service } from './ask.ts'
import { askHttp1, askHttp2, session } from './client.ts'

const SERVICES = '/api/v1/services'
const WATCH = `${SERVICES}?watch=true&resourceVersion=0`

/* Faults of which a test of ours would not notice that they never came: that it survives them is all that it says. */

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function started(): Promise<ApiServer> {
  const server = await ApiServer.start()
  cleanups.push(() => server.close())
  for (const name of ['a', 'b', 'c']) server.store.create('services', service(name))
  return server
}

function sessionWith(server: ApiServer) {
  const made = session(server)
  cleanups.push(() => made.destroy())
  return made
}

const lines = (body: Buffer): number => body.toString().split('\n').length - 1

describe('faults of HTTP/2 (F27)', () => {
  it('a stream is reset after k events, the connection is not', async () => {
    const server = await started()
    const on = sessionWith(server)
    const at = { events: 2 }
    server.faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'rst-stream', at }] })
    const { error, body } = await askHttp2(on, WATCH)
    expect(error).toMatchObject({ message: expect.stringContaining('NGHTTP2_INTERNAL_ERROR') })
    expect(lines(body)).toBe(2)
    expect((await askHttp2(on, SERVICES)).code).toBe(200)
  })

  it('GOAWAY leaves the streams there are alone', async () => {
    const server = await started()
    const on = sessionWith(server)
    server.faults.add({ times: 1, faults: [{ kind: 'goaway', at: { events: 1 } }] })
    const told = new Promise(resolve => on.once('goaway', resolve))
    const answer = askHttp2(on, WATCH, {
      enough: body => {
        if (lines(body) === 3) server.store.delete('services', 'ns/a')
        return lines(body) === 4
      },
    })
    expect(await told).toBe(0)
    expect(lines((await answer).body)).toBe(4)
  })
})

describe('faults in responses', () => {
  it('are events that were never there, lost, doubled and turned round', async () => {
    const server = await started()
    const second = (_event: unknown, index: number) => index === 1
    server.faults.add({
      faults: [
        { kind: 'event', after: 0, event: errorEvent(500, 'InternalError') },
        { kind: 'lose', which: (_event, index) => index === 0 },
        { kind: 'duplicate', which: second },
        { kind: 'reverse', group: 3 },
        { kind: 'ending', ending: 'end', at: { events: 3 } },
      ],
    })
    const { body } = await askHttp1(server, WATCH)
    const events = body
      .toString()
      .trimEnd()
      .split('\n')
      .map(line => JSON.parse(line))
    const names = events.map(({ type, object }) => object.metadata.name ?? type)
    expect(names).toEqual(['ERROR', 'c', 'b', 'b'])
  })

  it('are bytes out of place and answers that trickle (F24, F28)', async () => {
    const server = await started()
    server.faults.add({
      faults: [
        { kind: 'bytes', at: { bytes: 5 }, bytes: () => Buffer.from('??') },
        { kind: 'slow', bytesPerSecond: 100 },
      ],
    })
    const { body } = await askHttp1(server, SERVICES, { enough: soFar => soFar.length >= 12 })
    expect(body.toString().slice(0, 12)).toBe('{"kin??d":"S')
  })
})

describe('compression', () => {
  const headers = { 'accept-encoding': 'gzip' }
  const STREAMING = `${SERVICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true`

  it('is of watches that begin with a list, with a gzip member for each flush', async () => {
    const server = await started()
    const initial: Buffer[] = []
    const { body, ...answer } = await askHttp2(sessionWith(server), STREAMING, {
      headers,
      enough: soFar => {
        if (initial.length === 0) {
          initial.push(soFar)
          server.store.delete('services', 'ns/a')
        }
        return soFar.length > (initial[0]?.length ?? 0)
      },
    })
    expect(answer.headers['content-encoding']).toBe('gzip')
    expect(lines(gunzipSync(initial[0] ?? Buffer.alloc(0)))).toBe(4)
    const event = body.subarray(initial[0]?.length)
    expect(JSON.parse(gunzipSync(event).toString()).type).toBe('DELETED')
    expect(event[0]).toBe(gzipSync('')[0])
  })

  it('is not of other watches, nor of what Kubernetes 1.36 sends', async () => {
    const server = await started()
    const on = sessionWith(server)
    const enough = () => true
    expect((await askHttp2(on, WATCH, { headers, enough })).headers).not.toHaveProperty('content-encoding')
    server.semantics.watchListCompression = false
    expect((await askHttp2(on, STREAMING, { headers, enough })).headers).not.toHaveProperty(
      'content-encoding',
    )
  })
})
