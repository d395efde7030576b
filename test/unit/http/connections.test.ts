import { once } from 'node:events'
import { afterEach, describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../src/base/clock.ts'
import type { ConnectionLimits, Crowd } from '../../../src/base/shares.ts'
import { type Handler, HttpConnections, readOnly } from '../../../src/http/connections.ts'
import { Listener } from '../../../src/http/server.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { eventually } from '../../support/patience.ts'
import { ask, closed, connected, exchange, LOOPBACK } from '../telemetry/http-client.ts'

interface Bench {
  readonly port: number
  readonly connections: HttpConnections
  readonly errors: Error[]
}

const ended: (() => void)[] = []

afterEach(() => {
  for (const end of ended.splice(0)) end()
})

async function serve(
  handle: Handler,
  {
    clock = systemClock,
    limits = { connections: 100 },
    crowded = () => undefined,
    isLenient,
  }: Partial<{
    clock: Clock
    isLenient: boolean
    limits: ConnectionLimits
    crowded: (crowd: Crowd) => void
  }> = {},
): Promise<Bench> {
  const errors: Error[] = []
  const failed = (error: Error) => errors.push(error)
  const connections = new HttpConnections({ clock, limits, isLenient, crowded, failed })
  const port = await new Promise<number>((resolve, reject) => {
    const listener: Listener = new Listener({
      at: { ip: LOOPBACK, port: 0 },
      accept: socket => connections.accept(socket, handle),
      listening: () => resolve(listener.port),
      failed: reject,
      trouble: reject,
    })
    ended.push(() => {
      listener.close()
      connections.close()
    })
  })
  return { port, connections, errors }
}

const ok: Handler = ({ method, path, query }) => ({
  status: 200,
  headers: { 'Content-Type': 'text/plain' },
  body: `${method} ${path} ${query}`,
})

describe('HttpConnections', () => {
  it('hands method, path and query to the handler', async () => {
    const { port } = await serve(ok)
    expect(await ask({ port, path: '/a/b?x=1&y', method: 'DELETE' })).toMatchObject({
      status: 200,
      body: 'DELETE /a/b x=1&y=',
      headers: { 'content-type': 'text/plain', 'content-length': '18' },
    })
  })

  it('answers HEAD without a body and with its length', async () => {
    const { port } = await serve(ok)
    expect(await ask({ port, path: '/', method: 'HEAD' })).toMatchObject({
      status: 200,
      body: '',
      headers: { 'content-length': '7' },
    })
  })

  it('ends a connection after 100 requests, also of a client that goes on', async () => {
    const { port } = await serve(ok)
    const client = await connected(port)
    const gone = closed(client)
    let answers = 0
    const one = () => client.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
    client.on('data', () => {
      answers++
      one()
    })
    one()
    await gone
    expect(answers).toBe(100)
  })

  it('answers before the body of a request came, and ends the connection', async () => {
    const { port } = await serve(ok)
    const head = 'POST /healthz HTTP/1.1\r\nHost: x\r\n'
    for (const announced of ['Content-Length: 1000000000', 'Transfer-Encoding: chunked']) {
      const text = await exchange(port, `${head}${announced}\r\n\r\n`)
      expect(text).toContain('HTTP/1.1 200 OK')
      expect(text.toLowerCase()).toContain('connection: close')
    }
  })

  it('does not ask for a body that waits to be asked for', async () => {
    const { port } = await serve(ok)
    const head = 'POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n'
    const text = await exchange(port, head)
    expect(text).not.toContain('100 Continue')
    expect(text).toContain('HTTP/1.1 200 OK')
  })

  it.each([
    ['something else than HTTP', 'hello\r\n\r\n', 'HTTP/1.1 400'],
    ['a request without a host', 'GET / HTTP/1.1\r\n\r\n', 'HTTP/1.1 400'],
    [
      'a target that is no path',
      'OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n',
      'HTTP/1.1 400',
    ],
    ['lines that end with a bare LF', 'GET / HTTP/1.1\nHost: x\nConnection: close\n\n', 'HTTP/1.1 400'],
    [
      'two lengths, by which proxies are deceived',
      'GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
      'HTTP/1.1 400',
    ],
    ['F98: huge headers', `GET / HTTP/1.1\r\nHost: x\r\nA: ${'a'.repeat(100_000)}\r\n\r\n`, 'HTTP/1.1 431'],
    ['F98: a huge path', `GET /${'a'.repeat(100_000)} HTTP/1.1\r\nHost: x\r\n\r\n`, 'HTTP/1.1 431'],
  ])('refuses %s', async (_, text, start) => {
    const { port } = await serve(ok)
    expect(await exchange(port, text)).toMatch(new RegExp(`^(${start}|$)`))
    expect(await ask({ port, path: '/' })).toMatchObject({ status: 200 })
  })

  it.each([
    [
      'GET http://node:10256/healthz?verbose HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n',
      'node:10256',
    ],
    ['GET HTTP://node?verbose HTTP/1.0\r\n\r\n', 'node'],
    ['GET /healthz?verbose HTTP/1.1\nHost: node\nConnection: close\n\n', 'node'],
    ['GET /healthz?verbose HTTP/1.0\nHost: node\n\n', 'node'],
    ['GET /healthz?verbose HTTP/1.0\n\n', undefined],
  ])('answers %j, as Go does', async (text, host) => {
    const asked: unknown[] = []
    const handle: Handler = ({ path, query, host }) => {
      asked.push({ path, verbose: query.has('verbose'), host })
      return { status: 200, headers: {}, body: 'fine' }
    }
    const { port } = await serve(handle, { isLenient: true })
    expect(await exchange(port, text)).toMatch(/^HTTP\/1\.1 200 OK[\s\S]*fine$/)
    const path = text.includes('healthz') ? '/healthz' : '/'
    expect(asked).toEqual([{ path, verbose: true, host }])
  })

  it('ends connections that are reset, or end, before their first byte', async () => {
    const { port, connections, errors } = await serve(ok, { isLenient: true })
    const [reset, end] = [await connected(port), await connected(port)]
    await eventually(() => connections.open === 2)
    reset.resetAndDestroy()
    end.end()
    await eventually(() => connections.open === 0)
    expect(errors).toEqual([])
  })

  it('F98: ends connections that bring their request too slowly, however busy they look', async () => {
    const clock = new FakeClock()
    const { port, connections } = await serve(ok, { clock })
    const slow = await connected(port)
    await eventually(() => connections.open === 1)
    slow.write('GET / HTTP/1.1\r\n')
    await clock.advance(9_000)
    slow.write('X: y\r\n')
    await clock.advance(999)
    expect(connections.open).toBe(1)
    const gone = closed(slow)
    await clock.advance(1)
    await gone
    await eventually(() => connections.open === 0)
    expect(clock.pending).toBe(0)
  })

  it('F98: ends connections whose peer does not take the answer', async () => {
    const clock = new FakeClock()
    const endless: Handler = () => ({ status: 200, headers: {}, body: pieces() })
    async function* pieces() {
      for (;;) yield 'x'.repeat(65_536)
    }
    const { port, connections } = await serve(endless, { clock })
    const deaf = await connected(port)
    deaf.pause()
    deaf.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
    await eventually(() => connections.open === 1)
    await new Promise(resolve => setTimeout(resolve, 50))
    await clock.advance(30_000)
    await eventually(() => connections.open === 0)
    await closed(deaf)
  })

  it('F98, F132: closes the longest idle connection for each one over the limit', async () => {
    const { port, connections } = await serve(ok, { limits: { connections: 5 } })
    const held = await Promise.all(Array.from({ length: 5 }, () => connected(port)))
    await eventually(() => connections.open === 5)
    const more = await Promise.all(Array.from({ length: 195 }, () => connected(port)))
    await Promise.all(held.map(closed))
    expect(await ask({ port, path: '/' })).toMatchObject({ status: 200 })
    await eventually(() => connections.overShare.evicted === 196)
    expect(connections.overShare).toEqual({ evicted: 196, refused: 0 })
    expect(connections.open).toBeLessThanOrEqual(5)
    for (const socket of more) socket.destroy()
    await eventually(() => connections.open === 0)
  })

  it('F132: a connection that asks outlives those that came after it and are silent', async () => {
    const { port, connections } = await serve(ok, { limits: { connections: 3 } })
    const busy = await connected(port)
    await eventually(() => connections.open === 1)
    for (let round = 0; round < 10; round++) {
      busy.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
      await once(busy, 'data')
      await connected(port)
      await eventually(() => connections.overShare.evicted === Math.max(0, round - 1))
    }
    expect(busy.destroyed).toBe(false)
    busy.destroy()
  })

  it('F132: a slow request is idle, however often it says something', async () => {
    const { port, connections } = await serve(ok, { limits: { connections: 2 } })
    const slow = await connected(port)
    slow.write('GET / HTTP/1.1\r\n')
    await eventually(() => connections.open === 1)
    await connected(port)
    await eventually(() => connections.open === 2)
    slow.write('X: y\r\n')
    const gone = closed(slow)
    await connected(port)
    await gone
  })

  it('F132: names the client whose connections it closes, once a minute', async () => {
    const clock = new FakeClock()
    const crowds: Crowd[] = []
    const limits = { connections: 10, perAddress: 1 }
    const { port, connections } = await serve(ok, { clock, limits, crowded: its => crowds.push(its) })
    const flood = async (evicted: number) => {
      await connected(port)
      await eventually(() => connections.overShare.evicted === evicted)
    }
    await connected(port)
    await eventually(() => connections.open === 1)
    await flood(1)
    await flood(2)
    await clock.advance(60_000)
    // Its request took too long meanwhile.
    await eventually(() => connections.open === 0)
    await connected(port)
    await eventually(() => connections.open === 1)
    await flood(3)
    const crowd = { client: 'loopback', service: undefined, full: '127.0.0.1', refused: 0 }
    expect(crowds).toEqual([
      { ...crowd, evicted: 1 },
      { ...crowd, evicted: 2 },
    ])
  })

  it('answers 500 when a handler throws, reports it, and continues', async () => {
    const { port, errors } = await serve(({ path }) => {
      if (path === '/bad') throw new Error('a secret place')
      return { status: 200, headers: {}, body: 'fine' }
    })
    const answer = await ask({ port, path: '/bad' })
    expect(answer).toMatchObject({ status: 500, body: '500 internal server error\n' })
    expect(errors.map(({ message }) => message)).toEqual(['a secret place'])
    expect(await ask({ port, path: '/good' })).toMatchObject({ status: 200, body: 'fine' })
  })

  it('breaks an answer off when its pieces end in an error', async () => {
    async function* pieces() {
      yield '[1,'
      throw new Error('no more')
    }
    const { port, errors } = await serve(() => ({ status: 200, headers: {}, body: pieces() }))
    await expect(ask({ port, path: '/' })).rejects.toThrow()
    expect(errors).toHaveLength(1)
  })
})

describe('readOnly', () => {
  it('lets GET and HEAD through', async () => {
    const { port } = await serve(readOnly(ok))
    expect(await ask({ port, path: '/', method: 'GET' })).toMatchObject({ status: 200 })
    expect(await ask({ port, path: '/', method: 'HEAD' })).toMatchObject({ status: 200 })
    expect(await ask({ port, path: '/', method: 'PUT' })).toMatchObject({
      status: 405,
      headers: { allow: 'GET, HEAD' },
    })
  })
})
