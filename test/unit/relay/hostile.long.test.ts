import { writeFileSync } from 'node:fs'
import { connect as connectHttp2 } from 'node:http2'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { gzipSync } from 'node:zlib'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type CallHandler, compressedFrame, framed, MessageReader } from '../../../src/api/grpc/rpc.ts'
import { parseApiAddress } from '../../../src/base/api-address.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { encodeReport } from '../../../src/relay/node-report.ts'
import { openLink, openRelayClient } from '../../../src/relay/open.ts'
import { discovery, status } from '../../../src/relay/schema.ts'
import { type RelayServer, type RelayServerOptions, startRelayServer } from '../../../src/relay/server.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { askStatus } from '../../../src/relay/status.ts'
import { DELTA_METHOD, HEALTH_METHOD, METADATA, RELAYED, STATUS_METHOD } from '../../../src/relay/types.ts'
import { encodeMessage } from '../../../src/wire/protobuf/encoder.ts'
import {
  DATA,
  END_HEADERS,
  frame,
  HEADERS,
  headerBlock,
  OPENING,
  PREFACE,
} from '../../support/api/grpc-peer.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { REPORT } from '../../support/node-report.ts'
import { eventually } from '../../support/patience.ts'
import { KeptCall, requestOf } from '../../support/relay-call.ts'
import { createAuthority } from '../../support/tls.ts'

const TYPE = RELAYED.Service.typeUrl
/** TLS handshakes, connections without a call, and calls without a request. */
const PATIENCE_MS = 30_000

let folder: string
let ends: (() => unknown)[]

beforeEach(() => {
  folder = temporaryFolder()
  ends = []
})

afterEach(async () => {
  for (const end of ends.reverse()) await end()
})

/** A relay that has one Service. */
async function relay(
  options: Partial<RelayServerOptions> = {},
  ownBytesMax = 1_000_000,
): Promise<RelayServer> {
  const { clock = systemClock } = options
  const state = new RelayState({ clock, proxyName: '', ownBytesMax })
  state.heardMs = () => clock.nowMs()
  state.identify('cluster')
  const collection = state.collections.Service
  const value = Buffer.alloc(4_000, 'object')
  const resource = encodeMessage(discovery.Resource, {
    version: '7',
    name: 'a/b',
    resource: { type_url: TYPE, value },
  })
  collection.put('a/b', { version: '7', resource })
  collection.seal('7')
  const server = await startRelayServer({
    state,
    address: `unix://${folder}/relay.sock`,
    clock,
    failed: error => expect.fail(error.message),
    ...options,
  })
  ends.push(() => server.close())
  return server
}

function dial(address: string, localAddress?: string): Socket {
  const at = parseApiAddress(address)
  const socket =
    at.kind === 'unix'
      ? connect(at.path)
      : connect({ port: at.port, host: '127.0.0.1', ...(localAddress === undefined ? {} : { localAddress }) })
  socket.on('error', () => undefined)
  socket.resume()
  ends.push(() => socket.destroy())
  return socket
}

function dialed(address: string): Socket {
  const at = parseApiAddress(address)
  return connect(at.kind === 'unix' ? at.path : '')
}

const BYTES = encodeReport({ ...REPORT, held: { Service: '7', EndpointSlice: '7' } })

const GREETING = Buffer.concat([Buffer.from(PREFACE), OPENING])

function call(path: string): Buffer {
  const headers = headerBlock({
    ':method': 'POST',
    ':scheme': 'http',
    ':path': path,
    ':authority': 'localhost',
    'content-type': 'application/grpc',
    te: 'trailers',
  })
  return frame(HEADERS, END_HEADERS, 1, headers)
}

const REQUEST = framed(discovery.DeltaDiscoveryRequest, { type_url: TYPE })
const WHOLE = frame(DATA, 0, 1, REQUEST)

async function isGone(socket: Socket): Promise<void> {
  await eventually(() => socket.destroyed, 'the connection is closed')
}

