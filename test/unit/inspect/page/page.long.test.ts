import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { fieldOf, listAt, numberAt, textAt } from '../../../../src/base/plain-data.ts'
import type { PageSource } from '../../../../src/daemon/optional-parts.ts'
import type { HttpAnswer } from '../../../../src/http/connections.ts'
import { openPage } from '../../../../src/inspect/page/page.ts'
import { PageRates, type Timed } from '../../../../src/inspect/page/page-rates.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { endpoint, type Fields, node, service, slice, snapshotOf, UNREADY } from '../../model/objects.ts'
import { topRow, topState } from '../live/rows.ts'
import { heldOf, pageSource } from './page-source.ts'

const HOSTILE = 'node\u202e<img src=x>'
const OBJECTS: readonly Fields[] = [
  node(),
  service('web', { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }),
  slice('web-1', 'web', [
    endpoint('10.1.0.1', { nodeName: 'here', zone: 'eu-1a' }),
    endpoint('10.1.0.2', { nodeName: 'there' }),
    endpoint('10.1.0.3', { nodeName: HOSTILE, conditions: UNREADY }),
  ]),
  service('refused', {
    clusterIP: '10.96.0.3',
    clusterIPs: ['10.96.0.3'],
    ports: [{ name: '<b>', port: 80 }],
  }),
  service('name', { type: 'ExternalName', externalName: 'example.com' }),
  service(
    'foreign',
    { clusterIP: '10.96.0.4', clusterIPs: ['10.96.0.4'] },
    { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'other' } } },
  ),
  service('idle', { clusterIP: '10.96.0.2', clusterIPs: ['10.96.0.2'] }),
  ...Array.from({ length: 300 }, (_, n) => {
    const address = `10.97.${n >> 8}.${n & 255}`
    return service(`svc-${String(n).padStart(3, '0')}`, { clusterIP: address, clusterIPs: [address] })
  }),
]

let folder = ''

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-page-'))
  for (const [name, text] of [
    ['page.html', '<!doctype html>'],
    ['page.css', 'body{}'],
    ['page.js', 'start()'],
  ] as const)
    writeFileSync(join(folder, name), text)
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

function open(change: Partial<PageSource> = {}) {
  const resolved = heldOf(snapshotOf(OBJECTS))
  const page = openPage(
    pageSource({
      version: '1.2.3',
      flags: new Map([['ui-address', '8080']]),
      configz: () => ({ mode: 'nftables' }),
      status: () => ({ snapshot: 7 }),
      receipts: () => [{ reason: 'start' }],
      held: () => resolved,
      sysctls: `${folder}/net`,
      ...change,
    }),
    pathToFileURL(`${folder}/`),
  )
  const get = async (
    path: string,
    query: Readonly<Record<string, string>> = {},
    client?: string,
  ): Promise<HttpAnswer> =>
    await page.handle({ method: 'GET', path: `/ui/${path}`, query: new URLSearchParams(query), client })
  const data = async (path: string, query: Readonly<Record<string, string>> = {}): Promise<unknown> =>
    JSON.parse(String((await get(`data/${path}`, query)).body))
  return { page, get, data }
}

describe('the answers of the page', () => {
  it.each(['', 'page.js', 'page.css', 'data/status', 'data/path', 'none'])(
    'forbid everything but the own files: /ui/%s',
    async path => {
      const { headers } = await open().get(path)
      const policy = headers['Content-Security-Policy'] ?? ''
      expect(policy).toMatch(
        /^default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;/,
      )
      expect(policy).toContain("frame-ancestors 'none'")
      expect(policy).not.toMatch(/unsafe|\*|https?:/)
      expect(headers).toMatchObject({ 'X-Content-Type-Options': 'nosniff', 'Cache-Control': 'no-store' })
    },
  )

  it('are its files with their types, its data as JSON, and nothing else', async () => {
    const { get, data, page } = open()
    expect(await get('')).toMatchObject({ status: 200, body: '<!doctype html>' })
    expect((await get('page.js')).headers['Content-Type']).toBe('text/javascript; charset=utf-8')
    expect(await data('status')).toEqual({
      version: '1.2.3',
      node: 'here',
      now: '1970-01-01T00:00:00Z',
      snapshot: 7,
    })
    expect(await data('receipts')).toEqual([{ reason: 'start' }])
    expect(await data('config')).toEqual({
      flags: { 'ui-address': '8080' },
      configuration: { mode: 'nftables' },
    })
    for (const path of ['../kprobe.mjs', 'page.html', 'data/', 'data/none', 'data/../page.js', 'status'])
      expect(await get(path)).toMatchObject({ status: 404 })
    const query = new URLSearchParams()
    expect(await page.handle({ method: 'DELETE', path: '/ui/', query })).toMatchObject({ status: 405 })
  })
})

