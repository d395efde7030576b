import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { runCommand } from '../../src/commands.ts'
import { FlowWatch } from '../../src/inspect/live/flow-reading.ts'
import { isJson } from '../../src/model/fields.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { runInProcess } from '../support/command.ts'
import { COMMAND, Daemons } from '../support/daemon.ts'
import { drawsToMeet } from '../support/draws.ts'
import { FakeIo } from '../support/fake-io.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { entry, inject } from '../unit/kernel/conntrack/flows.ts'

const ENDPOINTS = ['10.21.0.1', '10.21.0.2', '10.21.0.3']
const VIP = '10.96.0.1'
const NODE_PORT = 30_080
/** Where clients are: from the address of an endpoint, they would be masqueraded, and ports that are drawn twice end a connection. */
const NODE_IP = '192.168.0.2'
/** Each endpoint takes some of them. */
const CONNECTIONS = drawsToMeet(ENDPOINTS.length)

const daemons = new Daemons()
const servers: Server[] = []
/** The truth: the endpoint that took the connection of each client's port. */
const served = new Map<number, string>()
let socket: string

beforeAll(async () => {
  freshNetns()
  const addresses = ENDPOINTS.map(ip => `address add ${ip}/32 dev lo`)
  const lines = [
    'link set lo up',
    ...addresses,
    `address add ${NODE_IP}/32 dev lo`,
    'route add default dev lo',
  ]
  execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') })
  set('acct', 1)
  set('timestamp', 1)
  for (const ip of ENDPOINTS) servers.push(await serve(ip))
  const folder = daemons.folder()
  socket = join(folder, 'admin.sock')
  const ports = [{ name: 'http', port: 80, protocol: 'TCP', nodePort: NODE_PORT }]
  const items = [serviceOf('ns/web', VIP, { type: 'NodePort', ports }), sliceOf('ns/web', ENDPOINTS)]
  const source = join(folder, 'objects.json')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
  await daemons.running({ source, args: [`--admin-socket=${socket}`, `--nodeport-addresses=${NODE_IP}/32`] })
})

afterAll(async () => {
  await daemons.end()
  for (const server of servers) server.close()
})

function set(setting: string, value: number): void {
  writeFileSync(`/proc/thread-self/root/proc/sys/net/netfilter/nf_conntrack_${setting}`, `${value}`)
}

async function serve(ip: string): Promise<Server> {
  const server = createServer(connection => {
    connection.on('error', () => undefined)
    // The client closes first, and no port of its is used again for a minute.
    connection.write(ip)
  })
  server.listen(8_080, ip)
  await once(server, 'listening')
  return server
}

/** One connection; gives the port of its client. The server says who it is: a masqueraded port says nothing there. */
async function talk(host: string, port = 80): Promise<number> {
  const client: Socket = connect({ host, port, localAddress: NODE_IP })
  client.setEncoding('utf8')
  const [heard] = await once(client, 'data')
  const own = client.localPort ?? 0
  client.end()
  await once(client, 'close')
  served.set(own, heard)
  return own
}

async function talkTo(host: string): Promise<readonly number[]> {
  const ports: number[] = []
  for (let n = 0; n < CONNECTIONS; n++) ports.push(await talk(host))
  return ports
}

type Line = Readonly<Record<string, unknown>>

function linesOf(text: string): readonly Line[] {
  const values = text.split('\n').flatMap((line): unknown[] => (line === '' ? [] : [JSON.parse(line)]))
  return values.filter(isJson)
}

const portOf = ({ client }: Line): number => Number(String(client).split(':').at(-1))

const flows = (...args: string[]) => runInProcess(['flows', `--admin-socket=${socket}`, ...args])

