import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Handler, isOwnHost } from '../../../src/http/connections.ts'
import type { HttpServer, ServerNews } from '../../../src/http/server.ts'
import {
  jsonPieces,
  openAdminServer,
  type ReceiptLike,
  Receipts,
} from '../../../src/telemetry/admin-server.ts'
import { leaveDeadSocket } from '../../support/dead-socket.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { eventually } from '../../support/patience.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { ask } from './http-client.ts'

let folder = ''
let path = ''
const servers: HttpServer[] = []

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kprobe-admin-'))
  path = join(folder, 'admin.sock')
})

afterEach(async () => {
  await Promise.all(servers.splice(0).map(server => server.close()))
  await rm(folder, { recursive: true, force: true })
})

async function open(pages: Partial<Parameters<typeof openAdminServer>[0]> = {}) {
  const news: ServerNews[] = []
  const clock = new FakeClock()
  const server = openAdminServer({
    path,
    clock,
    report: its => news.push(its),
    state: () => ({ services: 1 }),
    plan: () => Promise.resolve([{ verb: 'add' }]),
    receipts: () => [],
    config: () => ({}),
    snapshot: () => ({ events: [] }),
    services: () => ['ns/web'],
    pods: () => [],
    status: () => ({ synced: 1 }),
    health: () => ({ refused: {} }),
    debug: () => ({ metrics: '' }),
    ...pages,
  })
  servers.push(server)
  await eventually(() => news.length === 1)
  return { server, clock, news }
}

describe('openAdminServer', () => {
  it('F187: refuses every page under the name of another site', async () => {
    // As PageServer does, for a Node of this name.
    const page: Handler = ({ host }) => ({
      status: isOwnHost(host, ['node-1.example.com', 'kprobe']) ? 200 : 421,
      headers: {},
      body: 'page',
    })
    await open({ page })
    const status = async (host: string, of: string) =>
      (await ask({ socketPath: path, path: of, headers: { Host: host } })).status
    for (const each of ['/', '/state', '/ui/']) {
      expect(await status('evil.example:8080', each)).toBe(421)
      for (const host of ['localhost', '127.0.0.1:8080', 'kprobe']) expect(await status(host, each)).toBe(200)
    }
    expect(await status('node-1.example.com', '/ui/')).toBe(200)
    expect((await ask({ socketPath: path, path: '/' })).body).toContain('"/ui/"')
  })

  it.skipIf(IS_QUICK)('answers its pages as JSON, and nothing else', async () => {
    await open()
    expect(await ask({ socketPath: path, path: '/state' })).toMatchObject({
      status: 200,
      headers: { 'content-type': 'application/json' },
      body: '{"services":1}',
    })
    const bodies = {
      '/plan': '[{"verb":"add"}]',
      '/receipts': '[]',
      '/config': '{}',
      '/snapshot': '{"events":[]}',
      '/services': '["ns/web"]',
      '/pods': '[]',
      '/status': '{"synced":1}',
      '/health': '{"refused":{}}',
    }
    for (const [page, body] of Object.entries(bodies))
      expect(await ask({ socketPath: path, path: page })).toMatchObject({ status: 200, body })
    const { paths } = JSON.parse((await ask({ socketPath: path, path: '/' })).body)
    expect(paths).toEqual([...Object.keys(bodies), '/debug', '/state'].sort())
    const readme = await readFile(new URL('../../../README.md', import.meta.url), 'utf8')
    const [line = ''] = /^- `--admin-socket=PATH`: .*\n.*/m.exec(readme) ?? []
    expect([...line.matchAll(/`(\/[a-z]+)`/g)].map(([, page]) => page)).toEqual(paths)
    expect(await ask({ socketPath: path, path: '/debug' })).toMatchObject({ status: 200 })
    expect(await ask({ socketPath: path, path: '/other' })).toMatchObject({ status: 404 })
    expect(await ask({ socketPath: path, path: '/state', method: 'POST' })).toMatchObject({ status: 405 })
  })

  it.skipIf(IS_QUICK)('streams a large state', async () => {
    function* services() {
      for (let at = 0; at < 50_000; at++) yield { name: `ns/service-${at}`, clusterIp: '10.96.0.1' }
    }
    await open({ state: () => ({ services: services() }) })
    const { body } = await ask({ socketPath: path, path: '/state' })
    expect(JSON.parse(body).services).toHaveLength(50_000)
  })

  it('is for its owner alone, and leaves nothing else behind', async () => {
    const { server } = await open()
    expect((await stat(path)).mode & 0o777).toBe(0o600)
    expect(await readdir(folder)).toEqual(['admin.sock'])
    await server.close()
    expect(await readdir(folder)).toEqual([])
  })

  it('replaces a socket without a listener', async () => {
    await leaveDeadSocket(path)
    expect((await stat(path)).isSocket()).toBe(true)
    const { news } = await open()
    expect(news).toMatchObject([{ kind: 'listening' }])
    expect(await ask({ socketPath: path, path: '/state' })).toMatchObject({ status: 200 })
  })

  it('says when its folder cannot be written, and goes on trying', async () => {
    await rm(folder, { recursive: true })
    const { news, clock } = await open()
    const message = `cannot make a socket in the folder ${folder}: ENOENT`
    expect(news[0]).toMatchObject({ kind: 'failed', error: { message } })
    for (let tries = 0; tries < 3; tries++) {
      expect(clock.pending).toBe(1)
      await clock.advance(5_000)
      await eventually(() => clock.pending === 1)
    }
    expect(news).toHaveLength(1)
    await mkdir(folder)
    await chmod(folder, 0o700)
    await clock.advance(5_000)
    await eventually(() => news.length === 2)
    expect(news[1]).toEqual({ kind: 'listening', address: path })
  })
})

