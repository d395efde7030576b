import { gunzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { errorEvent, gzipBomb } from '../../../support/apiserver/faults.ts'
import { ApiServer, type ApiServerOptions } from '../../../support/apiserver/http-server.ts'
import { service } from './ask.ts'
import { type Answer, type AskOptions, askHttp1, askHttp2, session } from './client.ts'

const SERVICES = '/api/v1/services'
const WATCH = `${SERVICES}?watch=true&resourceVersion=0`

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function started(options: ApiServerOptions = {}): Promise<ApiServer> {
  const server = await ApiServer.start(options)
  cleanups.push(() => server.close())
  for (const name of ['a', 'b', 'c']) server.store.create('services', service(name))
  return server
}

function sessionWith(server: ApiServer) {
  const made = session(server)
  cleanups.push(() => made.destroy())
  return made
}

type Ask = (path: string, options?: AskOptions) => Promise<Answer>

const VERSIONS: readonly [string, ApiServerOptions, (server: ApiServer) => Ask][] = [
  ['HTTP/2 with TLS', {}, server => askHttp2.bind(undefined, sessionWith(server))],
  [
    'HTTP/2 without TLS',
    { tls: false, http2: true },
    server => askHttp2.bind(undefined, sessionWith(server)),
  ],
  ['HTTP/1.1 with TLS', { http2: false }, server => askHttp1.bind(undefined, server)],
  ['HTTP/1.1 with TLS beside HTTP/2', {}, server => askHttp1.bind(undefined, server)],
  ['HTTP/1.1', { tls: false }, server => askHttp1.bind(undefined, server)],
  ['HTTP/2 without relay', { relay: false }, server => askHttp2.bind(undefined, sessionWith(server))],
  ['HTTP/1.1 without relay', { relay: false, tls: false }, server => askHttp1.bind(undefined, server)],
]

const lines = (body: Buffer): number => body.toString().split('\n').length - 1

describe.each(VERSIONS)('over %s', (_name, options, asking) => {
  it('a response is cut by a reset (F05), and one without its end is cut short (F24)', async () => {
    const server = await started(options)
    const ask = asking(server)
    server.faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'end', at: { bytes: 40 } }] })
    const short = await ask(SERVICES)
    expect(short).toMatchObject({ code: 200, error: undefined })
    expect(short.body).toHaveLength(40)
    server.faults.add({ faults: [{ kind: 'ending', ending: 'reset', at: { bytes: 40 } }] })
    expect((await ask(SERVICES)).error).toBeDefined()
  })

  it('a request can get no answer at all', async () => {
    const server = await started(options)
    server.faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'end', at: 'before' }] })
    const ask = asking(server)
    expect(await ask(SERVICES)).toMatchObject({ code: 0, error: expect.any(Error) })
    expect((await ask(SERVICES)).code).toBe(200)
  })
})

describe('the server as a whole', () => {
  it('leaves connections standing without a word, no answer to a PING either (F03, F27)', async () => {
    const server = await started()
    const on = sessionWith(server)
    await askHttp2(on, SERVICES)
    const ping = () => new Promise(resolve => on.ping(error => resolve(error ?? 'answered')))
    expect(await ping()).toBe('answered')
    server.silence()
    const silence = new Promise(resolve => setTimeout(resolve, 50, 'silence'))
    expect(await Promise.race([ping(), askHttp2(on, SERVICES), askHttp1(server, SERVICES), silence])).toBe(
      'silence',
    )
    await server.listen()
    expect((await askHttp1(server, SERVICES)).code).toBe(200)
  })
})

describe('faults of HTTP/2 (F27)', () => {
  it('a connection falls silent after k events, which arrive (F03, F04)', async () => {
    const server = await started()
    const on = sessionWith(server)
    server.faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'stall', at: { events: 2 } }] })
    let heard = 0
    const watching = askHttp2(on, WATCH, {
      enough: body => {
        heard = lines(body)
        return false
      },
    })
    await expect.poll(() => heard).toBe(2)
    const silence = new Promise(resolve => setTimeout(resolve, 50, 'silence'))
    expect(await Promise.race([watching, askHttp2(on, SERVICES), silence])).toBe('silence')
    expect((await askHttp2(sessionWith(server), SERVICES)).code).toBe(200)
  })

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
  it('come by resource, verb and count', async () => {
    const server = await started()
    server.faults.add({
      resource: 'services',
      verb: 'list',
      skip: 1,
      times: 2,
      faults: [{ kind: 'status', code: 429, retryAfter: '7' }],
    })
    const codes: number[] = []
    for (let time = 0; time < 4; time++) codes.push((await askHttp1(server, SERVICES)).code)
    expect(codes).toEqual([200, 429, 429, 200])
    expect((await askHttp1(server, '/api/v1/nodes')).code).toBe(200)
  })

  it('are pages of proxies, delays, and compressed emptiness', async () => {
    const server = await started()
    server.faults.add({ times: 1, faults: [{ kind: 'status', code: 502, html: true }] })
    expect((await askHttp1(server, SERVICES)).headers['content-type']).toBe('text/html')
    server.faults.add({ faults: [{ kind: 'delay', ms: 20 }, gzipBomb(10_000_000)] })
    const { headers, body } = await askHttp1(server, SERVICES)
    expect(headers['content-encoding']).toBe('gzip')
    expect(body.length).toBeLessThan(20_000)
    expect(gunzipSync(body)).toHaveLength(10_000_000)
  })

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
