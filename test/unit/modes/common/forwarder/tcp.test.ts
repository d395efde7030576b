import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../../../../src/base/clock.ts'
import { ReportLimit, reportUnreached } from '../../../../../src/modes/common/forwarder/context.ts'
import { IS_QUICK } from '../../../../support/runs.ts'
import { deadEndpoint, ForwarderRig, fate, freePort, LOOPBACK, readAll, until } from './rig.ts'

let rig: ForwarderRig

function fresh(limits: ConstructorParameters<typeof ForwarderRig>[0] = {}): ForwarderRig {
  rig = new ForwarderRig(limits)
  return rig
}

beforeEach(() => void fresh())

afterEach(async () => {
  rig.close()
  await until(() => rig.context.connections.held === 0 && rig.context.own.size === 0)
})

const named = (name: string) => (socket: Socket) => void socket.end(name)

async function answers(port: number, count: number): Promise<string[]> {
  const texts: string[] = []
  for (let at = 0; at < count; at++) {
    const client = rig.client(port)
    client.end()
    texts.push(await readAll(client))
  }
  return texts
}

it('takes endpoints in turns', async () => {
  const backends = [await rig.server(named('a')), await rig.server(named('b')), await rig.server(named('c'))]
  const { port } = await rig.tcp(rig.port(backends))
  expect(await answers(port, 6)).toEqual(['a', 'b', 'c', 'a', 'b', 'c'])
})

it('keeps a client with affinity at its endpoint, and gives it another one when that does not answer', async () => {
  const backends = [await rig.server(named('a')), await rig.server(named('b'))]
  const forwarder = rig.port(backends, 3600)
  const { port } = await rig.tcp(forwarder)
  expect(await answers(port, 3)).toEqual(['a', 'a', 'a'])
  forwarder.balancer.update({
    affinityTimeoutS: 3600,
    cluster: [deadEndpoint(), ...backends.slice(1)],
    local: [],
  })
  expect(await answers(port, 3)).toEqual(['b', 'b', 'b'])
})

it('tries the next endpoint when one refuses, and says so once', async () => {
  const dead = [deadEndpoint(0), deadEndpoint(1)]
  const { port } = await rig.tcp(rig.port([...dead, await rig.server(named('alive'))]))
  expect(await answers(port, 9)).toEqual(Array.from({ length: 9 }, () => 'alive'))
  expect(rig.events).toMatchObject(
    dead.map(each => ({ level: 'info', facts: { endpoint: `127.0.0.1:${each.port}` } })),
  )
})

it('tells of what recurs once a minute', () => {
  let nowMs = 0
  const complaints = new ReportLimit({ ...systemClock, nowMs: () => nowMs })
  const due = (...all: readonly string[]) => all.filter(each => complaints.isDue(each))
  expect(due('a', 'a', 'b')).toEqual(['a', 'b'])
  nowMs = 59_999
  expect(due('a', 'b', 'c')).toEqual(['c'])
  nowMs = 60_000
  expect(due('a', 'b', 'c')).toEqual(['a', 'b'])
})

it('tells of itself when it lacks what a connection takes, and of no endpoint', () => {
  const { context, events } = fresh()
  const error = Object.assign(new Error('connect EMFILE'), { code: 'EMFILE' })
  const port = rig.port([])
  for (const endpoint of ['10.0.0.1:80', '10.0.0.2:80']) reportUnreached(context, port, { endpoint, error })
  expect(events).toEqual([
    {
      kind: 'notice',
      level: 'warn',
      text: 'cannot open a socket to an endpoint; the client is refused',
      facts: { servicePort: port.key, error: error.message },
    },
  ])
})

it('tries four endpoints for one connection, no more, and resets it then', async () => {
  const dead = Array.from({ length: 5 }, (_, index) => deadEndpoint(index))
  const { port } = await rig.tcp(rig.port([...dead, await rig.server(named('never tried'))]))
  expect(await fate(rig.client(port))).toBe('ECONNRESET')
})

it('gives up on an endpoint that does not answer in time', async () => {
  fresh({ connectTimeoutsMs: [50, 1000] })
  // Reserved for documentation: nobody answers there, or the network says at once that it is not to be reached.
  const silent = { ip: String.fromCharCode(192, 0, 2, 1), port: 80, local: false }
  const { port } = await rig.tcp(rig.port([silent, await rig.server(named('second'))]))
  expect(await answers(port, 1)).toEqual(['second'])
  expect(rig.events).toMatchObject([{ level: 'info', facts: { endpoint: '192.0.2.1:80' } }])
})

it('comes back to the only endpoint there is when that was silent, for longer each time', async () => {
  fresh({ connectTimeoutsMs: [20, 30, 40] })
  const silent = { ip: String.fromCharCode(192, 0, 2, 1), port: 80, local: false }
  const { port } = await rig.tcp(rig.port([silent]))
  expect(await fate(rig.client(port))).toBe('ECONNRESET')
})

it('hands a half-closed stream on in both directions', async () => {
  const echoAfterEnd = (socket: Socket) => {
    let heard = ''
    socket.on('data', chunk => {
      heard += String(chunk)
    })
    socket.once('end', () => void setTimeout(() => socket.end(`heard ${heard}`), 20))
  }
  const { port } = await rig.tcp(rig.port([await rig.server(echoAfterEnd)]))
  const client = rig.client(port)
  client.end('a question')
  expect(await readAll(client)).toBe('heard a question')
  // The server ends first; the client goes on to speak.
  let heard = ''
  const listens = (socket: Socket) => {
    socket.end('greeting')
    socket.on('data', chunk => {
      heard += String(chunk)
    })
  }
  const second = await rig.tcp(rig.port([await rig.server(listens)]))
  const talker = rig.client(second.port)
  expect(String((await once(talker, 'data'))[0])).toBe('greeting')
  await once(talker, 'end')
  talker.end('still here')
  await until(() => heard === 'still here')
})