describe('jsonPieces', () => {
  it('writes generators as lists, and asks them piece by piece', () => {
    let made = 0
    function* items() {
      for (; made < 10_000; made++) yield { name: 'x'.repeat(50) }
    }
    const pieces = jsonPieces({ items: items() })
    const first = pieces.next().value ?? ''
    expect(made).toBeLessThan(1_000)
    const all = first + [...pieces].join('')
    expect(JSON.parse(all).items).toHaveLength(10_000)
  })

  it('has pieces of some size', () => {
    const pieces = [...jsonPieces(Array.from({ length: 10_000 }, (_, at) => at))]
    expect(pieces.length).toBeGreaterThan(2)
    expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThan(20_000)
  })
})

const RECEIPT: ReceiptLike = {
  outcome: 'committed',
  generation: 7,
  foreign: false,
  refusals: [],
  bytes: 100,
  messages: 2,
  durationMs: 1.5,
}

describe('Receipts', () => {
  it('keeps the last 128, oldest first', () => {
    let now = 1_800_000_000_000
    const receipts = new Receipts(() => now++)
    for (let at = 0; at < 200; at++) receipts.add('change', at, RECEIPT)
    expect(receipts.lines).toHaveLength(128)
    expect(receipts.lines[0]).toEqual({
      time: '2027-01-15T08:00:00.072Z',
      reason: 'change',
      changes: 72,
      ...RECEIPT,
    })
    expect(receipts.lines.at(-1)?.changes).toBe(199)
  })

  it('keeps the words of errors and nothing else of them, for twenty refusals', () => {
    const receipts = new Receipts(() => 0)
    const error = Object.assign(new Error('EINVAL'), { detail: 'secret' })
    const refusals = Array.from({ length: 50 }, () => ({ services: ['ns/a'], error }))
    receipts.add('change', 1, { ...RECEIPT, outcome: 'refused', refusals })
    expect(receipts.lines[0]?.refusals).toHaveLength(20)
    expect(receipts.lines[0]?.refusals[0]).toEqual({ services: ['ns/a'], error: 'EINVAL' })
  })
})
