import { describe, expect, it } from 'vitest'
import type { ClientOptions } from '../../../../../src/source/kube/client/http-client.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { CANARY, failureOf, get, getText, type Handler, loopback, pause, textOf, until } from './loopback.ts'

const rig = loopback()

describe.each(['h2', 'http/1.1'] as const)('the client over %s', protocol => {
  const opened = (handler: Handler, options?: Partial<ClientOptions>) =>
    rig().opened(protocol, handler, options)

  it('sends a request with its credentials and reads the response', async () => {
    const seen: unknown[] = []
    const { client } = await opened((request, response) => {
      seen.push(request.method, request.url, request.headers.authorization, request.headers.accept)
      seen.push(request.headers['accept-encoding'], request.httpVersion)
      response.setHeader('Content-Type', 'application/JSON; stream=watch')
      response.setHeader('Retry-After', '7')
      response.end('hello')
    })
    const response = await client.send(get('/api/v1/services?limit=500'))
    expect(await textOf(response)).toBe('hello')
    expect(response).toMatchObject({
      status: 200,
      contentType: 'application/json;stream=watch',
      retryAfterMs: 7000,
    })
    const version = protocol === 'h2' ? '2.0' : '1.1'
    const asked = ['GET', '/api/v1/services?limit=500', `Bearer ${CANARY}`, 'application/json']
    expect(seen).toEqual([...asked, 'gzip', version])
  })

  it('sends a body with its type and length, below the path of the server', async () => {
    const seen: unknown[] = []
    const { server } = await opened(async (request, response) => {
      const pieces: Buffer[] = []
      for await (const piece of request) pieces.push(piece)
      seen.push(request.method, request.url, request.headers['content-type'])
      seen.push(Buffer.concat(pieces).toString())
      response.statusCode = 201
      response.end()
    })
    const client = await rig().openTo({ ...server, url: `${server.url}/k8s/c-1` })
    const response = await client.send(
      get('/apis/events.k8s.io/v1/events', { method: 'POST', body: '{"ü":1}', contentType: 'a/b' }),
    )
    expect(response.status).toBe(201)
    expect(await textOf(response)).toBe('')
    expect(seen).toEqual(['POST', '/k8s/c-1/apis/events.k8s.io/v1/events', 'a/b', '{"ü":1}'])
  })

  it('F13 A31: reads a token file again after 401 and repeats the request once', async () => {
    const seen: unknown[] = []
    const tokenFile = await rig().file('token', 'old\n')
    const { server } = await opened((request, response) => {
      seen.push(request.headers.authorization)
      response.statusCode = request.headers.authorization === 'Bearer new' ? 200 : 401
      response.end('no')
    })
    const client = await rig().openTo(server, {}, { tokenFile })
    const refused = await client.send(get('/'))
    expect(refused.status).toBe(401)
    expect(await textOf(refused)).toBe('no')
    await rig().file('token', 'new\n')
    expect((await client.send(get('/'))).status).toBe(200)
    expect(seen).toEqual(['Bearer old', 'Bearer old', 'Bearer old', 'Bearer new'])
  })

  it('hands a 401 on where the credentials cannot have changed', async () => {
    let asked = 0
    const { client } = await opened((_, response) => {
      asked++
      response.writeHead(401).end()
    })
    expect((await client.send(get('/'))).status).toBe(401)
    expect(asked).toBe(1)
  })

  it('A13: hands every other status on', async () => {
    const { client } = await opened((request, response) =>
      response.writeHead(Number(request.url?.slice(1))).end('why'),
    )
    for (const status of [403, 404, 410, 429, 500, 503, 504]) {
      const response = await client.send(get(`/${status}`))
      expect(response).toMatchObject({ status, retryAfterMs: undefined })
      expect(await textOf(response)).toBe('why')
    }
  })

  it('follows no redirect', async () => {
    const { client, server } = await opened((_, response) =>
      response.writeHead(307, { location: 'https://elsewhere.test/' }).end(),
    )
    const error = await failureOf(client.send(get('/api')))
    expect(error).toMatchObject({ name: 'ApiError', kind: 'protocol' })
    expect(error.message).toBe(
      `GET /api at ${server.url}: the server redirects (307); redirects are not followed`,
    )
  })

  it('ends the stream at the server when the reader leaves the loop', async () => {
    let closed = 0
    const { client } = await opened((request, response) => {
      response.write('one')
      request.on('close', () => closed++)
    })
    for await (const piece of (await client.send(get('/', { longLived: true }))).body) {
      expect(Buffer.from(piece).toString()).toBe('one')
      break
    }
    await until(() => closed === 1, 'the end of the stream')
    // The client is as good as before.
    expect((await client.send(get('/', { longLived: true }))).status).toBe(200)
  })

  it.each(['before', 'after'] as const)('ends with the signal, %s the head', async moment => {
    const { client, server } = await opened((_, response) => {
      if (moment === 'after') response.write('x')
    })
    const controller = new AbortController()
    const read = async (): Promise<string> =>
      textOf(await client.send(get('/', { signal: controller.signal, longLived: true })))
    const failure = failureOf(read())
    await until(() => server.connections.size === 1)
    await pause(20)
    controller.abort()
    expect(await failure).toMatchObject({ kind: 'aborted' })
  })

  it('sends nothing for a signal that has been given', async () => {
    const { client, server } = await opened((_, response) => response.end())
    const signal = AbortSignal.abort()
    expect(await failureOf(client.send(get('/', { signal })))).toMatchObject({ kind: 'aborted' })
    expect(server.accepted).toBe(0)
  })

  it('closes with every request under way, and sends none afterwards', async () => {
    const { client, server } = await opened((_, response) => response.write('x'))
    const failure = failureOf(textOf(await client.send(get('/', { longLived: true }))))
    await client.close()
    await client.close()
    expect(await failure).toMatchObject({ kind: 'aborted' })
    await until(() => server.connections.size === 0, 'the end of the connection')
    expect(await failureOf(client.send(get('/')))).toMatchObject({ kind: 'aborted' })
  })

  it('makes the server wait while the body is not read', async () => {
    let sent = 0
    const piece = Buffer.alloc(64 * 1024)
    const { client } = await opened((_, response) => {
      const more = (): void => {
        while (sent < 128 * 1024 * 1024) {
          sent += piece.length
          if (!response.write(piece)) return void response.once('drain', more)
        }
        response.end()
      }
      more()
    })
    const response = await client.send(get('/'))
    let before = -1
    for (let still = 0; still < 10; still = sent === before ? still + 1 : 0) {
      before = sent
      await pause(10)
    }
    expect(sent).toBeLessThan(64 * 1024 * 1024)
    let received = 0
    for await (const each of response.body) received += each.length
    expect(received).toBe(128 * 1024 * 1024)
  })

  it('takes 1.5 MB in one piece of the protocol, and a head of 64 KiB at most', async () => {
    const { client } = await opened((request, response) => {
      if (request.url === '/head') response.setHeader('x', 'y'.repeat(100_000))
      response.end(Buffer.alloc(1_500_000))
    })
    expect((await getText(client, '/')).length).toBe(1_500_000)
    const error = await failureOf(getText(client, '/head'))
    expect(['protocol', 'lost']).toContain(error.kind)
  })

  it('F28: gives up a body that stops, however often it went on before, and nothing else', async () => {
    const clock = new FakeClock()
    const { client } = await opened((_, response) => response.write('1'), { clock })
    const watch = await client.send(get('/watch?timeoutSeconds=600', { longLived: true }))
    const slow = await client.send(get('/slow', { idleMs: 5000 }))
    const failure = failureOf(textOf(slow))
    const watching = failureOf(textOf(watch))
    await until(() => clock.pending >= 2, 'timers')
    await pause(20)
    await clock.advance(4999)
    await clock.advance(1)
    expect(await failure).toMatchObject({ kind: 'silent' })
    expect((await failure).message).toContain('the body stopped for 5 s')
    await client.close()
    expect(await watching).toMatchObject({ kind: 'aborted' })
  })

  it('F28: gives up the words of a refusal that do not end, of a watch as well', async () => {
    const clock = new FakeClock()
    const refusing: Handler = (_, response) => response.writeHead(429).write('{')
    const { client } = await opened(refusing, { clock })
    const refused = await client.send(get('/watch?timeoutSeconds=600', { longLived: true, idleMs: 5000 }))
    expect(refused.status).toBe(429)
    const failure = failureOf(textOf(refused))
    await until(() => clock.pending >= (protocol === 'h2' ? 2 : 1), 'timers')
    await pause(20)
    await clock.advance(5000)
    expect(await failure).toMatchObject({ kind: 'silent' })
  })

  it('names a request without its query, so that the cause is not cut off', async () => {
    const { client } = await opened((_, response) => response.socket?.destroy())
    const error = await failureOf(client.send(get(`/api/v1/services?labelSelector=${'x'.repeat(400)}`)))
    expect(error.message).toMatch(/^GET \/api\/v1\/services at https:\/\/[^ ]+: the connection ended/)
  })

  it('gives up a request whose head does not come', async () => {
    const clock = new FakeClock()
    const { client, server } = await opened(() => undefined, { clock })
    const failure = failureOf(client.send(get('/', { idleMs: 7000, longLived: true })))
    await until(() => server.connections.size === 1)
    await pause(50)
    await clock.advance(7000)
    expect(await failure).toMatchObject({ kind: 'silent' })
    expect((await failure).message).toContain('no answer within 7 s')
  })

  it('1,000 requests that are given up leave no socket behind', async () => {
    const { client, server } = await opened((_, response) => response.write('x'))
    const rounds = protocol === 'h2' ? 1000 : 200
    for (let round = 0; round <= rounds; round++) {
      const response = await client.send(get('/'))
      for await (const _ of response.body) break
    }
    await until(() => server.connections.size <= 1, 'the end of the connections')
  })
})

describe('A30: the client', () => {
  it('counts every request against the limit, watches too', async () => {
    const seen: string[] = []
    const clock = new FakeClock()
    const writing: Handler = (request, response) => {
      seen.push(request.url ?? '')
      response.write('x')
    }
    const { client } = await rig().opened('h2', writing, { clock, qps: 5, burst: 2 })
    const sent = [1, 2, 3].map(number => client.send(get(`/${number}`, { longLived: true })))
    await until(() => seen.length === 2)
    await pause(20)
    expect(seen).toEqual(['/1', '/2'])
    await clock.advance(200)
    await Promise.all(sent)
    expect(seen).toEqual(['/1', '/2', '/3'])
  })
})