it('hands a reset in the middle of a stream on, from either side', async () => {
  const resets = (socket: Socket) => {
    socket.write('some')
    setTimeout(() => socket.resetAndDestroy(), 20)
  }
  const first = await rig.tcp(rig.port([await rig.server(resets)]))
  expect(await fate(rig.client(first.port))).toBe('ECONNRESET')
  let seen = ''
  let isThere = false
  const watches = (socket: Socket) => {
    isThere = true
    void fate(socket).then(how => {
      seen = how
    })
  }
  const second = await rig.tcp(rig.port([await rig.server(watches)]))
  const client = rig.client(second.port)
  client.write('some')
  await until(() => isThere)
  setTimeout(() => client.resetAndDestroy(), 20)
  await until(() => seen === 'ECONNRESET')
})

it.skipIf(IS_QUICK)(
  'reads no faster than the other side takes: what is under way stays bounded',
  async () => {
    let upstream: Socket | undefined
    const deaf = (socket: Socket) => {
      upstream = socket
      socket.pause()
    }
    const { port } = await rig.tcp(rig.port([await rig.server(deaf)]))
    const client = rig.client(port)
    await once(client, 'connect')
    const chunk = Buffer.alloc(1 << 20)
    const total = 64
    for (let count = 0; count < total; count++) client.write(chunk)
    await new Promise(resolve => setTimeout(resolve, 300))
    // What left the client is in buffers of the kernel on both ways, and in at most some 100 KiB of ours.
    const unsent = client.writableLength
    expect(unsent).toBeGreaterThan((total / 2) * chunk.length)
    let read = 0
    upstream?.on('data', data => {
      read += data.length
    })
    upstream?.resume()
    client.end()
    await until(() => read === total * chunk.length)
  },
)

it('refuses connections beyond the limit, each of them counted and all of them told of once', async () => {
  fresh({ connections: 8 })
  const { port } = await rig.tcp(rig.port([await rig.server(socket => void socket.resume())]))
  const clients = Array.from({ length: 100 }, () => rig.client(port))
  const fates = clients.map(fate)
  // One Service port has half of all.
  await until(() => rig.context.connections.refused === 96)
  expect(rig.context.connections.held).toBe(4)
  expect(rig.events).toMatchObject([
    {
      text: 'too many relayed connections; new ones are refused',
      facts: { limit: 4, share: 'ns/web' },
    },
  ])
  for (const client of clients) client.end()
  await until(() => clients.filter(({ destroyed }) => destroyed).length >= 96)
  expect(
    (await Promise.all(fates.map(one => Promise.race([one, 'open'])))).filter(how => how === 'ECONNRESET')
      .length,
  ).toBe(96)
})

it('accepts nobody behind a closed door', async () => {
  const listener = await rig.tcp(rig.port([await rig.server(named('secret'))]))
  listener.setOpen(false)
  expect(await fate(rig.client(listener.port))).toBe('ECONNRESET')
  listener.setOpen(true)
  expect(await answers(listener.port, 1)).toEqual(['secret'])
})

it('lets connections go on when its listener closes', async () => {
  const echo = (socket: Socket) => void socket.pipe(socket)
  const listener = await rig.tcp(rig.port([await rig.server(echo)]))
  const client = rig.client(listener.port)
  client.write('before ')
  await once(client, 'data')
  listener.close()
  client.write('after')
  expect(String((await once(client, 'data'))[0])).toBe('after')
  expect(await fate(rig.client(listener.port))).toBe('ECONNREFUSED')
  client.end()
})

it('refuses a connection of its own that came back, each time it is tried', async () => {
  // One Service port may have a single connection: relaying one that came back would be a second.
  fresh({ connections: 2 })
  const forwarder = rig.port([])
  const listener = await rig.tcp(forwarder)
  const itself = [{ ip: LOOPBACK, port: listener.port, local: true }]
  forwarder.balancer.update({ affinityTimeoutS: 0, cluster: itself, local: [] })
  expect(await fate(rig.client(listener.port))).toBe('ECONNRESET')
  await until(() => rig.context.connections.held === 0)
  const { connectTimeoutsMs } = rig.context.limits
  await until(() => rig.context.own.loops === connectTimeoutsMs.length)
  expect(rig.events.filter(event => 'text' in event && /made to itself/.test(event.text))).toHaveLength(1)
  expect(rig.context.connections.refused).toBe(0)
})

it('serves a client that has the port of one of its own connections', async () => {
  const echo = (socket: Socket) => void socket.pipe(socket)
  const { port } = await rig.tcp(rig.port([await rig.server(echo)]))
  const localPort = await freePort()
  let givenUp = 0
  const forget = rig.context.own.add('TCP', { address: '127.0.0.1', port: localPort }, closed => {
    givenUp++
    closed()
  })
  const client = connect({ host: '127.0.0.1', port, localPort })
  client.end('early words')
  expect(await readAll(client)).toBe('early words')
  expect(givenUp).toBe(1)
  expect(rig.context.own.loops).toBe(0)
  forget()
})

it('passes over endpoints that its own rules would catch', async () => {
  const caught = await rig.server(named('caught'))
  const free = await rig.server(named('free'))
  const { port } = await rig.tcp(rig.port([caught, free]), {
    isCaptured: ({ port: its }) => its === caught.port,
  })
  expect(await answers(port, 3)).toEqual(['free', 'free', 'free'])
})
