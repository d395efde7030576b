import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { connect, type LookupFunction } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { createAuthority } from '../../../../support/tls.ts'
import { clusterOf, failureOf, get, type Handler, loopback, textOf, until } from './loopback.ts'

const rig = loopback()
const ok: Handler = (_, response) => response.end('ok')
const endings: (() => void)[] = []

afterEach(() => {
  for (const end of endings.splice(0)) end()
})

/** A name with these addresses, in this order. */
function named(...addresses: readonly string[]): LookupFunction {
  return (_, _options, done) =>
    done(
      null,
      addresses.map(address => ({ address, family: address.includes(':') ? 6 : 4 })),
    )
}

/** A server of that name at 127.0.0.1, and a client that knows the name. */
async function begin(addresses: readonly string[], { port = 0, cluster = {}, caPem = '' } = {}) {
  const authority = createAuthority()
  const pair = authority.issue({ names: ['api.test'] })
  const server = await rig().serve({ protocol: 'h2', handler: ok, authority, pair })
  const url = `https://api.test:${port || server.port}`
  const clock = new FakeClock()
  const kubeconfig = await rig().kubeconfig({
    ...clusterOf({ url, caPem: caPem || server.caPem }),
    ...cluster,
  })
  const client = await rig().open({ clock, kubeconfig, connect: { lookup: named(...addresses) } })
  return { server, clock, read: async () => textOf(await client.send(get('/'))) }
}

/** Accepts nothing, so that the kernel drops every SYN, until `relay` is called; then passes bytes to the port. */
async function deaf(host: string, port: number) {
  const process = spawn('python3', ['-c', DEAF, host, String(port)], { stdio: ['pipe', 'pipe', 'inherit'] })
  endings.push(() => process.kill())
  const listening = await new Promise<string>(resolve => process.stdout.once('data', resolve))
  return { port: Number(listening), relay: (to: number) => process.stdin.write(`${to}\n`) }
}

const DEAF = `
import socket, sys, threading
host = sys.argv[1]
server = socket.create_server((host, int(sys.argv[2])), backlog=0)
port = server.getsockname()[1]
filling = [socket.socket() for _ in range(4)]
for each in filling:
    each.setblocking(False)
    each.connect_ex((host, port))
print(port, flush=True)
to = int(sys.stdin.readline())
for each in filling: each.close()
def pump(a, b):
    while data := a.recv(65536): b.sendall(data)
while True:
    near = server.accept()[0]
    far = socket.create_connection((host, to))
    for ends in ((near, far), (far, near)): threading.Thread(target=pump, args=ends, daemon=True).start()
`

/** SYNs to an IPv4 address and port that are not answered. */
function unanswered(host: string, port: number): number {
  const ip = Buffer.from(host.split('.').reverse().map(Number)).toString('hex').toUpperCase()
  const end = `${ip}:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const rows = readFileSync('/proc/net/tcp', 'utf8').split('\n')
  return rows.filter(row => row.includes(` ${end} 02 `)).length
}

describe('A4: a name with several addresses', () => {
  it.each([
    ['127.0.0.2', '127.0.0.1'],
    ['127.0.0.1', '127.0.0.2'],
  ])(
    'is reached where one address is dead and the handshake of the other takes a second: %s, %s',
    async (one, two) => {
      const slow = await deaf('127.0.0.1', 0)
      await deaf('127.0.0.2', slow.port)
      const { server, clock, read } = await begin([one, two], slow)
      const before = [one, two].map(host => unanswered(host, slow.port))
      const tried = (index: number): Promise<void> =>
        until(() => unanswered([one, two][index] ?? '', slow.port) > (before[index] ?? 0))
      const answer = read()
      await tried(0)
      await clock.advance(500)
      await tried(1)
      slow.relay(server.port)
      expect(await answer).toBe('ok')
    },
  )

  it('is reached where the first address does no TLS, and the attempt there ends with that', async () => {
    const { server, clock, read } = await begin(['127.0.0.2', '127.0.0.1'])
    const stalled = await rig().listen(socket => socket.resume(), { host: '127.0.0.2', port: server.port })
    const answer = read()
    await until(() => stalled.connections.size === 1)
    await clock.advance(499)
    expect(server.accepted).toBe(0)
    await clock.advance(1)
    expect(await answer).toBe('ok')
    await until(() => stalled.connections.size === 0)
  })

  it('is tried at the next address at once where one refuses, the families in turn', async () => {
    const { server, read } = await begin(['127.0.0.3', '127.0.0.2', '::1', '127.0.0.1'])
    const reached: string[] = []
    await rig().listen(socket => reached.push(String(socket.localAddress)) && socket.destroy(), {
      host: '127.0.0.2',
      port: server.port,
    })
    await rig().listen(socket => reached.push(String(socket.localAddress)) && socket.destroy(), {
      host: '::1',
      port: server.port,
    })
    expect(await read()).toBe('ok')
    expect(reached).toEqual(['::1', '127.0.0.2'])
  })

  it('says of several failures what the server did, and otherwise what the first address did', async () => {
    const { server, read } = await begin(['127.0.0.2', '127.0.0.1'], { caPem: createAuthority().caPem })
    expect(await failureOf(read())).toMatchObject({ kind: 'tls' })
    await server.close()
    const error = await failureOf(read())
    expect(error).toMatchObject({ kind: 'unreachable' })
    expect(error.message).toContain('cannot connect: ECONNREFUSED')
  })

  it('is a proxy as well: each attempt is a tunnel with the handshakes of the server behind it', async () => {
    const tunnel = await rig().listen(near => {
      near.on('error', () => undefined)
      near.once('data', head => {
        const far = connect(Number(/:(\d+) /.exec(head.toString())?.[1]), '127.0.0.1', () => {
          near.write('HTTP/1.1 200 Connection established\r\n\r\n')
          near.pipe(far).pipe(near)
        })
        far.on('error', () => near.destroy())
      })
    })
    const stalled = await rig().listen(socket => socket.resume(), { host: '127.0.0.2', port: tunnel.port })
    const cluster = { 'proxy-url': `http://proxy.test:${tunnel.port}` }
    const { clock, read } = await begin(['127.0.0.2', '127.0.0.1'], { cluster })
    const answer = read()
    await until(() => stalled.connections.size === 1)
    await clock.advance(500)
    expect(await answer).toBe('ok')
    await until(() => stalled.connections.size === 0)
  })
})