describe('F196: a slow loris', () => {
  it.each([
    ['no preface', Buffer.alloc(0)],
    ['half of the preface', GREETING.subarray(0, 10)],
    ['no call', GREETING],
    [
      'headers without an end',
      Buffer.concat([GREETING, frame(HEADERS, 0, 1, call(DELTA_METHOD).subarray(9))]),
    ],
  ])('is closed: %s', async (_, bytes) => {
    const clock = new FakeClock()
    const server = await relay({ clock })
    const socket = dial(server.address)
    socket.write(bytes)
    await eventually(() => server.counts.connections === 1)
    await clock.advance(PATIENCE_MS)
    await isGone(socket)
  })

  it.each([
    ['no request', DELTA_METHOD, Buffer.alloc(0)],
    ['half of a request', DELTA_METHOD, frame(DATA, 0, 1, REQUEST.subarray(0, 20))],
    ['no health request', HEALTH_METHOD, Buffer.alloc(0)],
  ])('loses its call and its connection: %s', async (_, path, bytes) => {
    const clock = new FakeClock()
    const server = await relay({ clock })
    const socket = dial(server.address)
    socket.write(Buffer.concat([GREETING, call(path), bytes]))
    await eventually(() => server.counts.calls === 1)
    await clock.advance(PATIENCE_MS)
    await clock.advance(3_000)
    await eventually(() => server.counts.calls === 0)
    await clock.advance(PATIENCE_MS)
    await isGone(socket)
  })

  it('a reader that has asked stays', async () => {
    const clock = new FakeClock()
    const server = await relay({ clock })
    dial(server.address).write(Buffer.concat([GREETING, call(DELTA_METHOD), WHOLE]))
    await eventually(() => server.counts.subscriptions === 1)
    await clock.advance(PATIENCE_MS + 5_000)
    expect(server.counts.subscriptions).toBe(1)
  })

  it('leaves room for readers from other addresses, however many connections one has', async () => {
    const server = await relay({ address: 'tcp://127.0.0.1:0', connectionsMax: 8 })
    const reader = (from: string): Socket => {
      const socket = dial(server.address, from)
      socket.write(Buffer.concat([GREETING, call(DELTA_METHOD), WHOLE]))
      return socket
    }
    const many = Array.from({ length: 12 }, () => reader('127.0.0.2'))
    await eventually(() => many.filter(socket => socket.destroyed).length >= 4)
    const others = [reader('127.0.0.3'), reader('127.0.0.4')]
    await eventually(() => many.filter(socket => socket.destroyed).length >= 6)
    await eventually(() => server.counts.subscriptions === 8)
    expect(others.map(socket => socket.destroyed)).toEqual([false, false])
  })
})

describe('F204: clients that ask for the status of all nodes and do not read it', () => {
  it('hold a bounded number of answers, and keep nobody from his', async () => {
    const clock = new FakeClock()
    const state = new RelayState({ clock, proxyName: '' })
    for (let index = 0; index < 1_000; index++) state.reports.take(`node-${index}`, BYTES)
    const server = await relay({ state, clock })
    const session = connectHttp2('http://localhost', { createConnection: () => dialed(server.address) })
    ends.push(() => session.destroy())
    for (let index = 0; index < 40; index++) {
      const stream = session.request({
        ':method': 'POST',
        ':path': STATUS_METHOD,
        'content-type': 'application/grpc',
      })
      stream.on('error', () => undefined)
      stream.end(framed(status.StatusRequest, {}))
    }
    await eventually(() => server.counts.calls === 40)
    const link = openLink(parseApiAddress(server.address), { tls: undefined, tokenFile: '' }, systemClock)
    ends.push(() => link.close())
    expect((await askStatus(link, systemClock)).nodes).toHaveLength(1_000)
    // Who was told that the answer is not kept has a moment to hear of it.
    await eventually(async () => {
      await clock.advance(2_000)
      return server.counts.calls <= 16
    })
  })
})

