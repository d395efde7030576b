import { type ClientHttp2Session, connect } from 'node:http2'
import { gunzipSync, gzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { errorEvent } from '../../../support/apiserver/faults.ts'
import { ApiServer } from '../../../support/apiserver/http-server.ts'
import { service } from './service.ts'

const SERVICES = '/api/v1/services'
const WATCH = `${SERVICES}?watch=true&resourceVersion=0`

/* Faults of which a test of ours would not notice that they never came: that it survives them is all that it says. */

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

async function started(): Promise<{ readonly server: ApiServer; readonly on: ClientHttp2Session }> {
  const server = await ApiServer.start()
  cleanups.push(() => server.close())
  for (const name of ['a', 'b', 'c']) server.store.create('services', service(name))
  const on = connect(server.url, { ca: server.authority?.caPem })
  on.on('error', () => undefined)
  cleanups.push(() => on.destroy())
  return { server, on }
}

interface Answer {
  readonly code: number
  readonly headers: { readonly [name: string]: unknown }
  /** What came, whole or not. */
  readonly body: Buffer
  /** Undefined after a good end. */
  readonly error: Error | undefined
}

interface AskOptions {
  /** Called at each piece, with all that came; true ends the request. */
  readonly enough?: (soFar: Buffer) => boolean
  readonly headers?: Readonly<Record<string, string>>
}

function ask(on: ClientHttp2Session, path: string, options: AskOptions = {}): Promise<Answer> {
  const { enough = () => false } = options
  return new Promise(resolve => {
    const stream = on.request({ ':path': path, ...options.headers })
    let code = 0
    let error: Error | undefined
    let headers: Answer['headers'] = {}
    const chunks: Buffer[] = []
    stream.on('response', given => {
      code = Number(given[':status'])
      headers = given
    })
    stream.on('data', (chunk: Buffer) => {
      chunks.push(chunk)
      if (enough(Buffer.concat(chunks))) stream.close()
    })
    stream.on('error', thrown => {
      error = thrown
    })
    stream.on('close', () => resolve({ code, headers, body: Buffer.concat(chunks), error }))
  })
}

const lines = (body: Buffer): number => body.toString().split('\n').length - 1

describe('faults of HTTP/2 (F27)', () => {
  it('a stream is reset after k events, the connection is not', async () => {
    const { server, on } = await started()
    const at = { events: 2 }
    server.faults.add({ times: 1, faults: [{ kind: 'ending', ending: 'rst-stream', at }] })
    const { error, body } = await ask(on, WATCH)
    expect(error).toMatchObject({ message: expect.stringContaining('NGHTTP2_INTERNAL_ERROR') })
    expect(lines(body)).toBe(2)
    expect((await ask(on, SERVICES)).code).toBe(200)
  })

  it('GOAWAY leaves the streams there are alone', async () => {
    const { server, on } = await started()
    server.faults.add({ times: 1, faults: [{ kind: 'goaway', at: { events: 1 } }] })
    const told = new Promise(resolve => on.once('goaway', resolve))
    const answer = ask(on, WATCH, {
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
    const { server, on } = await started()
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
    const { body } = await ask(on, WATCH)
    const events = body
      .toString()
      .trimEnd()
      .split('\n')
      .map(line => JSON.parse(line))
    const names = events.map(({ type, object }) => object.metadata.name ?? type)
    expect(names).toEqual(['ERROR', 'c', 'b', 'b'])
  })

  it('are bytes out of place and answers that trickle (F24, F28)', async () => {
    const { server, on } = await started()
    server.faults.add({
      faults: [
        { kind: 'bytes', at: { bytes: 5 }, bytes: () => Buffer.from('??') },
        { kind: 'slow', bytesPerSecond: 100 },
      ],
    })
    const { body } = await ask(on, SERVICES, { enough: soFar => soFar.length >= 12 })
    expect(body.toString().slice(0, 12)).toBe('{"kin??d":"S')
  })
})

describe('compression', () => {
  const headers = { 'accept-encoding': 'gzip' }
  const STREAMING = `${SERVICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true`

  it('is of watches that begin with a list, with a gzip member for each flush', async () => {
    const { server, on } = await started()
    const initial: Buffer[] = []
    const { body, ...answer } = await ask(on, STREAMING, {
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
    const { server, on } = await started()
    const enough = () => true
    expect((await ask(on, WATCH, { headers, enough })).headers).not.toHaveProperty('content-encoding')
    server.semantics.watchListCompression = false
    expect((await ask(on, STREAMING, { headers, enough })).headers).not.toHaveProperty('content-encoding')
  })
})
