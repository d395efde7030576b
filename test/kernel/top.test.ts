import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { parse } from 'yaml'
import { systemClock } from '../../src/base/clock.ts'
import { FlowNames } from '../../src/inspect/live/flow-reading.ts'
import { textWidth } from '../../src/inspect/live/live-table.ts'
import { TopSampler } from '../../src/inspect/live/top-sampler.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { runInProcess } from '../support/command.ts'
import { COMMAND, Daemons } from '../support/daemon.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { PseudoTerminal } from '../support/pseudo-terminal.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'

const ENTER = `${String.fromCharCode(27)}[?1049h`
const LEAVE = `${String.fromCharCode(27)}[?1049l`

const daemons = new Daemons()
const terminals: PseudoTerminal[] = []
let socket: string
let injector: Transport
let sent = 0

beforeAll(async () => {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const folder = daemons.folder()
  socket = join(folder, 'admin.sock')
  const items = [
    serviceOf('shop/cart', '10.96.0.1'),
    sliceOf('shop/cart', ['10.1.0.1', '10.1.0.2']),
    serviceOf('shop/checkout', '10.96.0.2'),
    sliceOf('shop/checkout', ['10.1.0.3']),
  ]
  const source = join(folder, 'objects.json')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
  await daemons.running({ source, args: [`--admin-socket=${socket}`, '--log-rejects=7'] })
  injector = openNetlink({ protocol: NETLINK_NETFILTER })
})

afterEach(() => {
  for (const terminal of terminals.splice(0)) terminal.kill()
})

afterAll(async () => {
  await injector.close()
  await daemons.end()
})

function top(columns: number, rows: number, ...args: readonly string[]): PseudoTerminal {
  const command = [process.execPath, COMMAND, 'top', `--admin-socket=${socket}`, '--interval=200ms', ...args]
  const terminal = new PseudoTerminal(command, { columns, rows })
  terminals.push(terminal)
  return terminal
}

/** New connections to `shop/cart`, which the kernel announces as it does those of packets. */
function connectTo(endpoint: string, count: number): void {
  const entries = Array.from({ length: count }, () => {
    sent++
    return entry(`10.2.0.${sent >> 8}:${1_024 + (sent & 255)}`, '10.96.0.1:80', endpoint, { protocol: 'TCP' })
  })
  expect(inject(injector, entries)).toBe(count)
}

const fits = (lines: readonly string[], columns: number, rows: number): boolean =>
  lines.length <= rows && lines.every(line => textWidth(line) <= columns)

it('F173: draws a table that follows connections, keys and the size of the terminal, and restores the terminal', async () => {
  const terminal = top(80, 24)
  await terminal.shows(lines => lines.some(line => line.includes('NEW/S')))
  connectTo('10.1.0.1:8080', 7)
  connectTo('10.1.0.2:8080', 5)
  const lines = await terminal.shows(all => all.some(line => /shop\/cart:http.* 12$/.test(line.trimEnd())))
  expect(fits(lines, 80, 24)).toBe(true)
  expect(lines[0]).toMatch(/nftables mode \| 2 Services \| source \S+ ago/)
  expect(lines.join('\n')).toMatch(/repairs 0 \| last commit \d\d:\d\d:\d\dZ \(/)
  terminal.press('e')
  await terminal.shows(all =>
    all.some(line => /shop\/cart:http +10\.1\.0\.2:8080 .* 5$/.test(line.trimEnd())),
  )
  terminal.press('/.0.1:\r')
  await terminal.shows(
    all =>
      all.some(line => line.includes('10.1.0.1:8080')) && !all.some(line => line.includes('10.1.0.2:8080')),
  )
  terminal.resize(45, 12)
  const narrow = await terminal.shows(all => all.length === 12 && fits(all, 45, 12))
  expect(narrow.some(line => line.includes('NEW/S'))).toBe(true)
  terminal.resize(30, 5)
  await terminal.shows(all => all[0]?.startsWith('terminal of 30x5') === true)
  terminal.press('q')
  expect(await terminal.ended()).toBe('0 restored')
  expect(terminal.out.endsWith(LEAVE)).toBe(true)
})

it.each([
  ['SIGINT', 'INT'],
  ['SIGTERM', 'TERM'],
  ['SIGHUP', 'HUP'],
])('F173: restores the terminal at %s', async (_, signal) => {
  const terminal = top(80, 24)
  await terminal.shows(lines => lines.length > 5)
  terminal.signal(signal)
  expect(await terminal.ended()).toBe('0 restored')
  expect(terminal.out.endsWith(LEAVE)).toBe(true)
})

it.each([
  ['Ctrl-Z', (terminal: PseudoTerminal) => terminal.press('\u001a')],
  ['SIGTSTP', (terminal: PseudoTerminal) => terminal.signal('TSTP')],
])('F173: gives the terminal back while %s suspends it', async (_, suspend) => {
  const terminal = top(80, 24)
  await terminal.shows(lines => lines.length > 5)
  suspend(terminal)
  await eventually(() => terminal.stops === 1)
  expect(terminal.out.endsWith(LEAVE)).toBe(true)
  terminal.signal('CONT')
  await eventually(() => terminal.out.split(ENTER).length === 3)
  terminal.press('q')
  expect(await terminal.ended()).toBe('0 restored')
})

it('F173: restores the terminal before an exception is printed', async () => {
  const fault = "process.stdout.on('resize', () => { throw new Error('a fault of our own') })"
  const node = [process.execPath, '--import', `data:text/javascript,${encodeURIComponent(fault)}`]
  const terminal = new PseudoTerminal([...node, COMMAND, 'top', `--admin-socket=${socket}`], {
    columns: 80,
    rows: 24,
  })
  terminals.push(terminal)
  await terminal.shows(lines => lines.length > 5)
  terminal.resize(70, 20)
  expect(await terminal.ended()).toBe('1 restored')
  expect(terminal.out.indexOf('a fault of our own')).toBeGreaterThan(terminal.out.lastIndexOf(LEAVE))
})

it('F174: shows that the daemon has gone, and goes on', async () => {
  const other = join(daemons.folder(), 'admin.sock')
  const source = join(daemons.folder(), 'none.json')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [] }))
  const args = [`--admin-socket=${other}`, '--service-proxy-name=other']
  const daemon = await daemons.running({ source, args })
  const terminal = top(80, 24, `--admin-socket=${other}`, '--service-proxy-name=other')
  await terminal.shows(lines => lines.some(line => line.includes('0 Services')))
  await daemon.stop('SIGKILL')
  await terminal.shows(lines =>
    lines.some(line => line.includes(`no daemon answers at ${other}`.slice(0, 40))),
  )
  terminal.press('q')
  expect(await terminal.ended()).toBe('0 restored')
})

