import { existsSync, lstatSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createConnection, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as grpc from '@grpc/grpc-js'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { formatApiAddress, parseApiAddress } from '../../../../src/api/grpc/address.ts'
import { type ApiServer, startApiServer } from '../../../../src/api/grpc/server.ts'
import { systemClock } from '../../../../src/base/clock.ts'
import { EMPTY, feedOf } from '../../../support/api/states.ts'
import { grpcClient, statusOf, WatchClient } from '../../../support/api/watch-client.ts'
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
    const dead = createServer().listen({ path: `${folder}/dead.sock` })
    await new Promise(resolve => dead.once('listening', resolve))
    // Linux keeps the file of a socket whose process is gone; so does a name that closing does not know.
    const { linkSync } = await import('node:fs')
    linkSync(`${folder}/dead.sock`, path)
    await expect(start(`unix://${path}`)).rejects.toThrow(
      `the API cannot be served at unix://${path}: another process answers at this socket`,
    )
    await new Promise(resolve => dead.close(resolve))
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
    await expect(start(`unix://${folder}/file`)).rejects.toThrow('no socket')
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
      await expect(start(address)).rejects.toThrow('--api-tls-cert, --api-tls-key, --api-tls-client-ca')
  })
})

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

  it('serves nobody else', async () => {
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

  it('bounds connections that never begin their handshake', async () => {
    const server = await start('tcp://127.0.0.1:0', files(), { connectionsMax: 2 })
    const port = Number(/\d+$/.exec(server.address)?.[0])
    const connected = async (): Promise<Socket> => {
      const socket = createConnection({ host: '127.0.0.1', port })
      await new Promise(resolve => socket.once('connect', resolve))
      return socket
    }
    const silent = [await connected(), await connected()]
    const third = await connected()
    third.resume().on('error', () => undefined)
    await new Promise(resolve => third.once('close', resolve))
    expect(server.counts()).toMatchObject({ connections: 0, refused: 1 })
    for (const socket of silent) socket.destroy()
    expect(await client(server.address, credentials(ours.issue())).ask()).toBe(1)
  })

  it('is not for unix sockets, and says what is wrong with files', async () => {
    await expect(start(`unix://${folder}/tls.sock`, files())).rejects.toThrow('without TLS at a unix socket')
    await expect(start('tcp://127.0.0.1:0', { ...files(), keyFile: `${folder}/none.pem` })).rejects.toThrow(
      'none.pem',
    )
    await expect(
      start('tcp://127.0.0.1:0', { ...files(), certFile: write('bad.pem', 'no certificate') }),
    ).rejects.toThrow()
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
