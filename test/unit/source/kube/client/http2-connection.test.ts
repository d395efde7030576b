import type { ServerResponse } from 'node:http'
import { constants, type Http2Session } from 'node:http2'
import { connect, type Socket } from 'node:net'
import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../../src/base/clock.ts'
import type { ApiResponse } from '../../../../../src/source/kube/api-client.ts'
import type { HttpConnection } from '../../../../../src/source/kube/client/answer.ts'
import { Call } from '../../../../../src/source/kube/client/call.ts'
import { openHttp2 } from '../../../../../src/source/kube/client/http2-connection.ts'
import { DATA, frame } from '../../../../support/api/grpc-peer.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { END_STREAM, goaway, helloOnRequest, RST_STREAM, u32 } from './frames.ts'
import { failureOf, get, getText, type Handler, loopback, pause, textOf, until } from './loopback.ts'

const rig = loopback()

/** What a request over a connection to a server of bytes comes to: the text, or the error. */
async function outcome(end: (socket: Socket) => void): Promise<string> {
  const { port } = await rig().listen(socket => helloOnRequest(socket, () => end(socket)))
  const socket = connect(port, '127.0.0.1')
  await new Promise(resolve => socket.once('connect', resolve))
  const connection = await openHttp2({
    socket,
    authority: 'here',
    clock: systemClock,
    signal: new AbortController().signal,
  })
  try {
    const answer = await ask(connection)
    let text = ''
    for await (const piece of answer.body) text += Buffer.from(piece).toString()
    return text
  } catch (error) {
    return error instanceof Error && 'kind' in error ? `${error.kind}` : String(error)
  } finally {
    connection.retire()
    socket.destroy()
  }
}

async function ask(connection: HttpConnection) {
  const call = new Call({ method: 'GET', path: '/' }, 'here')
  const sent = connection.send(
    {
      method: 'GET',
      path: '/',
      headers: {},
      body: undefined,
      idleMs: 20_000,
      longLived: true,
      watchIdleMs: 0,
    },
    call,
  )
  return call.until(sent)
}

describe('A16 F27: a stream', () => {
  it('ends with END_STREAM', async () => {
    const end = frame(DATA, END_STREAM, 1, Buffer.alloc(0))
    expect(await outcome(socket => socket.write(end))).toBe('hello')
  })

  it.each([
    ['CANCEL', 8],
    ['INTERNAL_ERROR', 2],
    ['REFUSED_STREAM', 7],
    ['ENHANCE_YOUR_CALM', 11],
  ])('is lost when it is reset with %s', async (_, code) => {
    const reset = frame(RST_STREAM, 0, 1, u32(code))
    expect(await outcome(socket => socket.write(reset))).toBe('lost')
  })

  it('is lost when the socket is reset or closed in its middle', async () => {
    expect(await outcome(socket => socket.destroy())).toBe('lost')
    expect(await outcome(socket => socket.end())).toBe('lost')
    expect(await outcome(socket => socket.resetAndDestroy())).toBe('lost')
  })

  it('is lost when GOAWAY says that the server never saw it, or names an error', async () => {
    expect(await outcome(socket => socket.write(goaway(0, 0)))).toBe('lost')
    expect(await outcome(socket => socket.write(goaway(1, 2)))).toBe('lost')
  })
})

