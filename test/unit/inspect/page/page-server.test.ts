import { rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:https'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../../src/base/clock.ts'
import { createLog } from '../../../../src/base/log.ts'
import type { UiConfig } from '../../../../src/config/config.ts'
import type { UiServer } from '../../../../src/daemon/optional-parts.ts'
import type { HttpRequest } from '../../../../src/http/connections.ts'
import type { ServerNews } from '../../../../src/http/server.ts'
import { type OpenPage, openUiServer, PageServer } from '../../../../src/inspect/page/page-server.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { eventually } from '../../../support/patience.ts'
import { ip } from '../../../support/pipeline.ts'
import { createAuthority } from '../../../support/tls.ts'
import { ask, freePort } from '../../telemetry/http-client.ts'
import { pageSource } from './page-source.ts'

let folder = ''
const servers: UiServer[] = []
const sockets: Socket[] = []

beforeEach(() => {
  folder = temporaryFolder()
})

afterEach(() => {
  for (const server of servers.splice(0)) server.close()
  for (const socket of sockets.splice(0)) socket.destroy()
})

function file(name: string, text: string): string {
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}

/** A page that names the path it is asked for, and how often it was loaded. */
function pageServer(other?: OpenPage, clock: Clock = systemClock) {
  const life = { loaded: 0, closed: 0 }
  const open: OpenPage = async () => {
    life.loaded++
    const handle = ({ path }: HttpRequest) => ({ status: 200, headers: {}, body: `page ${path}` })
    return { handle, close: async () => void life.closed++ }
  }
  return { page: new PageServer(other ?? open, pageSource({ clock, wallMs: Date.now })), life }
}

const get = (path: string, more: Partial<HttpRequest> = {}): HttpRequest => ({
  method: 'GET',
  path,
  query: new URLSearchParams(),
  host: 'localhost:8080',
  ...more,
})

describe('the page', () => {
  it('is loaded again after it could not be, and lets the daemon end', async () => {
    let isThere = false
    const open: OpenPage = async () => {
      if (!isThere) throw new Error('not there')
      return { handle: () => ({ status: 200, headers: {}, body: '' }), close: async () => undefined }
    }
    const { page } = pageServer(open)
    await expect(page.atSocket(get('/ui/'))).rejects.toThrow('not there')
    await page.close()
    isThere = true
    expect(await page.atSocket(get('/ui/'))).toMatchObject({ status: 200 })
  })

  it.each(['evil.example:8080', undefined])(
    'F187: is not there under the name of another site: %s',
    async host => {
      const { page, life } = pageServer()
      for (const handle of [page.atSocket, page.at('')])
        expect(await handle(get('/ui/data/status', { host }))).toMatchObject({ status: 421 })
      expect(life.loaded).toBe(0)
      expect(await page.atSocket(get('/ui/', { host: 'here:80' }))).toMatchObject({ status: 200 })
    },
  )

  it('F187: demands the token of its file, also once that changes, and is closed while there is none', async () => {
    const { page, life } = pageServer()
    const path = file('token', 'first\n')
    const handle = page.at(path)
    const status = async (token?: string) =>
      (await handle(get('/ui/', token === undefined ? {} : { authorization: `Bearer ${token}` }))).status
    expect(await status()).toBe(401)
    expect(await status('other')).toBe(401)
    expect(life.loaded).toBe(0)
    expect(await status('first')).toBe(200)
    file('token', 'second\n')
    expect([await status('first'), await status('second')]).toEqual([401, 200])
    file('token', ' \n')
    expect([await status(''), await status('second')]).toEqual([503, 503])
    rmSync(path)
    expect(await status('second')).toBe(503)
    expect(await handle(get('/'))).toMatchObject({ status: 503 })
  })
})

it('answers a client that has 20 refusals a second later each time', async () => {
  const clock = new FakeClock()
  const { page } = pageServer(undefined, clock)
  const handle = page.at(file('token', 'secret'))
  const answers: number[] = []
  const ask = async (client: string, authorization?: string) =>
    void answers.push((await handle(get('/ui/', { client, authorization }))).status)
  for (let n = 0; n < 20; n++) await ask(`127.0.0.${n}`)
  expect(answers.splice(0)).toEqual(Array(20).fill(401))
  const waiting = Array.from({ length: 4 }, () => ask('127.0.0.1'))
  await eventually(() => clock.pending === 4)
  await ask('127.0.0.2', 'Bearer secret')
  await ask('192.0.2.1')
  expect(answers.splice(0)).toEqual([200, 401])
  await clock.advance(1_000)
  await Promise.all(waiting)
  expect(answers).toEqual(Array(4).fill(401))
})

/** Listens on loopback with TLS, where files are given. */
async function listen(tls: UiConfig['tls'], clock: Clock = systemClock) {
  const port = await freePort()
  const lines: string[] = []
  const news: ServerNews[] = []
  const log = createLog({
    format: 'text',
    verbosity: 2,
    destination: { write: line => void lines.push(line) },
  })
  const config = { at: { ip: ip('127.0.0.1'), port }, tokenFile: '', tls }
  servers.push(openUiServer(config, { clock, log, page: pageServer().page, report: its => news.push(its) }))
  return { port, lines, news }
}

async function open(tls: UiConfig['tls']) {
  const { news, port } = await listen(tls)
  await eventually(() => news.some(({ kind }) => kind === 'listening'))
  return { port }
}

describe('--ui-address', () => {
  const authority = createAuthority()
  const { certPem, keyPem } = authority.issue()
  const files = () => ({
    certFile: file('cert', certPem),
    keyFile: file('key', keyPem),
    clientCaFile: file('ca', authority.caPem),
  })

  function askTls(port: number, client: { cert?: string; key?: string }): Promise<string> {
    return new Promise((resolve, reject) => {
      const options = { host: '127.0.0.1', port, path: '/ui/', agent: false, ca: authority.caPem, ...client }
      const asked = request({ ...options, checkServerIdentity: () => undefined }, response => {
        let body = ''
        response.on('data', piece => {
          body += piece
        })
        response.on('end', () => resolve(`${response.statusCode} ${body}`))
      })
      asked.on('error', reject)
      asked.end()
    })
  }

  it('serves in plain on loopback', async () => {
    const { port } = await open(undefined)
    expect(await ask({ port, path: '/ui/' })).toMatchObject({ status: 200, body: 'page /ui/' })
  })

  it('F187: with client certificates, is for those who have one of the authority alone', async () => {
    const { port } = await open(files())
    expect(await askTls(port, { cert: certPem, key: keyPem })).toBe('200 page /ui/')
    const other = createAuthority('other').issue()
    await expect(askTls(port, { cert: other.certPem, key: other.keyPem })).rejects.toThrow()
    await expect(askTls(port, {})).rejects.toThrow()
    await expect(ask({ port, path: '/ui/' })).rejects.toThrow()
    expect(await askTls(port, { cert: certPem, key: keyPem })).toBe('200 page /ui/')
  })

  it('F187: closes connections that only begin a handshake, beyond 16 of them', async () => {
    const { port } = await open(files())
    const ends = { closed: 0 }
    const warnings: string[] = []
    const warned = ({ message }: Error) => warnings.push(message)
    process.on('warning', warned)
    for (let index = 0; index < 20; index++) {
      const socket = connect({ host: '127.0.0.1', port })
      sockets.push(socket)
      socket.on('error', () => undefined).on('close', () => ends.closed++)
    }
    await eventually(() => ends.closed === 4)
    process.off('warning', warned)
    expect(warnings).toEqual([])
    for (const socket of sockets) socket.destroy()
    await eventually(
      async () => (await askTls(port, { cert: certPem, key: keyPem }).catch(String)) === '200 page /ui/',
    )
  })

  it('is not there with certificates that cannot be used, which the log says once, and is there once they can be', async () => {
    const clock = new FakeClock()
    const { port, lines, news } = await listen({ ...files(), keyFile: join(folder, 'later') }, clock)
    await eventually(() => lines.length > 0)
    for (let retry = 0; retry < 3; retry++) await clock.advance(5_000)
    await expect(ask({ port, path: '/ui/' })).rejects.toThrow(/ECONNREFUSED/)
    expect(lines).toHaveLength(1)
    expect(lines[0]).toMatch(/not served at --ui-address; retrying every 5 s .*--ui-tls-key: ENOENT/)
    file('later', keyPem)
    await eventually(async () => {
      await clock.advance(5_000)
      return news.some(({ kind }) => kind === 'listening')
    })
    expect(await askTls(port, { cert: certPem, key: keyPem })).toBe('200 page /ui/')
  })
})