it('F213: a viewer that asks without pause gets no more than its share of time, and others get theirs', async () => {
  const clock = new FakeClock()
  const { get } = open({ clock })
  const statuses = async (client: string, times: number) => {
    const all = []
    for (let n = 0; n < times; n++) all.push((await get('data/status', {}, client)).status)
    return all.filter(status => status === 200).length
  }
  expect(await statuses('192.0.2.1', 1_500)).toBe(1_000)
  expect(await statuses('192.0.2.2', 10)).toBe(10)
  expect(await get('', {}, '192.0.2.1')).toMatchObject({ status: 200 })
  await clock.advance(500)
  expect(await statuses('192.0.2.1', 1_500)).toBe(50)
  expect(await get('data/status', {}, '192.0.2.1')).toMatchObject({
    status: 429,
    headers: { 'Retry-After': '1' },
  })
  // A long answer uses up what many short ones would: its processor time counts, not that of a busy machine.
  const busy = Object.assign(new FakeClock(), { nowMs: () => lateMs })
  let lateMs = 0
  const configz = () => {
    lateMs += 2_000
  }
  const slow = open({ clock: busy, configz })
  expect((await slow.get('data/config', {}, '192.0.2.3')).status).toBe(200)
  expect((await slow.get('data/config', {}, '192.0.2.3')).status).toBe(200)
  const working = new FakeClock()
  const status = () => {
    working.spentMs += 2_000
  }
  const long = open({ clock: working, status })
  expect((await long.get('data/status', {}, '192.0.2.3')).status).toBe(200)
  expect((await long.get('data/status', {}, '192.0.2.3')).status).toBe(429)
})

it('F213: all addresses of loopback, and of a prefix of IPv6, are one viewer', async () => {
  const { get } = open({ clock: new FakeClock() })
  for (const addressOf of [
    (n: number) => `127.0.${n >> 8}.${n & 255}`,
    (n: number) => `fd00::${n.toString(16)}`,
  ]) {
    const statuses = new Map<number, number>()
    for (let n = 1; n <= 1_500; n++) {
      const { status } = await get('data/status', {}, addressOf(n))
      statuses.set(status, (statuses.get(status) ?? 0) + 1)
    }
    expect(Object.fromEntries(statuses)).toEqual({ 200: 1_000, 429: 500 })
  }
})

describe('the Services', () => {
  const names = (answer: unknown) => listAt(answer, 'rows').map(row => textAt(row, 'service'))

  it('come in pages of a bounded size, in the order of their names', async () => {
    const { data } = open()
    const first = await data('services')
    expect(first).toMatchObject({ total: 305, matching: 305, offset: 0 })
    expect(names(first)).toHaveLength(50)
    expect(names(first).slice(0, 2)).toEqual(['ns/foreign', 'ns/idle'])
    expect(names(await data('services', { limit: '100000' }))).toHaveLength(200)
    expect(names(await data('services', { offset: '304' }))).toEqual(['ns/web'])
    expect(names(await data('services', { offset: '-1', limit: 'x' }))).toHaveLength(50)
    expect(names(await data('services', { offset: '999' }))).toEqual([])
  })

  it('are found by a part of the name, sorted by endpoints, and those with problems apart', async () => {
    const { data } = open()
    expect(await data('services', { filter: 'SVC-00' })).toMatchObject({ matching: 10, total: 305 })
    expect(names(await data('services', { sort: 'endpoints', limit: '1' }))).toEqual(['ns/web'])
    for (const sort of ['__proto__', 'constructor', 'toString', 'none'])
      expect(await data('services', { sort })).toEqual(await data('services'))
    const [web] = listAt(await data('services', { filter: 'web' }), 'rows')
    expect(web).toMatchObject({ type: 'NodePort', endpoints: 2, localEndpoints: 1, problem: '' })
    expect(listAt(web, 'frontends')).toEqual(['10.96.0.1:80/TCP', '*:30080/TCP'])
    const broken = await data('services', { problems: '1', filter: 'svc-004' })
    expect(listAt(broken, 'rows')).toMatchObject([{ problem: 'rejected by the kernel: no room' }])
    expect(listAt(await data('services', { problems: '1', filter: 'idle' }), 'rows')).toMatchObject([
      { problem: 'no usable endpoint', severity: 'idle' },
    ])
    expect(await data('services', { problems: '1', filter: 'web' })).toMatchObject({ matching: 0 })
  })

  it('are a problem where there is no memory for them', async () => {
    const { data } = open({ held: () => heldOf(snapshotOf(OBJECTS), 1_000) })
    expect(listAt(await data('services', { problems: '1', filter: 'idle' }), 'rows')).toMatchObject([
      { problem: expect.stringMatching(/^not served: it needs about 0 MiB/) },
    ])
  })

  it('names what keeps a Service without a frontend from being served, as `kprobe why` does', async () => {
    expect(listAt(await open().data('services', { filter: 'ns/refused' }), 'rows')).toMatchObject([
      {
        problem: expect.stringMatching(/^refused: ns\/refused requests "?<b>"? \(spec\.ports\[0\]\.name\): /),
      },
    ])
  })
})