describe('kprobe flows', () => {
  it('lists each connection with its Service, client and the endpoint that served it', async () => {
    const ports = await talkTo(VIP)
    const { code, out } = await flows('-o', 'json')
    expect(code).toBe(0)
    const found = linesOf(out).filter(line => ports.includes(portOf(line)))
    expect(found).toHaveLength(CONNECTIONS)
    for (const line of found)
      expect(line).toMatchObject({
        event: 'open',
        service: 'ns/web:http',
        protocol: 'TCP',
        destination: `${VIP}:80`,
        endpoint: `${served.get(portOf(line))}:8080`,
        bytesReceived: expect.any(Number),
        durationMs: expect.any(Number),
      })
  })

  it('counts by endpoint what the servers counted, node ports too', async () => {
    // One alone, because it is masqueraded.
    await talk(NODE_IP, NODE_PORT)
    const { out } = await flows('--group-by', 'endpoint', '-o', 'json')
    const truth = new Map<unknown, unknown>()
    for (const ip of served.values()) truth.set(`${ip}:8080`, Number(truth.get(`${ip}:8080`) ?? 0) + 1)
    expect(new Map(linesOf(out).map(({ endpoint, open }) => [endpoint, open]))).toEqual(truth)
    expect(linesOf(out).every(({ service }) => service === 'ns/web:http')).toBe(true)
  })

  it('filters, bounds the table, and says what it left out', async () => {
    expect(linesOf((await flows('--from', '203.0.113.0/24', '-o', 'json')).out)).toEqual([])
    const one = `${ENDPOINTS[0]}:8080`
    const ofOne = linesOf((await flows('--endpoint', one, '-o', 'json', '--protocol', 'tcp')).out)
    expect(ofOne.length).toBeGreaterThan(0)
    expect(ofOne.every(({ endpoint }) => endpoint === one)).toBe(true)
    const sent = async (to: string) => linesOf((await flows('--to', to, '-o', 'json')).out)
    expect(await sent(one)).toHaveLength(ofOne.length)
    expect(await sent('ns/web:80')).toHaveLength(CONNECTIONS)
    expect(await sent(`${VIP}:81`)).toEqual([])
    expect(await flows('--service=ns/wob')).toMatchObject({
      code: 1,
      err: expect.stringContaining('the daemon has no Service "ns/wob"; did you mean ns/web?\n'),
    })
    const open = async (...args: string[]) => linesOf((await flows(...args, '-o', 'json')).out).length
    const all = await open('--service=ns/web')
    for (const name of [['-n', 'ns'], ['-n', 'ns', '--service=web'], ['--service=web.ns.svc']])
      expect(await open(...name), name.join(' ')).toBe(all)
    expect(await open('-n', 'ns', '--to', 'svc/web:80')).toBe(CONNECTIONS)
    expect(await flows('-n', 'other')).toMatchObject({
      code: 1,
      err: expect.stringContaining('the daemon has no Service of the namespace other\n'),
    })
    const bounded = await flows('--limit', '1')
    expect(bounded.out.trimEnd().split('\n')).toHaveLength(2)
    expect(bounded.err).toContain(`left out ${served.size - 1} more connections`)
  })

  it('names Services by the rules in the kernel where no daemon answers', async () => {
    const { code, out, err } = await runInProcess(['flows', '--group-by', 'service', '-o', 'json'])
    expect(code).toBe(0)
    expect(err).toMatch(
      /no daemon answers at \/run\/kprobe\/admin\.sock; names of Services come from the rules/,
    )
    expect(linesOf(out)).toMatchObject([{ service: 'ns/web:http', open: served.size }])
    const held = 'the kernel holds nothing for the Service "ns/wob"; did you mean ns/web?\n'
    for (const args of [['flows'], ['top', '--once']])
      expect(await runInProcess([...args, '--service=ns/wob'])).toMatchObject({
        code: 1,
        out: '',
        err: expect.stringContaining(held),
      })
    expect(await runInProcess(['flows', '--service=ns/web'])).toMatchObject({ code: 0 })
  })

  it('follows new and ended connections, each once', async () => {
    const follower = await follow('-o', 'json')
    const ports = await talkTo(VIP)
    // Entries of closed connections go after seconds: this is their end.
    execFileSync('conntrack', ['-D', '-d', VIP], { stdio: 'ignore' })
    const lines = () => linesOf(follower.out).filter(line => ports.includes(portOf(line)))
    await eventually(() => lines().length >= 2 * CONNECTIONS)
    expect(await follower.end()).toBe(0)
    for (const event of ['new', 'ended']) {
      const these = lines().filter(line => line.event === event)
      expect(these.map(portOf).toSorted()).toEqual(ports.toSorted())
      for (const line of these)
        expect(line).toMatchObject({ service: 'ns/web:http', endpoint: `${served.get(portOf(line))}:8080` })
    }
    expect(lines().find(({ event }) => event === 'ended')).toMatchObject({
      packetsSent: expect.any(Number),
      durationMs: expect.any(Number),
    })
    expect(follower.err).toMatch(/ 0 events lost\n$/)
  })

  it('counts what the lines of --limit leave out, ended connections too', async () => {
    const by = ['--group-by', 'endpoint', '--interval=0', '--limit=1']
    const json = await follow(...by, '--events=ended', '-o', 'json')
    const text = await follow(...by)
    await talkTo(VIP)
    execFileSync('conntrack', ['-D', '-d', VIP], { stdio: 'ignore' })
    expect([await json.end(), await text.end()]).toEqual([0, 0])
    const [shown, rest] = linesOf(json.out)
    expect(rest).toMatchObject({ event: 'rest', groups: ENDPOINTS.length - 1, connections: 0 })
    expect(Number(shown?.ended) + Number(rest?.ended)).toBe(CONNECTIONS)
    expect(json.err).toContain(`0 new and ${CONNECTIONS} ended connections in `)
    const line = /and (\d+) new and (\d+) ended connections in further lines/.exec(text.out) ?? []
    expect(Number(line[2])).toBe(Number(rest?.ended))
  })

  it('prints no table for a reader that is behind, and gives its counts to the next one', async () => {
    const stop = new AbortController()
    let due = 0
    const outBacklogBytes = () => {
      due++
      return 9 << 20
    }
    const io = new FakeIo({ outBacklogBytes, signal: stop.signal })
    const args = [`--admin-socket=${socket}`, '--follow', '--group-by=service', '--interval=200ms']
    const following = runCommand(['flows', ...args], io)
    await eventually(() => io.stderr.includes('following connections'))
    await talkTo(VIP)
    const before = due
    await eventually(() => due >= before + 2)
    stop.abort()
    expect(await following).toBe(0)
    expect(io.stdout.match(/^in /gm)).toHaveLength(1)
    expect(io.stdout).toMatch(new RegExp(`^ns/web:http +TCP +${CONNECTIONS} `, 'm'))
    expect(io.stderr).toMatch(/^\d+ tables were not printed: standard output is too slow/m)
  })
})