describe('F204: readers that say much', () => {
  /** Streams of a client, without sockets. */
  function client() {
    const state = new RelayState({ clock: systemClock, proxyName: '' })
    const deltas = new DiscoveryServer({ state, clock: systemClock })
    ends.push(() => deltas.close())
    return { state, open: () => deltas.deltas(new KeptCall()) }
  }

  it('leave nothing of it in the relay that it does not need', () => {
    setFlagsFromString('--expose-gc')
    const gc: () => void = runInNewContext('gc')
    const { state, open } = client()
    state.collections.Service.seal('7')
    const text = 'x'.repeat(200_000)
    const initial_resource_versions = Object.fromEntries(
      [...Array(2_000).keys()].map(at => [`n/s-${at}`, '7']),
    )
    const bytes = requestOf({ metadata: { [METADATA.report]: text, more: text }, initial_resource_versions })
    gc()
    const before = process.memoryUsage().heapUsed
    const streams = [...Array(100)].map(open)
    for (const stream of streams) stream.message(bytes)
    gc()
    expect(state.readers).toBe(100)
    // The names that they have take 10 MB, and their texts would take 40 MB.
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(25_000_000)
    const long = requestOf({ metadata: { [METADATA.proxy]: text } })
    expect(() => open().message(long)).toThrow('more than 1024 characters')
  })

  it('subscribe to so many names together, and keep nobody from a few', () => {
    const { state, open } = client()
    const names = [...Array(1_024).keys()].map(at => `${at}`.padEnd(900, '.'))
    const many = requestOf({ resource_names_subscribe: names })
    const streams: CallHandler[] = []
    const flood = (): void => {
      for (let at = 0; at < 100; at++) {
        const stream = open()
        streams.push(stream)
        stream.message(many)
      }
    }
    expect(flood).toThrow('clients subscribe to too many names')
    open().message(requestOf({ resource_names_subscribe: ['shop/cart'] }))
    streams[0]?.message(requestOf({ resource_names_unsubscribe: names }))
    for (const stream of streams) stream.closed?.()
    expect(state.nameBytes).toBe('shop/cart'.length + 128)
  })
})

describe('F210: readers that do not read the responses for them alone', () => {
  it('hold so many bytes together, and lose their connections before one that reads', async () => {
    const clock = new FakeClock()
    // Ten responses with the only object.
    const server = await relay({ clock }, 41_000)
    const begins = framed(discovery.DeltaDiscoveryRequest, {
      type_url: TYPE,
      initial_resource_versions: { 'a/b': '1' },
    })
    const read = framed(discovery.DeltaDiscoveryRequest, { type_url: TYPE, response_nonce: 'o0.0' })
    const reader = (...requests: readonly Buffer[]): Socket => {
      const socket = dial(server.address)
      const asks = requests.map(request => frame(DATA, 0, 1, request))
      socket.write(Buffer.concat([GREETING, call(DELTA_METHOD), ...asks]))
      return socket
    }
    const reads = reader(begins, read)
    await eventually(() => server.counts.subscriptions === 1)
    const stalled: Socket[] = []
    for (let count = 1; count <= 15; count++) {
      await clock.advance(10)
      stalled.push(reader(begins))
      await eventually(() => server.counts.subscriptions + server.counts.evicted === count + 1)
    }
    await eventually(() => stalled.filter(socket => socket.destroyed).length === 6)
    expect(stalled.map(socket => socket.destroyed).lastIndexOf(true)).toBe(5)
    expect(reads.destroyed).toBe(false)
  })
})

