import { once } from 'node:events'
import { type ClientHttp2Stream, connect as connectHttp2 } from 'node:http2'
import { connect, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { ApiServerOptions } from '../../../../src/api/grpc/server.ts'
import {
  DATA,
  END_HEADERS,
  frame,
  GrpcPeer,
  HEADERS,
  headerBlock,
  OPENING,
  PREFACE,
  REQUEST,
  SETTINGS,
} from '../../../support/api/grpc-peer.ts'
import { encodeLocalv1, framed } from '../../../support/api/localv1.ts'
import { type ApiRig, apiRig } from '../../../support/api/rig.ts'
import { EMPTY, feedOf, largeState } from '../../../support/api/states.ts'
import { statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { eventually } from '../../../support/patience.ts'

let rig: ApiRig
const start = async (options: Partial<ApiServerOptions> = {}, state = EMPTY): Promise<void> => {
  await rig?.end()
  rig = await apiRig(feedOf(state), options)
}
beforeEach(() => start())

/** Whatever happened: the next client is served, and nothing of the last one is left. */
afterEach(async () => {
  await eventually(() => rig.server.counts().calls === 0, 'nothing is left')
  expect(await new WatchClient(rig.client()).ask()).toBe(1)
  expect(rig.errors).toEqual([])
  await rig.end()
})

const path = (): string => rig.server.address.replace('unix://', '')

/** Bytes on a connection, until the server ends it or says that it will (GOAWAY); what it said meanwhile. */
async function say(...bytes: readonly Buffer[]): Promise<Buffer> {
  const socket = connect({ path: path() })
  let heard = Buffer.alloc(0)
  socket.on('error', () => undefined)
  socket.on('data', chunk => {
    heard = Buffer.concat([heard, chunk])
    if (framesOf(heard).includes(GOAWAY)) socket.destroy()
  })
  socket.write(Buffer.concat(bytes))
  // A connection that is refused may end with an error.
  await new Promise(resolve => socket.once('close', resolve))
  return heard
}

/** Opens a connection with these frames, and reads what comes. */
function opened(...frames: readonly Buffer[]): Socket {
  const socket = connect({ path: path() })
  socket.on('error', () => undefined)
  socket.resume().write(Buffer.concat([Buffer.from(PREFACE), ...frames]))
  return socket
}

const GOAWAY = 7
const WINDOW_UPDATE = 8

/** Their types. */
function framesOf(bytes: Buffer): readonly number[] {
  const types: number[] = []
  for (let at = 0; at + 9 <= bytes.length; at += 9 + bytes.readUIntBE(at, 3)) types.push(bytes[at + 3] ?? 0)
  return types
}

describe('what is no HTTP/2', () => {
  it.each([
    ['noise', Buffer.alloc(64 * 1024, 0xff)],
    ['HTTP/1', Buffer.from('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')],
    [
      'a frame that is too large',
      Buffer.concat([Buffer.from(PREFACE), frame(DATA, 0, 1, Buffer.alloc(20_000))]),
    ],
    [
      'data of a stream that is not there',
      Buffer.concat([Buffer.from(PREFACE), OPENING, frame(DATA, 0, 7, Buffer.alloc(5))]),
    ],
    [
      'headers that are not compressed as they say',
      Buffer.concat([Buffer.from(PREFACE), OPENING, frame(HEADERS, END_HEADERS, 1, Buffer.alloc(40, 0xff))]),
    ],
    [
      'settings of a wrong size',
      Buffer.concat([Buffer.from(PREFACE), frame(SETTINGS, 0, 0, Buffer.alloc(5))]),
    ],
  ])('ends its connection: %s', async (_, bytes) => {
    await say(bytes)
    expect(rig.server.counts()).toMatchObject({ calls: 0, streams: 0 })
  })
})

describe('what is no gRPC', () => {
  it.each([
    [{ ':method': 'GET' }, 405],
    [{ ':method': 'POST' }, 415],
    [{ ':method': 'POST', 'content-type': 'application/json' }, 415],
    [{ ':method': 'POST', 'content-type': 'application/grpc-web' }, 415],
  ])('is told so: %j', async (headers, status) => {
    const session = connectHttp2('http://localhost', { createConnection: () => connect({ path: path() }) })
    const stream = session.request({ ':path': '/localv1.Sets/Watch', ...headers })
    stream.on('error', () => undefined)
    const [answer]: unknown[] = await once(stream, 'response')
    expect(answer).toMatchObject({ ':status': status })
    session.destroy()
    expect(rig.server.counts().refused).toBe(1)
  })
})

/** Bytes of a stream as they are, prefix and all, through a connection that is in order. */
async function statusAfter(bytes: Buffer): Promise<Readonly<Record<string, unknown>>> {
  const session = connectHttp2('http://localhost', { createConnection: () => connect({ path: path() }) })
  const stream = session.request({
    ':method': 'POST',
    ':path': '/localv1.Sets/Watch',
    'content-type': 'application/grpc',
    te: 'trailers',
  })
  stream.on('error', () => undefined)
  stream.resume()
  const trailers = once(stream, 'trailers')
  stream.end(bytes)
  const [its]: unknown[] = await trailers
  session.close()
  if (typeof its !== 'object' || its === null) throw new Error('no trailers')
  return { ...its }
}

describe('deadlines', () => {
  const begin = (timeout: string): ClientHttp2Stream => {
    const session = connectHttp2('http://localhost', { createConnection: () => connect({ path: path() }) })
    const stream = session.request({
      ':method': 'POST',
      ':path': '/localv1.Sets/Watch',
      'content-type': 'application/grpc',
      'grpc-timeout': timeout,
    })
    stream.once('close', () => session.destroy())
    stream.resume()
    return stream
  }

  it.each([
    ['50m', '4'],
    ['50000u', '4'],
    ['1n', '4'],
    ['soon', '13'],
    ['123456789S', '13'],
    ['-1S', '13'],
  ])('end a call that is not over by then: %s', async (timeout, status) => {
    const stream = begin(timeout)
    // No word of its end.
    stream.write(framed(Buffer.alloc(0)))
    const [trailers]: unknown[] = await once(stream, 'trailers')
    expect(trailers).toMatchObject({ 'grpc-status': status })
  })

  it.each(['1H', '99999999H'])('are no matter before: %s', async timeout => {
    const stream = begin(timeout)
    stream.end(framed(Buffer.alloc(0)))
    const [trailers]: unknown[] = await once(stream, 'trailers')
    expect(trailers).toMatchObject({ 'grpc-status': '0' })
  })

  it('are true for who does not read as well', async () => {
    await start({}, largeState(3_000, 10))
    const peer = new GrpcPeer(path(), undefined, { 'grpc-timeout': '50m' })
    void peer.ask(1)
    peer.socket.pause()
    await eventually(() => rig.server.counts().calls === 1, 'it is served')
    await eventually(() => rig.server.counts().calls === 0, 'it is ended')
    peer.destroy()
  })
})

describe('messages', () => {
  const announced = (length: number, flag = 0): Buffer => {
    const prefix = Buffer.alloc(5)
    prefix[0] = flag
    prefix.writeUInt32BE(length, 1)
    return prefix
  }

  it.each([
    ['too large, as announced', announced(0xffffffff), '8'],
    ['one byte too large', Buffer.concat([announced(4_097), Buffer.alloc(4_097)]), '8'],
    ['compressed', Buffer.concat([announced(3, 1), Buffer.alloc(3)]), '12'],
    ['neither compressed nor not', announced(0, 2), '13'],
    ['cut off', Buffer.concat([announced(100), Buffer.alloc(50)]), '13'],
    ['no protobuf', Buffer.concat([announced(3), Buffer.from('0aff01', 'hex')]), '3'],
  ])('are refused: %s', async (_, bytes, status) => {
    expect(await statusAfter(bytes)).toMatchObject({ 'grpc-status': status })
  })

  it('may have fields that are not known, and be cut anywhere', async () => {
    const request = Buffer.concat([announced(8), Buffer.from('1003d20303616263', 'hex')])
    expect(await statusAfter(request)).toMatchObject({ 'grpc-status': '0' })
    const peer = new GrpcPeer(path())
    const sync = peer.ask(7)
    await sync
    for (const byte of announced(0)) peer.socket.write(frame(DATA, 0, 1, Buffer.from([byte])))
    await eventually(() => rig.server.counts().waiting === 1, 'it is one request')
    peer.destroy()
  })
})

describe('a connection without a call', () => {
  const RST_STREAM = 3
  const IDLE_MS = 30_000
  let clock: FakeClock
  beforeEach(() => {
    clock = new FakeClock()
    return start({ clock })
  })
  const connections = (): number => rig.server.counts().connections

  it('is ended 30 s after its last one', async () => {
    const peer = new GrpcPeer(path())
    await peer.ask(7)
    await clock.advance(10 * IDLE_MS)
    expect(rig.server.counts()).toMatchObject({ connections: 1, calls: 1 })
    peer.socket.write(frame(RST_STREAM, 0, 1, Buffer.from([0, 0, 0, 8])))
    await eventually(() => rig.server.counts().calls === 0, 'it is over')
    await clock.advance(IDLE_MS - 1)
    expect(connections()).toBe(1)
    await clock.advance(1)
    await eventually(() => connections() === 0, 'it is ended')
  })

  it('F142: is ended at once when its client has half closed it, before, in and after a call', async () => {
    const early = connect({ path: path(), allowHalfOpen: true })
    await eventually(() => connections() === 1, 'it is there')
    early.resume().end()
    await once(early, 'close')
    const peer = new GrpcPeer(path())
    await peer.ask(7)
    peer.socket.write(frame(RST_STREAM, 0, 1, Buffer.from([0, 0, 0, 8])))
    await eventually(() => rig.server.counts().calls === 0, 'its call is over')
    expect(connections()).toBe(1)
    peer.socket.end()
    await eventually(() => connections() === 0, 'it is ended')
    const calling = new GrpcPeer(path())
    await calling.ask(7)
    calling.socket.end()
    await eventually(() => connections() === 0, 'it is ended with its call')
    expect(rig.server.counts().calls).toBe(0)
  })

  it('leaves no timer', async () => {
    const before = clock.pending
    const peers = [new GrpcPeer(path()), new GrpcPeer(path())]
    await Promise.all(peers.map(peer => peer.ask(7)))
    for (const peer of peers) peer.destroy()
    await eventually(() => connections() === 0, 'they are gone')
    expect(clock.pending - before).toBeLessThanOrEqual(1)
  })
})

/** Until the server has read all that was written: it answers a PING behind that, unless it ends the connection. */
async function read(socket: Socket): Promise<void> {
  const PING = 6
  const word = Buffer.from('read all')
  let answer = Buffer.alloc(0)
  let isOver = false
  socket.on('close', () => {
    isOver = true
  })
  socket.on('data', bytes => {
    answer = Buffer.concat([answer, bytes]).subarray(-64 * 1024)
  })
  socket.write(frame(PING, 0, 0, word))
  await eventually(() => isOver || answer.includes(frame(PING, 1, 0, word)), 'the answer to a PING')
}

describe('clients that want too much', () => {
  it('16 requests of a stream wait, and no more', async () => {
    const client = new WatchClient(rig.client())
    await client.ask()
    for (let request = 0; request < 17; request++) client.stream.write(encodeLocalv1('WatchReq', {}))
    expect(await statusOf(client.stream)).toMatchObject({
      code: 8,
      details: '16 requests already wait for answers',
    })
  })

  it('requests without reading are answered as far as the window goes', async () => {
    await start({}, largeState(3_000, 10))
    const peer = new GrpcPeer(path())
    peer.socket.pause()
    for (let request = 0; request < 16; request++) void peer.ask(1)
    let before = -1
    while (before !== rig.server.counts().bytes) {
      before = rig.server.counts().bytes
      await new Promise(resolve => setTimeout(resolve, 100))
    }
    expect(rig.server.counts()).toMatchObject({ streams: 1, waiting: 0 })
    expect(before).toBeLessThan(1 << 20)
    peer.destroy()
  })

  it('a call that is refused is over for who does not read as well', async () => {
    await start({}, largeState(3_000, 10))
    // It gives no room beyond the 64 KiB of the start.
    const settings = frame(SETTINGS, 0, 0, Buffer.alloc(0))
    const requests = Array.from({ length: 17 }, () => frame(DATA, 0, 1, Buffer.alloc(5)))
    const socket = opened(settings, frame(HEADERS, END_HEADERS, 1, REQUEST), ...requests)
    await eventually(() => rig.server.counts().calls === 1, 'it is served')
    await eventually(() => rig.server.counts().calls === 0, 'it is over')
    socket.destroy()
  })

  it('calls beyond the limit are refused, and there is room again when one has ended', async () => {
    await start({ callsMax: 3 })
    const clients = Array.from({ length: 3 }, () => new WatchClient(rig.client()))
    await Promise.all(clients.map(client => client.ask()))
    const fourth = new WatchClient(rig.client())
    expect(await statusOf(fourth.stream)).toMatchObject({ code: 8, details: '3 calls are already open' })
    for (const client of clients) client.stream.cancel()
    await eventually(() => rig.server.counts().calls === 0, 'they are gone')
  })

  it('F132: a call of the connection with most of them gives way to one of a connection with none', async () => {
    await start({ callsMax: 3 })
    const greedy = rig.client()
    const streams = Array.from({ length: 3 }, () => new WatchClient(greedy))
    await Promise.all(streams.map(stream => stream.ask()))
    const status = statusOf(streams[0]?.stream ?? expect.fail('there is one'))
    const other = new WatchClient(rig.client())
    expect(await other.ask()).toBe(1)
    expect(await status).toMatchObject({ code: 8, details: 'too many calls, and other clients have fewer' })
    for (const { stream } of [...streams, other]) stream.cancel()
  })

  it('connections beyond the limit are closed', async () => {
    await start({ connectionsMax: 2 })
    const peers = [new GrpcPeer(path()), new GrpcPeer(path())]
    await Promise.all(peers.map(peer => peer.ask(7)))
    expect((await say(Buffer.from(PREFACE))).length).toBeLessThan(100)
    expect(rig.server.counts()).toMatchObject({ connections: 2, refused: 1 })
    for (const peer of peers) peer.destroy()
    await eventually(() => rig.server.counts().connections === 0, 'they are gone')
  })

  it('a connection has at most 128 calls', async () => {
    const opens = Array.from({ length: 200 }, (_, index) =>
      frame(HEADERS, END_HEADERS, 1 + index * 2, REQUEST),
    )
    const socket = opened(OPENING, ...opens)
    await read(socket)
    expect(rig.server.counts().calls).toBeGreaterThan(0)
    expect(rig.server.counts().calls).toBeLessThanOrEqual(128)
    socket.destroy()
  })

  it('streams that are opened and reset as fast as can be leave nothing', async () => {
    const RST_STREAM = 3
    const cancel = Buffer.from([0, 0, 0, 8])
    const socket = opened(OPENING)
    for (let round = 0; round < 20; round++)
      socket.write(
        Buffer.concat(
          Array.from({ length: 500 }, (_, index) => {
            const stream = 1 + (round * 500 + index) * 2
            return Buffer.concat([
              frame(HEADERS, END_HEADERS, stream, REQUEST),
              frame(RST_STREAM, 0, stream, cancel),
            ])
          }),
        ),
      )
    await read(socket)
    expect(rig.server.counts().calls).toBeLessThanOrEqual(128)
    socket.destroy()
  })

  it('headers beyond the limit are no call', async () => {
    const many = Object.fromEntries(Array.from({ length: 100 }, (_, index) => [`x-${index}`, 'y']))
    const block = Buffer.concat([REQUEST, headerBlock(many)])
    const socket = opened(OPENING, frame(HEADERS, END_HEADERS, 1, block))
    await read(socket)
    expect(rig.server.counts().calls).toBe(0)
    socket.destroy()
  })
})

describe('reflection', () => {
  const END_STREAM = 1
  const open = frame(
    HEADERS,
    END_HEADERS,
    1,
    headerBlock({
      ':method': 'POST',
      ':scheme': 'http',
      ':path': '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
      ':authority': 'localhost',
      'content-type': 'application/grpc',
    }),
  )
  const request = Buffer.from('000000000e220c6c6f63616c76312e53657473', 'hex')

  /** Sends all these requests before it reads; gives what it hears until the trailers. */
  async function asked(count: number, ...last: readonly Buffer[]): Promise<Buffer> {
    const settings = frame(SETTINGS, 0, 0, Buffer.alloc(0))
    const requests = Array.from({ length: count }, () => frame(DATA, 0, 1, request))
    // How much of the answers Node.js takes before it says that it is enough differs: the end is behind all that.
    const roomFor = (stream: number): Buffer => frame(WINDOW_UPDATE, 0, stream, Buffer.from([0, 0x7f, 0, 0]))
    const socket = opened(settings, roomFor(0), open, roomFor(1), ...requests, ...last)
    let heard = Buffer.alloc(0)
    socket.on('data', chunk => {
      heard = Buffer.concat([heard, chunk])
    })
    await eventually(() => framesOf(heard).filter(type => type === HEADERS).length === 2, 'trailers')
    socket.destroy()
    return heard
  }

  it('lets 64 requests wait for a client that does not read', async () => {
    // Who is not refused gets no trailers, since it says no end.
    const heard = await asked(1_000)
    // All thousand are 1.7 MB.
    expect(heard.length).toBeLessThan(200_000)
  })

  it('answers 60 requests that come together, of which the answers are more than a buffer', async () => {
    const end = frame(DATA, END_STREAM, 1, Buffer.alloc(0))
    const [one, all] = [await asked(1, end), await asked(60, end)]
    expect(all.length).toBeGreaterThan(50 * one.length)
  })
})
