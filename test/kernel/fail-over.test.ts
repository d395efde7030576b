import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { runInProcess } from '../support/command.ts'
import { type Daemon, Daemons } from '../support/daemon.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'

/*
 *     this node: the daemon, and clients at addresses of its own ── veth ── pods: servers, and a set of addresses that lose packets
 */

const CLIENT = '10.9.0.2'
/** A policy of the pods denies it everything. */
const DENIED = '10.9.0.9'
const PEERS = fileURLToPath(new URL('fail-over-peers.mjs', import.meta.url))

interface Group {
  readonly vip: string
  readonly endpoints: readonly string[]
}

function group(number: number, size: number): Group {
  const endpoints = Array.from({ length: size }, (_, at) => `10.180.${number}.${at + 1}`)
  return { vip: `10.96.0.${number}`, endpoints }
}

const WEB = group(1, 3)
const TWO = group(2, 2)
const SIX = group(3, 6)
const DNS = group(4, 3)
const SYSLOG = group(5, 2)
const SCANNED = group(6, 2)
const UNASKED = group(7, 3)
const LATER = group(8, 2)
const HELD = group(9, 2)
const LOST = group(10, 2)
const GROUPS = [WEB, TWO, SIX, DNS, SYSLOG, SCANNED, UNASKED, LATER, HELD, LOST]

const OUT = 'the endpoint leaves connections without a reply'
const BACK = 'the endpoint gets new connections again'

const daemons = new Daemons()
let daemon: Daemon
let servers: ChildProcess | undefined
let socket: string

const inPods = (...words: readonly string[]) => execFileSync('ip', ['netns', 'exec', 'pods', ...words])

function silence(...endpoints: readonly string[]): void {
  inPods('nft', `add element ip lab silent { ${endpoints.join(', ')} }`)
}

function wake(...endpoints: readonly string[]): void {
  inPods('nft', `delete element ip lab silent { ${endpoints.join(', ')} }`)
}

function objectsOf(name: string, { vip, endpoints }: Group, words: Words = {}): readonly object[] {
  const { protocol = 'TCP', port = 8_080, isAsking = true } = words
  const ports = [{ name: 'main', port: 80, protocol }]
  const annotations = isAsking ? { 'kprobe.io/fail-over': 'passive' } : {}
  const service = serviceOf(
    `shop/${name}`,
    vip,
    { ports },
    { metadata: { namespace: 'shop', name, annotations } },
  )
  return [service, sliceOf(`shop/${name}`, endpoints, { ports: [{ name: 'main', port, protocol }] })]
}

interface Words {
  readonly protocol?: 'TCP' | 'UDP'
  readonly port?: number
  readonly isAsking?: boolean
}

beforeAll(async () => {
  freshNetns()
  forwardPackets()
  mkdirSync('/run/netns', { recursive: true })
  execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', '/run'])
  execFileSync('ip', ['netns', 'add', 'pods'])
  const ip = (lines: readonly string[], ...at: readonly string[]) =>
    execFileSync('ip', [...at, '-batch', '-'], { input: lines.join('\n') })
  ip([
    'link set lo up',
    `address add ${CLIENT}/32 dev lo`,
    `address add ${DENIED}/32 dev lo`,
    'link add pods type veth peer name e0 netns pods',
    'address add 10.180.0.1/16 dev pods',
    'link set pods up',
    'route add 10.96.0.0/16 dev lo',
  ])
  const all = GROUPS.flatMap(({ endpoints }) => endpoints)
  ip(
    [
      'link set lo up',
      'link set e0 up',
      ...all.map(each => `address add ${each}/16 dev e0`),
      'route add default via 10.180.0.1',
    ],
    '-n',
    'pods',
  )
  inPods(
    'nft',
    `table ip lab { set silent { type ipv4_addr; }; chain c { type filter hook prerouting priority -300;
      ip daddr @silent drop; ip saddr ${DENIED} drop; }; }`,
  )
  servers = spawn('ip', ['netns', 'exec', 'pods', process.execPath, PEERS, ...all], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  if (servers.stdout) await once(servers.stdout, 'data')
  const items = [
    ...objectsOf('web', WEB),
    ...objectsOf('two', TWO),
    ...objectsOf('six', SIX),
    ...objectsOf('dns', DNS, { protocol: 'UDP', port: 5_353 }),
    ...objectsOf('syslog', SYSLOG, { protocol: 'UDP', port: 5_514 }),
    ...objectsOf('scanned', SCANNED),
    ...objectsOf('later', LATER),
    ...objectsOf('held', HELD, { port: 8_081 }),
    ...objectsOf('lost', LOST, { port: 8_081 }),
    ...objectsOf('unasked', UNASKED, { isAsking: false }),
  ]
  const source = join(daemons.folder(), 'objects.json')
  socket = join(daemons.folder(), 'admin.sock')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
  daemon = await daemons.running({ source, args: [`--admin-socket=${socket}`] })
})

afterAll(async () => {
  servers?.stdin?.end()
  await daemons.end()
})

/** A client that begins a connection every 20 ms, and gives up on one after 400 ms. */
class Traffic {
  readonly answers = new Map<string, number>()
  given = 0
  lost = 0
  readonly #timer: NodeJS.Timeout

  constructor({ vip }: Group, words: { readonly protocol?: 'UDP'; readonly from?: string } = {}) {
    const { protocol, from = CLIENT } = words
    const call = protocol === 'UDP' ? callUdp : callTcp
    this.#timer = setInterval(async () => {
      this.given++
      const answer = await call(vip, from)
      if (answer === '') this.lost++
      else this.answers.set(answer, (this.answers.get(answer) ?? 0) + 1)
    }, 20)
  }

  answeredBy(endpoint: string | undefined): number {
    return this.answers.get(endpoint ?? '') ?? 0
  }

  end(): void {
    clearInterval(this.#timer)
  }
}