it('counts each packet once that a rule rejects and another one logs', async () => {
  for (const words of ['address add 192.168.0.2/32 dev lo', 'route add default dev lo'])
    execFileSync('ip', words.split(' '))
  const clock = new FakeClock()
  const names = await FlowNames.open({ clock: systemClock, adminSocket: '', proxyName: undefined })
  const sampler = new TopSampler({
    clock,
    wallMs: Date.now,
    names,
    service: '',
    proxyName: undefined,
  })
  try {
    await sampler.sample()
    const client = createSocket('udp4')
    // Where the answer comes before the call returns, it is an error of the call.
    for (let n = 0; n < 6; n++)
      await new Promise(done => client.send('?', 81, '10.96.0.1', () => done(undefined)))
    client.close()
    await clock.advance(1_000)
    expect((await sampler.sample()).rejectsPerSecond).toBe(6)
  } finally {
    await sampler.close()
  }
})

it('prints one table without a terminal, and JSON for scripts', async () => {
  const args = ['top', `--admin-socket=${socket}`, '--interval=200ms']
  const text = await runInProcess(args)
  expect(text).toMatchObject({ code: 0, err: '' })
  expect(text.out).toMatch(/^SERVICE +NEW\/Sv +OPEN +TOTAL$/m)
  const json = await runInProcess([...args, '--once', '-o', 'json', '-n', 'shop'])
  expect(JSON.parse(json.out)).toMatchObject({
    lost: 0,
    daemon: { mode: 'nftables', services: 2, repairs: 0 },
    table: { entries: expect.any(Number), entriesMax: expect.any(Number) },
    rejectsPerSecond: 0,
    largest: [{ service: 'shop/cart:http', open: 12 }],
  })
  const yaml = await runInProcess([...args, '--once', '-o', 'yaml', '-n', 'shop'])
  expect(parse(yaml.out)).toMatchObject({ lost: 0, largest: [{ service: 'shop/cart:http', open: 12 }] })
  expect((await runInProcess([...args, '-n', 'nothing-here', '-o', 'json'])).out).toContain('"rows": []')
  const unknown = await runInProcess([...args, '--service=shop/nosuch'])
  expect(unknown).toMatchObject({
    code: 1,
    out: '',
    err: 'kprobe top: the daemon has no Service "shop/nosuch"\n',
  })
})

it('F174: refuses a socket of another program, and a daemon of another version', async () => {
  const path = join(daemons.folder(), 'other.sock')
  const server = createServer((_, response) => response.end('{"version":"0.0.1","flags":{}}')).listen(path)
  const args = [`--admin-socket=${path}`]
  expect(await runInProcess(['top', ...args])).toMatchObject({ code: 1, out: '' })
  expect((await runInProcess(['flows', ...args])).err).toMatch(
    /the daemon is kprobe 0\.0\.1, this command is/,
  )
  server.close()
  expect((await runInProcess(['top', `--admin-socket=${path}.gone`])).err).toContain('no daemon answers at')
})