describe('F27: a connection', () => {
  it('A16: is left to its streams after GOAWAY; new ones go over another', async () => {
    const { client, server, streams } = await rig().openedStreams(stream => {
      stream.respond({ ':status': 200 })
      stream.write('hello ')
    })
    const watch = await client.send(get('/watch', { longLived: true }))
    streams[0]?.session?.goaway()
    let second: ApiResponse | undefined
    // Until GOAWAY has arrived, streams begin on the first connection, and the server refuses them.
    for (let tries = 0; tries < 1000 && server.accepted === 1; tries++) {
      try {
        second = await client.send(get('/other', { longLived: true }))
      } catch (error) {
        expect(error).toMatchObject({ kind: 'lost' })
      }
    }
    expect(server.accepted).toBe(2)
    streams[0]?.end('world')
    expect(await textOf(watch)).toBe('hello world')
    await until(() => server.connections.size === 1, 'the end of the first connection')
    streams.at(-1)?.end('again')
    expect(second === undefined ? '' : await textOf(second)).toBe('hello again')
  })

  it('leaves what arrives in the kernel while it is held, for a second at most', async () => {
    let watched: ServerResponse | undefined
    const clock = new FakeClock()
    const answer: Handler = (request, response) => {
      if (request.url !== '/watch') return void response.end('other')
      watched = response
      response.write('hello')
    }
    const { client, server } = await rig().opened('h2', answer, { clock })
    const other = await rig().openTo(server)
    const { body } = await client.send(get('/watch', { longLived: true }))
    const arrived: string[] = []
    const read = () => arrived.join('')
    const reading = failureOf(
      (async () => {
        for await (const piece of body) arrived.push(Buffer.from(piece).toString())
      })(),
    )
    await until(() => read() === 'hello')
    for (const goOn of [() => body.resume?.(), () => clock.advance(1_000)]) {
      arrived.length = 0
      body.hold?.()
      for (const text of ['one', 'two']) {
        await new Promise(written => watched?.write(text, written))
        // What another connection brings afterwards has passed through the event loop.
        expect(await getText(other, '/other')).toBe('other')
      }
      expect(read()).toBe('')
      void goOn()
      await until(() => read() === 'onetwo')
    }
    await client.close()
    expect(await reading).toMatchObject({ kind: 'aborted' })
  })

  it('A16: that takes no further stream is left to those it has; others go over another', async () => {
    const waiting: (() => void)[] = []
    const server = await rig().serve({
      protocol: 'h2',
      maxConcurrentStreams: 1,
      handler: (request, response) => {
        waiting.push(() => response.end(request.url))
      },
    })
    const client = await rig().openTo(server)
    const paths = ['/1', '/2', '/3', '/4']
    const texts = paths.map(path => getText(client, path))
    await until(() => waiting.length === 4)
    expect(server.accepted).toBe(4)
    for (const answer of waiting) answer()
    expect(await Promise.all(texts)).toEqual(paths)
    await until(() => server.connections.size === 1, 'the end of the others')
  })

  it.each([
    ['REFUSED_STREAM', constants.NGHTTP2_REFUSED_STREAM],
    ['ENHANCE_YOUR_CALM', constants.NGHTTP2_ENHANCE_YOUR_CALM],
  ])('is left to its streams once it turns one down with %s', async (name, code) => {
    const { client, server, streams } = await rig().openedStreams((stream, count) => {
      if (count === 2) stream.close(code)
      else stream.respond({ ':status': 200 })
    })
    const watch = await client.send(get('/watch', { longLived: true }))
    // What was refused was not looked at, and is sent once more.
    const isUnseen = name === 'REFUSED_STREAM'
    if (!isUnseen) expect(await failureOf(client.send(get('/2')))).toMatchObject({ kind: 'lost' })
    const third = await client.send(get(isUnseen ? '/2' : '/3'))
    expect(server.accepted).toBe(2)
    streams[0]?.end('the first goes on')
    streams[2]?.end('on another')
    expect(await Promise.all([textOf(watch), textOf(third)])).toEqual(['the first goes on', 'on another'])
  })

  it('that turns every request down is asked twice for each', async () => {
    const { client, server } = await rig().openedStreams(stream =>
      stream.close(constants.NGHTTP2_REFUSED_STREAM),
    )
    const failure = await failureOf(client.send(get('/')))
    expect(failure).toMatchObject({ kind: 'lost' })
    expect(failure.message).toContain('the server rejected the request unprocessed')
    expect(server.accepted).toBe(2)
  })

  it('loses nothing but the stream that is reset', async () => {
    const { client, server, streams } = await rig().openedStreams(stream => {
      stream.respond({ ':status': 200 })
      stream.write('hello')
    })
    const [first, second] = [await client.send(get('/1')), await client.send(get('/2'))]
    streams[0]?.destroy(new Error('reset'))
    expect(await failureOf(textOf(first))).toMatchObject({ kind: 'lost' })
    streams[1]?.end('!')
    expect(await textOf(second)).toBe('hello!')
    expect(server.accepted).toBe(1)
  })

  const writing: Handler = (_, response) => response.write('x')

  /** A client whose server can be frozen. */
  async function linked() {
    const server = await rig().serve({ protocol: 'h2', handler: writing })
    const { port, freeze } = await rig().link(server.port)
    const clock = new FakeClock()
    const client = await rig().openTo({ ...server, url: `https://127.0.0.1:${port}` }, { clock })
    return { client, clock, freeze }
  }

  it('F03 A15: is dropped with all its streams when a PING stays unanswered, and made anew', async () => {
    const { client, clock, freeze } = await linked()
    const watches = [
      await client.send(get('/1', { longLived: true })),
      await client.send(get('/2', { longLived: true })),
    ]
    const failures = watches.map(watch => failureOf(textOf(watch)))
    await pause(20)
    freeze(true)
    await clock.advance(45_000)
    for (const failure of failures) {
      expect(await failure).toMatchObject({ kind: 'silent' })
      expect((await failure).message).toContain('did not answer a PING within 15 s')
    }
    freeze(false)
    expect((await client.send(get('/3', { longLived: true }))).status).toBe(200)
  })

  it('A15: lives for as long as PINGs are answered, with nothing else to be read', async () => {
    let pings = 0
    const sessions: Http2Session[] = []
    const clock = new FakeClock()
    const { client, server } = await rig().opened('h2', writing, { clock })
    server.http2?.on('session', session => {
      sessions.push(session)
      session.on('ping', () => pings++)
    })
    const watch = await client.send(get('/', { longLived: true }))
    const failure = failureOf(textOf(watch))
    for (let round = 1; round <= 5; round++) {
      await clock.advance(30_000)
      await until(() => pings === round, 'a PING')
      // Whatever the server sent before this response has arrived before it.
      await client.send(get('/after', { longLived: true }))
    }
    await client.close()
    expect(await failure).toMatchObject({ kind: 'aborted' })
    expect(sessions.length).toBe(1)
  })

  it('F04: a silent server is asked by PING as soon as a request got no answer', async () => {
    const { client, clock, freeze } = await linked()
    const watch = await client.send(get('/watch', { longLived: true }))
    const watching = failureOf(textOf(watch))
    await pause(20)
    freeze(true)
    const listing = failureOf(client.send(get('/list', { idleMs: 5000 })))
    await pause(20)
    await clock.advance(5000)
    expect(await listing).toMatchObject({ kind: 'silent' })
    await clock.advance(15_000)
    expect(await watching).toMatchObject({ kind: 'silent' })
  })
})