const PATIENCE_MS = 400

function callTcp(host: string, localAddress: string): Promise<string> {
  return new Promise(resolve => {
    const client = connect({ host, port: 80, localAddress })
    const timer = setTimeout(() => client.destroy(), PATIENCE_MS)
    let text = ''
    client
      .on('data', data => {
        text += String(data)
        client.end()
      })
      .on('error', () => undefined)
      .on('close', () => {
        clearTimeout(timer)
        resolve(text)
      })
  })
}

function callUdp(host: string, from: string): Promise<string> {
  return new Promise(resolve => {
    const client = createSocket('udp4').on('error', () => undefined)
    const end = (text: string) => {
      clearTimeout(timer)
      client.close()
      resolve(text)
    }
    const timer = setTimeout(() => end(''), PATIENCE_MS)
    client.on('message', data => end(String(data))).bind(0, from, () => client.send('?', 80, host))
  })
}

function traffic(...given: ConstructorParameters<typeof Traffic>): Traffic {
  const its = new Traffic(...given)
  onTestFinished(() => its.end())
  return its
}

/** Open connections of one client, by their endpoint: half of them send keepalive probes, and one after the other closes. */
class Held {
  readonly #open = new Map<string, Socket[]>()
  #timer: NodeJS.Timeout | undefined

  async open({ vip, endpoints }: Group, each: number): Promise<void> {
    while (endpoints.some(endpoint => this.count(endpoint) < each)) {
      const client = connect({ host: vip, port: 80, localAddress: CLIENT }).on('error', () => undefined)
      const endpoint = String((await once(client, 'data'))[0])
      this.#open.set(endpoint, [...(this.#open.get(endpoint) ?? []), client])
      client.setKeepAlive(this.count(endpoint) % 2 === 0, 1_000)
    }
  }