/** `kprobe flows --follow` as a process of its own that listens. */
async function follow(...args: readonly string[]) {
  const child: ChildProcess = spawn(process.execPath, [
    COMMAND,
    'flows',
    '--follow',
    `--admin-socket=${socket}`,
    ...args,
  ])
  onTestFinished(() => void child.kill())
  const said = { out: '', err: '' }
  child.stdout?.on('data', chunk => {
    said.out += chunk
  })
  child.stderr?.on('data', chunk => {
    said.err += chunk
  })
  const ended = once(child, 'close')
  await eventually(() => said.err.includes('following connections'))
  return {
    get out() {
      return said.out
    },
    get err() {
      return said.err
    },
    async end(): Promise<number> {
      child.kill('SIGINT')
      const [code] = await ended
      return code
    },
  }
}

describe('FlowWatch', () => {
  it('F172: says exactly how many events the kernel dropped', async () => {
    const injected = 2_000
    let taken = 0
    const small = () => openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes: 16 << 10 })
    const watch = new FlowWatch({ clock: systemClock, kinds: ['new'], take: () => taken++, open: small })
    const injector = openNetlink({ protocol: NETLINK_NETFILTER })
    const entries = Array.from({ length: injected }, (_, n) =>
      entry(`203.0.113.9:${2_000 + n}`, '192.0.2.1:53'),
    )
    // Nothing reads the events before all are sent.
    expect(inject(injector, entries)).toBe(injected)
    await injector.close()
    watch.stop()
    const lost = watch.takeLost()
    await watch.close()
    expect(lost).toBeGreaterThan(0)
    expect(taken + lost).toBe(injected)
  })
})