describe('the path to a Service', () => {
  it('is the answer of `kprobe why`, with each endpoint and its reason', async () => {
    const path = await open().data('path', { service: 'ns/web' })
    expect(textAt(path, 'answer')).toMatch(/^would be served: any of 2 endpoints, a half each/)
    expect(listAt(path, 'targets').map(target => textAt(target, 'to'))).toEqual([
      '10.96.0.1:80/tcp',
      'node/here:30080/tcp',
    ])
    expect(listAt(path, 'endpoints')).toMatchObject([
      { address: '10.1.0.1:8080', node: 'here', zone: 'eu-1a', isIn: true, percent: 50 },
      { address: '10.1.0.2:8080', node: 'there', isIn: true, percent: 50 },
      { address: '10.1.0.3:8080', node: HOSTILE, isIn: false, reason: expect.stringContaining('not ready') },
    ])
    // Only one port is computed, so that places in chains of all Services are not known.
    expect(listAt(path, 'rules').length).toBeGreaterThan(1)
    expect(JSON.stringify(path)).not.toMatch(/"rule":|, rule \d/)
  })

  it.each([
    ['ns/refused', /^refused: ns\/refused requests "?<b>"? \(spec\.ports\[0\]\.name\): /],
    ['ns/name', /^ns\/name needs no rules on this node$/],
    ['ns/foreign', /^another proxy: ns\/foreign is one that the proxy other serves \(label /],
  ])('says why there is none: %s', async (key, answer) => {
    expect(await open().data('path', { service: key })).toMatchObject({
      targets: [],
      answer: expect.stringMatching(answer),
    })
  })

  it('ends at a node that forwards no packets, unless one interface forwards by itself', async () => {
    const sysctls = mkdtempSync(join(tmpdir(), 'kprobe-net-'))
    const set = (link: string, value: number) => {
      mkdirSync(`${sysctls}/ipv4/conf/${link}`, { recursive: true })
      writeFileSync(`${sysctls}/ipv4/conf/${link}/forwarding`, `${value}\n`)
    }
    const ask = async (from: string) =>
      textAt(await open({ sysctls }).data('path', { service: 'ns/web', from }), 'answer')
    try {
      for (const link of ['all', 'default', 'eth0']) set(link, 0)
      expect(await ask('outside')).toMatch(/^not forwarded: net\.ipv4\.ip_forward is 0, so this node drops /)
      expect(await ask('node/here')).toMatch(/^would be served: /)
      set('eth0', 1)
      expect(await ask('outside')).toMatch(/^would be served: /)
      set('eth0', 0)
      set('all', 1)
      expect(await ask('outside')).toMatch(/^would be served: /)
    } finally {
      rmSync(sysctls, { recursive: true })
    }
  })

  it('F186: is not followed to more than 1,000 endpoints', async () => {
    const answers = [1_000, 1_001].map(async size => {
      const addresses = Array.from({ length: size }, (_, n) => endpoint(`10.1.${n >> 8}.${n & 255}`))
      const slices = [
        slice('web-1', 'web', addresses.slice(0, 600)),
        slice('web-2', 'web', addresses.slice(600)),
      ]
      const { data } = open({ held: () => heldOf(snapshotOf([node(), service('web'), ...slices])) })
      return await data('path', { service: 'ns/web' })
    })
    const [followed, long] = await Promise.all(answers)
    expect(followed).toMatchObject({ answer: expect.stringMatching(/^would be served/) })
    expect(textAt(long, 'answer')).toMatch(
      /^ns\/web has 1001 endpoints at this port.*`kprobe why` follows it to all$/,
    )
    expect(listAt(long, 'targets')).toHaveLength(1)
    expect(fieldOf(long, 'policy')).toBeUndefined()
  })

  it('F186: is computed from the port that it leads to, and no other', async () => {
    const resolved = heldOf(snapshotOf(OBJECTS))
    const web = resolved.table.services.get('ns/web')
    const [port] = web?.ports ?? []
    if (web === undefined || port === undefined) throw new Error('no Service')
    const other = Object.defineProperty({ ...port, frontends: [] }, 'cluster', {
      get: () => {
        throw new Error('read')
      },
    })
    const services = resolved.table.services.with([['ns/web', { ...web, ports: [port, other] }]])
    const { data } = open({ held: () => ({ ...resolved, table: { ...resolved.table, services } }) })
    expect(await data('path', { service: 'ns/web' })).toMatchObject({
      answer: expect.stringContaining('would be served'),
    })
  })

  it('follows another frontend and client', async () => {
    const query = { service: 'ns/web', to: 'node/here:30080/tcp', from: '10.1.0.9' }
    expect(await open().data('path', query)).toMatchObject({
      frontend: 'NodePort',
      to: query.to,
      from: query.from,
    })
  })

  it.each([
    [{ service: 'ns/none' }, 'no Service "ns/none"'],
    [{}, 'no Service ""'],
    [{ service: 'ns/web', to: '10.96.0.2:80/tcp' }, 'Service ns/web is not served at "10.96.0.2:80/tcp"'],
    [{ service: 'ns/web', from: '<script>' }, '--from "<script>" is'],
    [{ service: 'ns/web', from: 'pod/a/b' }, 'no EndpointSlice has an IPv4 address of pod a/b'],
  ])('says what is wrong with %j', async (query, message) => {
    const { get } = open()
    const { status, body } = await get('data/path', query)
    expect(status).toBe(422)
    expect(textAt(JSON.parse(String(body)), 'error')).toContain(message)
  })
})

describe('the rates', () => {
  const rows = ['a', 'b'].flatMap(name =>
    Array.from({ length: 80 }, (_, n) =>
      topRow(`ns/${name}-${n}`, { endpoint: `10.1.0.${n}:80`, perSecond: n }),
    ),
  )

  function rig() {
    const clock = new FakeClock()
    const life = { opened: 0, sampled: 0, closed: 0, timed: 0, fails: false }
    const rates = new PageRates(clock, async () => {
      life.opened++
      if (life.fails) throw new Error('denied')
      return {
        sample: async () => {
          life.sampled++
          return topState({ rows, perSecond: 3 })
        },
        close: async () => void life.closed++,
      }
    })
    const timed: Timed = work => {
      life.timed++
      return work()
    }
    return { clock, life, rates, read: (query = '') => rates.read(new URLSearchParams(query), timed) }
  }

  it('F186: are counted once for all viewers, only while one of them asks', async () => {
    const { clock, life, rates, read } = rig()
    expect(life.opened).toBe(0)
    await Promise.all([read(), read(), read()])
    // The rows of each viewer are its own work, though it waited for the sample.
    expect(life).toMatchObject({ opened: 1, sampled: 1, timed: 3 })
    for (let second = 0; second < 30; second++) {
      await clock.advance(1_000)
      await Promise.all([read(), read()])
    }
    expect(life).toMatchObject({ opened: 1, sampled: 31, closed: 0 })
    await clock.advance(9_999)
    expect(life.closed).toBe(0)
    await clock.advance(1)
    expect(life.closed).toBe(1)
    await read()
    expect(life.opened).toBe(2)
    await rates.close()
    expect(life.closed).toBe(2)
  })

  it('F186: are denied with the reason, and tried anew with the next request', async () => {
    const { life, read } = rig()
    life.fails = true
    await expect(read()).rejects.toThrow('denied')
    life.fails = false
    expect(await read()).toMatchObject({ perSecond: 3 })
    expect(life.opened).toBe(2)
  })

  it('are at most 100 rows, filtered and sorted by the daemon', async () => {
    const { read } = rig()
    const all = await read('by=endpoint&sort=name')
    expect(numberAt(all, 'matching')).toBe(160)
    expect(listAt(all, 'rows')).toHaveLength(100)
    const [first] = listAt(await read('filter=ns/b'), 'rows')
    expect(first).toMatchObject({ service: 'ns/b-79', perSecond: 79 })
  })
})