  /** Closes a connection to each of these every 100 ms, with data before the end. */
  close(endpoints: readonly string[]): void {
    this.#timer = setInterval(() => {
      for (const endpoint of endpoints) this.#open.get(endpoint)?.shift()?.end('bye')
    }, 100)
  }

  count(endpoint: string | undefined): number {
    return this.#open.get(endpoint ?? '')?.length ?? 0
  }

  end(): void {
    clearInterval(this.#timer)
    for (const client of [...this.#open.values()].flat()) client.destroy()
  }
}

async function held(group: Group, each: number): Promise<Held> {
  const its = new Held()
  onTestFinished(() => its.end())
  await its.open(group, each)
  return its
}

const run = (...args: readonly string[]) => runInProcess([...args, `--admin-socket=${socket}`])

/** The endpoints of a Service that were taken out so far. */
function outsOf(name: string): readonly unknown[] {
  return daemon
    .said(OUT)
    .filter(({ service }) => service === `shop/${name}:main`)
    .map(({ endpoint }) => endpoint)
}

async function answersAll(endpoints: readonly string[], its: Traffic): Promise<void> {
  await eventually(() => endpoints.every(each => its.answeredBy(each) > 0))
}

it('takes an endpoint out that falls silent, shows it, and lets it back when it answers', async () => {
  const [dead = '', ...alive] = WEB.endpoints
  const client = traffic(WEB)
  await answersAll(WEB.endpoints, client)
  silence(dead)
  const silentMs = performance.now()
  await eventually(() => outsOf('web').length === 1)
  const tookS = ((performance.now() - silentMs) / 1_000).toFixed(2)
  expect(outsOf('web')).toEqual([`${dead}:8080`])
  if (process.env.KPROBE_SHOW_TIMES !== undefined) console.log(`out after ${tookS} s`)

  const dump = async () => (await run('dump', '--service=shop/web', '-o', 'json')).out
  await eventually(async () => !(await dump()).includes(dead))
  expect((await run('plan')).out).not.toContain(dead)
  expect((await run('verify', '--prove')).code).toBe(0)
  const why = await run('why', `--from=${CLIENT}`, '--to=shop/web')
  expect(why.out).toMatch(new RegExp(`${dead}:8080.* out for a short time: it left connections`))
  expect((await run('status')).out).toContain(`out for a time: shop/web ${dead}:8080`)
  expect((await run('top', '--once', '--interval=200ms')).out).toContain(
    `out for a time: shop/web ${dead}:8080`,
  )
  const count = alive.map(each => client.answeredBy(each))
  await eventually(() => alive.every((each, at) => client.answeredBy(each) > (count[at] ?? 0) + 20))

  wake(dead)
  const answered = client.answeredBy(dead)
  await daemon.logged(BACK)
  await eventually(() => client.answeredBy(dead) > answered)
  expect((await run('verify', '--prove')).code).toBe(0)
})

it('rescues a client that waits for the dead endpoint', async () => {
  const [dead = ''] = WEB.endpoints
  const client = traffic(WEB)
  await answersAll(WEB.endpoints, client)
  silence(dead)
  onTestFinished(() => wake(dead))
  // Connections without a time limit: some of them begin at the dead endpoint.
  const patient = Array.from({ length: 30 }, () => {
    const its = connect({ host: WEB.vip, port: 80, localAddress: CLIENT })
    return once(its.resume(), 'end')
  })
  await Promise.all(patient)
})

it('takes out a third of the endpoints at most', async () => {
  const client = traffic(SIX)
  await answersAll(SIX.endpoints, client)
  const dead = SIX.endpoints.slice(0, 3)
  silence(...dead)
  await eventually(() => outsOf('six').length === 2)
  const given = client.given
  await eventually(() => client.given > given + 100)
  const dump = (await run('dump', '--service=shop/six', '-o', 'json')).out
  expect(dead.filter(each => dump.includes(each))).toHaveLength(1)
  expect(outsOf('six')).toHaveLength(2)
})

it('takes a UDP endpoint out that falls silent', async () => {
  const [dead = ''] = DNS.endpoints
  const client = traffic(DNS, { protocol: 'UDP' })
  await answersAll(DNS.endpoints, client)
  silence(dead)
  await eventually(() => outsOf('dns').length === 1)
  expect(outsOf('dns')).toEqual([`${dead}:5353`])
})

it('takes an endpoint out although clients close and probe their connections to it', async () => {
  const [dead = ''] = HELD.endpoints
  const open = await held(HELD, 150)
  const client = traffic(HELD)
  await answersAll(HELD.endpoints, client)
  silence(dead)
  open.close([dead])
  await eventually(() => outsOf('held').length > 0 || open.count(dead) === 0)
  expect(outsOf('held')).toEqual([`${dead}:8081`])
  expect(open.count(dead)).toBeGreaterThan(0)
})

it('leaves alone: ports without an answer, one-way ports, clients that are denied, and Services that did not ask', async () => {
  const [dead = ''] = UNASKED.endpoints
  const two = traffic(TWO)
  const unasked = traffic(UNASKED)
  await answersAll([...TWO.endpoints], two)
  await answersAll([...UNASKED.endpoints], unasked)
  const lost = traffic(LOST)
  const open = await held(LOST, 100)
  silence(...TWO.endpoints, ...LOST.endpoints, dead)
  open.close(LOST.endpoints)
  const failing = [
    two,
    lost,
    unasked,
    traffic(SYSLOG, { protocol: 'UDP' }),
    traffic(SCANNED, { from: DENIED }),
  ]
  const scanned = traffic(SCANNED)
  await answersAll(SCANNED.endpoints, scanned)
  const before = failing.map(({ lost }) => lost)
  await eventually(() => failing.every(({ lost }, at) => lost > (before[at] ?? 0) + 20))
  // They had their chance when this one, which begins later, is out.
  const [last = ''] = LATER.endpoints
  const later = traffic(LATER)
  await answersAll(LATER.endpoints, later)
  silence(last)
  await eventually(() => outsOf('later').length === 1)
  for (const name of ['two', 'lost', 'syslog', 'scanned', 'unasked']) expect(outsOf(name), name).toEqual([])
})