describe('F198: a compressed response', () => {
  const read = (bytes: Buffer, bytesMax = 100_000): string[] => {
    const taken: string[] = []
    new MessageReader(bytesMax, { readsGzip: true }).read(bytes, message => taken.push(message.toString()))
    return taken
  }
  const withPrefix = (body: Buffer): Buffer => {
    const prefix = Buffer.from([1, 0, 0, 0, 0])
    prefix.writeUInt32BE(body.length, 1)
    return Buffer.concat([prefix, body])
  }

  it('is what it was, and smaller', () => {
    const plain = Buffer.concat([Buffer.from([0, 0, 0, 0x10, 0]), Buffer.alloc(4_096, 'object')])
    const compressed = compressedFrame(plain)
    expect(compressed.length).toBeLessThan(200)
    expect(read(Buffer.concat([compressed, plain]))).toEqual(Array(2).fill(plain.toString('utf8', 5)))
  })

  it('that is more than a node holds, torn, or not agreed on is refused', () => {
    expect(() => read(withPrefix(gzipSync(Buffer.alloc(1_000_000))))).toThrow('cannot be read')
    expect(() => read(withPrefix(gzipSync('whole').subarray(0, 12)))).toThrow('cannot be read')
    expect(() => new MessageReader(9_999).read(withPrefix(gzipSync('any')), () => undefined)).toThrow(
      'not supported',
    )
  })

  it('is for clients alone that say so', async () => {
    const { address } = await relay()
    const bytes = async (accepts: Readonly<Record<string, string>>): Promise<number> => {
      const socket = dial(address)
      let heard = 0
      socket.on('data', chunk => {
        heard += chunk.length
      })
      const headers = Buffer.concat([call(DELTA_METHOD).subarray(9), headerBlock(accepts)])
      socket.write(Buffer.concat([GREETING, frame(HEADERS, END_HEADERS, 1, headers), WHOLE]))
      await eventually(() => heard > 200)
      await new Promise(resolve => setTimeout(resolve, 20))
      return heard
    }
    expect(await bytes({ 'grpc-accept-encoding': 'identity,deflate' })).toBeGreaterThan(4_000)
    expect(await bytes({ 'grpc-accept-encoding': 'identity, gzip' })).toBeLessThan(1_000)
  })
})

/** A node that lists Services at a relay. */
function nodeAt(address: string, tls: NonNullable<Parameters<typeof openRelayClient>[0]['tls']>) {
  const said: string[] = []
  const client = openRelayClient({
    addresses: [address],
    zone: '',
    tokenFile: '',
    fallsBack: false,
    tls,
    nodeName: 'node',
    proxyName: '',
    kube: {
      server: 'kube',
      send: () => Promise.reject(new Error('not asked')),
      close: async () => undefined,
    },
    clock: systemClock,
    say: text => void said.push(text),
  })
  ends.push(() => client.close())
  const list = async (): Promise<string> => {
    const { signal } = new AbortController()
    const request = {
      method: 'GET',
      path: '/api/v1/services',
      accept: '',
      idleMs: 1_000,
      signal,
      longLived: false,
    } as const
    return await client.send(request).then(
      ({ status }) => String(status),
      (error: unknown) => String(error),
    )
  }
  return { list, said }
}

describe('F195: certificates that expire', () => {
  it('are renewed at relay and node without a restart, and both say so', async () => {
    const authority = createAuthority()
    const file = (name: string): string => join(folder, name)
    const write = (name: string, organizations: readonly string[], untilSeconds: number): void => {
      const { certPem, keyPem } = authority.issue({ organizations, untilSeconds, fromSeconds: -9_999 })
      writeFileSync(file(`${name}.crt`), certPem)
      writeFileSync(file(`${name}.key`), keyPem)
    }
    writeFileSync(file('ca'), authority.caPem)
    write('relay', [], -60)
    write('node', ['system:nodes'], -60)
    const clock = new FakeClock()
    const server = await relay({
      address: 'tcp://127.0.0.1:0',
      clock,
      tls: { certFile: file('relay.crt'), keyFile: file('relay.key'), clientCaFile: file('ca') },
    })
    expect(server.expiresMs).toBeLessThan(Date.now())
    const { list, said } = nodeAt(server.address, {
      caFile: file('ca'),
      serverName: '',
      certFile: file('node.crt'),
      keyFile: file('node.key'),
    })
    const becomes = async (answer: string): Promise<void> => {
      let last = ''
      for (let time = 0; time < 900 && !last.includes(answer); time++) {
        last = await list()
        await new Promise(resolve => setTimeout(resolve, 50))
      }
      expect(last).toContain(answer)
    }
    await becomes('certificate has expired')
    write('relay', [], 600)
    for (let time = 0; time < 600 && (server.expiresMs ?? 0) < Date.now(); time++) {
      await clock.advance(10_000)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    expect(server.expiresMs).toBeGreaterThan(Date.now())
    expect(said.join()).toMatch(/no relay answers.*certificate has expired/)
    // The relay is well again, and refuses the node.
    await becomes('tcp://127.0.0.1')
    expect(await list()).not.toContain('certificate has expired')
    expect(said.filter(text => text.includes('node.crt expired at'))).toHaveLength(1)
    write('node', ['system:nodes'], 600)
    await becomes('200')
  })
})
