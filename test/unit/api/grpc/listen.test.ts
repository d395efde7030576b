import { existsSync, lstatSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createConnection, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import * as grpc from '@grpc/grpc-js'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { listenerFor, readTls, tlsServer } from '../../../../src/api/grpc/http-server.ts'
import { type ApiServer, startApiServer } from '../../../../src/api/grpc/server.ts'
import { formatApiAddress, parseApiAddress } from '../../../../src/base/api-address.ts'
import { type Clock, systemClock } from '../../../../src/base/clock.ts'
import { EMPTY, feedOf } from '../../../support/api/states.ts'
import { grpcClient, statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { dyingSocket } from '../../../support/dead-socket.ts'
import { eventually } from '../../../support/patience.ts'
import { createAuthority, type KeyPair } from '../../../support/tls.ts'

let folder = ''
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-listen-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const servers: ApiServer[] = []
const clients: grpc.Client[] = []
afterEach(async () => {
  for (const client of clients.splice(0)) client.close()
  for (const server of servers.splice(0)) await server.close()
})

type Options = Parameters<typeof startApiServer>[0]

async function start(address: string, tls?: Options['tls'], rest: Partial<Options> = {}): Promise<ApiServer> {
  const server = await startApiServer({
    feed: feedOf(EMPTY),
    address,
    tls,
    nodeName: 'node-a',
    clock: systemClock,
    failed: error => expect.fail(error.message),
    ...rest,
  })
  servers.push(server)
  return server
}

function client(address: string, credentials?: grpc.ChannelCredentials): WatchClient {
  const its = grpcClient(address, credentials)
  clients.push(its)
  return new WatchClient(its)
}

describe('addresses', () => {
  it.each(['unix:///run/kprobe/api.sock', 'tcp://127.0.0.1:12090', 'tcp://[::1]:0', 'tcp://192.0.2.1:1'])(
    'like %s are read and printed',
    text => expect(formatApiAddress(parseApiAddress(text))).toBe(text),
  )

  it.each([
    '',
    'unix://run/api.sock',
    'unix:///run/',
    `unix:///${'a'.repeat(101)}`,
    'tcp://localhost:1',
    'tcp://127.0.0.1',
    'tcp://127.0.0.1:65536',
    'tcp://::1:80',
    'tcp://[127.0.0.1]:80',
    'http://127.0.0.1:1',
  ])('like %j are refused by what is wrong with them', text =>
    expect(() => parseApiAddress(text)).toThrow(JSON.stringify(text)),
  )
})

describe('a unix socket', () => {
  it('is for its owner alone, and gone when the server is', async () => {
    const path = `${folder}/api.sock`
    const server = await start(`unix://${path}`)
    expect(server.address).toBe(`unix://${path}`)
    expect(lstatSync(path).mode & 0o777).toBe(0o600)
    expect(await client(server.address).ask()).toBe(1)
    await server.close()
    await server.close()
    expect(existsSync(path)).toBe(false)
  })

  it('replaces the file that a dead process left, and no living one', async () => {
    const path = `${folder}/taken.sock`
    const die = await dyingSocket(path)
    await expect(start(`unix://${path}`)).rejects.toThrow(
      `cannot serve the API at unix://${path}: another process answers at this socket`,
    )
    await die()
    expect(existsSync(path)).toBe(true)
    const server = await start(`unix://${path}`)
    expect(await client(server.address).ask()).toBe(1)
  })

  it('makes the folder that it is in', async () => {
    const server = await start(`unix://${folder}/run/api.sock`)
    expect(await client(server.address).ask()).toBe(1)
    await expect(start(`unix://${folder}/no/such/api.sock`)).rejects.toThrow('ENOENT')
  })

  it('leaves alone what is no socket', async () => {
    writeFileSync(`${folder}/file`, 'mine')
    await expect(start(`unix://${folder}/file`)).rejects.toThrow('not a socket')
  })
})

describe('TCP', () => {
  it('is in plain at loopback, in both families', async () => {
    for (const address of ['tcp://127.0.0.1:0', 'tcp://[::1]:0']) {
      const server = await start(address)
      expect(server.address).toMatch(/:[1-9][0-9]*$/)
      expect(await client(server.address).ask()).toBe(1)
      await expect(start(server.address)).rejects.toThrow('EADDRINUSE')
    }
  })

  it('needs certificates everywhere else', async () => {
    for (const address of ['tcp://0.0.0.0:0', 'tcp://192.0.2.1:0', 'tcp://[::]:0'])
      await expect(start(address)).rejects.toThrow('--api-tls-cert, --api-tls-key and --api-tls-client-ca')
  })
})

/** Columns of /proc/net/tcp (net/ipv4/tcp_ipv4.c, get_tcp4_sock). */
const ESTABLISHED = '01'
const KEEPALIVE_TIMER = '02'

describe('mutual TLS', () => {
  const ours = createAuthority()
  const foreign = createAuthority('another authority')
  const write = (name: string, text: string): string => {
    writeFileSync(`${folder}/${name}`, text)
    return `${folder}/${name}`
  }
  const files = () => {
    const { certPem, keyPem } = ours.issue()
    return {
      certFile: write('cert.pem', certPem),
      keyFile: write('key.pem', keyPem),
      clientCaFile: write('ca.pem', ours.caPem),
    }
  }
  const credentials = (pair?: KeyPair): grpc.ChannelCredentials =>
    grpc.credentials.createSsl(
      Buffer.from(ours.caPem),
      pair === undefined ? null : Buffer.from(pair.keyPem),
      pair === undefined ? null : Buffer.from(pair.certPem),
    )

  it('serves those whose certificate the authority signed', async () => {
    const server = await start('tcp://127.0.0.1:0', files())
    expect(await client(server.address, credentials(ours.issue({ commonName: 'back end' }))).ask()).toBe(1)
  })

  it('serves no other client', async () => {
    const server = await start('tcp://127.0.0.1:0', files())
    const expired = ours.issue({ fromSeconds: -7_200, untilSeconds: -3_600 })
    for (const its of [
      credentials(),
      credentials(foreign.issue()),
      credentials(expired),
      grpc.credentials.createInsecure(),
    ]) {
      const refused = client(server.address, its)
      void refused.ask()
      expect(await statusOf(refused.stream)).toMatchObject({ code: 14 })
      expect(refused.store.syncs).toBe(0)
    }
    expect(server.counts().streams).toBe(0)
  })

  const silent = async (address: string): Promise<Socket> => {
    const socket = createConnection({
      host: '127.0.0.1',
      port: Number(/\d+$/.exec(address)?.[0]),
      allowHalfOpen: true,
    })
    socket.resume().on('error', () => undefined)
    await new Promise(resolve => socket.once('connect', resolve))
    return socket
  }

  it('F132: a connection that never begins its handshake makes way for others', async () => {
    const server = await start('tcp://127.0.0.1:0', files(), { connectionsMax: 2 })
    const first = await silent(server.address)
    const gone = new Promise(resolve => first.once('end', resolve))
    const others = [await silent(server.address), await silent(server.address)]
    await gone
    expect(server.counts()).toMatchObject({ connections: 0, refused: 1 })
    expect(server.overShare).toEqual({ evicted: 1, refused: 0 })
    expect(await client(server.address, credentials(ours.issue())).ask()).toBe(1)
    for (const socket of others) socket.destroy()
  })

  it('ends a connection that never begins its handshake', async () => {
    const http = tlsServer(await readTls(files()), 20)
    http.on('tlsClientError', () => undefined)
    const listener = listenerFor(socket => http.emit('connection', socket))
    await new Promise<void>(resolve => listener.listen({ host: '127.0.0.1', port: 0 }, resolve))
    const address = listener.address()
    if (typeof address !== 'object' || address === null) throw new Error('it listens nowhere')
    const socket = await silent(`tcp://127.0.0.1:${address.port}`)
    await new Promise(resolve => socket.once('end', resolve))
    socket.destroy()
    await new Promise(resolve => listener.close(resolve))
  })

  it('F142: a connection that its client has half closed ends at once, before the handshake and after', async () => {
    const server = await start('tcp://127.0.0.1:0', files())
    const before = await silent(server.address)
    before.end()
    await new Promise(resolve => before.once('close', resolve))
    const port = Number(/\d+$/.exec(server.address)?.[0])
    const { certPem: cert, keyPem: key } = ours.issue()
    const options = { port, cert, key, ca: ours.caPem, servername: 'localhost', ALPNProtocols: ['h2'] }
    const after = connectTls({ ...options, host: '127.0.0.1' })
    after.resume().on('error', () => undefined)
    await eventually(() => server.counts().connections === 1, 'its session is there')
    after.end()
    await eventually(() => server.counts().connections === 0, 'its session is gone')
    after.destroy()
  })

  it('serves renewed certificates, and trusts their authorities', async () => {
    let look = (): void => expect.fail('nothing looks at the files')
    let isCanceled = false
    let aheadMs = 0
    const clock: Clock = {
      ...systemClock,
      nowMs: () => systemClock.nowMs() + aheadMs,
      after(ms, run) {
        if (ms !== 60_000) return systemClock.after(ms, run)
        look = () => {
          aheadMs += ms
          run()
        }
        return () => {
          isCanceled = true
        }
      },
    }
    const paths = files()
    const server = await start('tcp://127.0.0.1:0', paths, { clock })
    const pair = ours.issue()
    expect(await client(server.address, credentials(pair)).ask()).toBe(1)
    const theirs = foreign.issue()
    write('cert.pem', theirs.certPem)
    write('key.pem', theirs.keyPem)
    write('ca.pem', foreign.caPem)
    look()
    const another = foreign.issue({ commonName: 'back end' })
    const trusting = grpc.credentials.createSsl(
      Buffer.from(foreign.caPem),
      Buffer.from(another.keyPem),
      Buffer.from(another.certPem),
    )
    const isServed = (): Promise<boolean> => {
      const its = client(server.address, trusting)
      return Promise.race([its.ask().then(() => true), statusOf(its.stream).then(() => false)])
    }
    // The files are read aside.
    await eventually(isServed, 'the new files are read')
    const late = client(server.address, credentials(pair))
    void late.ask()
    expect(await statusOf(late.stream)).toMatchObject({ code: 14 })
    expect(isCanceled).toBe(false)
    await server.close()
    expect(isCanceled).toBe(true)
  })

  it('keeps connections alive, so that a peer whose machine is gone is noticed', async () => {
    for (const tls of [undefined, files()]) {
      const server = await start('tcp://127.0.0.1:0', tls)
      await client(server.address, tls && credentials(ours.issue())).ask()
      const port = Number(/\d+$/.exec(server.address)?.[0]).toString(16).toUpperCase().padStart(4, '0')
      const timers = (): readonly (string | undefined)[] =>
        readFileSync('/proc/self/net/tcp', 'utf8')
          .split('\n')
          .map(line => line.trim().split(/\s+/))
          .filter(([, local, , state]) => local?.endsWith(`:${port}`) && state === ESTABLISHED)
          // tr: which timer runs; just after something was sent it is another.
          .map(columns => columns[5]?.slice(0, 2))
      await eventually(() => timers().join() === KEEPALIVE_TIMER, 'the timer runs')
    }
  })

  it('is not for unix sockets, and says what is wrong with files', async () => {
    await expect(start(`unix://${folder}/tls.sock`, files())).rejects.toThrow('a unix socket has no TLS')
    await expect(start('tcp://127.0.0.1:0', { ...files(), keyFile: `${folder}/none.pem` })).rejects.toThrow(
      'none.pem',
    )
    await expect(
      start('tcp://127.0.0.1:0', { ...files(), certFile: write('bad.pem', 'no certificate') }),
    ).rejects.toThrow(/^--api-tls-cert: there is no certificate in .*bad\.pem$/)
  })
})

describe('closing', () => {
  it('ends every stream with UNAVAILABLE', async () => {
    const server = await start('tcp://127.0.0.1:0')
    const waiting = client(server.address)
    await waiting.ask()
    void waiting.ask()
    const status = statusOf(waiting.stream)
    await server.close()
    expect(await status).toMatchObject({ code: 14, details: 'the server is stopping' })
    expect(server.counts()).toMatchObject({ connections: 0, calls: 0, streams: 0 })
  })
})
