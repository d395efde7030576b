import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import { describe, expect, it, onTestFinished } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { formatIpPort } from '../../src/base/ip.ts'
import { createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import type { Flow } from '../../src/kernel/conntrack/flow.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { Daemons } from '../support/daemon.ts'
import { closeTopology, inNamespace, openTopology, type Topology } from '../support/lab/topology.ts'
import { startClient, startServers } from '../support/lab/traffic.ts'
import { sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { node } from './cluster.ts'
import { writeObjects } from './objects.ts'
import { ACK, encodeSegment, RST, readSegment, type Segment } from './segments.ts'
import { CLIENT, NODE, NODE_PORT, nodePorted, POD, VIP } from './web.ts'

/** Beyond any window that two ends agree on: a quarter of all numbers. */
const FAR = 0x40000000
/** Ends whose addresses nobody beyond the node should see. */
const STRAYS = new Set([POD, CLIENT])

describe('a segment outside the window of a translated connection', () => {
  const daemons = new Daemons()
  const seen: Array<{ readonly place: keyof Topology; readonly segment: Segment }> = []
  let topology: Topology

  async function open(liberal: boolean): Promise<void> {
    seen.length = 0
    topology = await openTopology([], (place, packet) => {
      const segment = readSegment(packet)
      if (segment !== undefined) seen.push({ place, segment })
    })
    const servers = await startServers(topology, [`${POD}:8080`])
    onTestFinished(async () => {
      await daemons.end()
      await servers.close()
      await closeTopology(topology)
    })
    inNamespace(topology.outside.pid, ['ip', 'addr', 'add', `${CLIENT}/32`, 'dev', 'e0'])
    const folder = daemons.folder()
    writeObjects(folder, [node({ ips: [NODE] }), nodePorted, sliceOf('web', [POD])])
    await daemons.running({ source: folder, args: [`--conntrack-tcp-be-liberal=${liberal}`] })
  }

  /** A connection from outside, whose words the pod says back. */
  async function connection(kind: 'ClusterIP' | 'NodePort'): Promise<Echo> {
    const [destination, port] = kind === 'ClusterIP' ? [VIP, 80] : [NODE, NODE_PORT]
    // The laboratory's client knows how to give a namespace its way back.
    await startClient(topology, { from: 'outside', source: CLIENT, destination, port, rate: 50 }).stop()
    const echo = new Echo(topology.outside.pid, [CLIENT, destination, String(port)])
    onTestFinished(() => echo.end())
    await echo.until(`${POD} 8080\n`)
    await echo.says('one')
    return echo
  }

  /** The last segment with data that arrived at this end. */
  async function last(place: keyof Topology): Promise<Segment> {
    await topology[place].sync()
    const found = seen.findLast(each => each.place === place && each.segment.length > 0)
    if (found === undefined) throw new Error(`nothing arrived at ${place}`)
    return found.segment
  }

  /** Sends one as if from this end, far beyond what the other end expects, with an acknowledgement that is right. */
  async function sendOutside(from: 'outside' | 'pods'): Promise<void> {
    const heard = await last(from)
    seen.length = 0
    const stray = encodeSegment({
      source: heard.destination,
      sourcePort: heard.destinationPort,
      destination: heard.source,
      destinationPort: heard.sourcePort,
      sequence: (heard.acknowledgement + FAR) >>> 0,
      acknowledgement: (heard.sequence + heard.length) >>> 0,
      flags: ACK,
      length: 100,
    })
    topology[from].send([stray])
    await new Promise(resolve => setTimeout(resolve, 200))
    await Promise.all([topology.pods.sync(), topology.outside.sync()])
  }

  function resetsAtClient(): number {
    return seen.filter(({ place, segment }) => place === 'outside' && (segment.flags & RST) !== 0).length
  }

  const CASES = [
    ['ClusterIP', 'pods', 'a reset follows'],
    ['ClusterIP', 'outside', 'it goes on'],
    ['NodePort', 'pods', 'a reset follows'],
    ['NodePort', 'outside', 'a reset follows'],
  ] as const

  it.each(CASES)(
    'F80: to a %s, from %s: with tcp-be-liberal no RST reaches the client, and it goes on',
    async (kind, from) => {
      await open(true)
      expect(isLiberal()).toBe(true)
      const echo = await connection(kind)
      await sendOutside(from)
      await echo.says('two')
      expect(resetsAtClient()).toBe(0)
      // It was translated like all others of its connection.
      const other = from === 'pods' ? 'outside' : 'pods'
      expect(seen.some(({ place, segment }) => place === other && segment.length === 100)).toBe(true)
      expect(seen.some(({ place, segment }) => place === other && STRAYS.has(segment.source))).toBe(false)
    },
  )

  it.each(CASES)(
    'F80: to a %s, from %s: without tcp-be-liberal the kernel does not translate it: %s',
    async (kind, from, outcome) => {
      const isCut = outcome === 'a reset follows'
      await open(false)
      expect(isLiberal()).toBe(false)
      const echo = await connection(kind)
      await sendOutside(from)
      if (isCut) await echo.hears('two', 'ECONNRESET')
      else await echo.says('two')
      await topology.outside.sync()
      expect(resetsAtClient() > 0).toBe(isCut)
    },
  )
})

describe.each(['nftables', 'iptables'])('in %s mode, when a TCP endpoint is gone', mode => {
  const OTHER = '10.180.0.2'
  /** Swallows what it gets, as a node that has died. */
  const DEAD = '10.180.0.9'
  const daemons = new Daemons()
  const openTransport = () => openNetlink({ protocol: NETLINK_NETFILTER })

  it('F214: an attempt to connect succeeds by its next SYN, and an open connection goes on', async () => {
    const topology = await openTopology([], () => undefined)
    const servers = await startServers(topology, [`${POD}:8080`, `${OTHER}:8080`])
    const conntrack = createConntrackClient({ openTransport, clock: systemClock })
    const echoes: Echo[] = []
    onTestFinished(async () => {
      await Promise.all([...echoes.map(echo => echo.end()), daemons.end(), conntrack.close()])
      await servers.close()
      await closeTopology(topology)
    })
    const connection = (pid: number, words: readonly string[]) => {
      const echo = new Echo(pid, words)
      echoes.push(echo)
      return echo
    }
    const unanswered = async () => {
      const found: string[] = []
      const visit = (flow: Flow) => found.push(formatIpPort(flow.answerer, flow.answererPort))
      await conntrack.dump(
        { family: 'IPv4', protocol: 'TCP', isHalfOpen: true },
        { isWanted: () => true, visit },
      )
      return found.filter(endpoint => endpoint === `${DEAD}:8080`).length
    }
    inNamespace(topology.outside.pid, ['ip', 'addr', 'add', `${CLIENT}/32`, 'dev', 'e0'])
    inNamespace(topology.pods.pid, ['ip', 'route', 'add', 'blackhole', DEAD])
    // The laboratory's client knows how to give a namespace its way back.
    await startClient(topology, {
      from: 'outside',
      source: CLIENT,
      destination: NODE,
      port: 1,
      rate: 1,
    }).stop()

    const folder = daemons.folder()
    const program = (endpoint: string) =>
      writeObjects(folder, [node({ ips: [NODE] }), nodePorted, sliceOf('web', [endpoint])])
    program(POD)
    const daemon = await daemons.running({ source: folder, args: [`--proxy-mode=${mode}`] })
    const open = connection(process.pid, [NODE, VIP, '80'])
    await open.until(`${POD} 8080\n`)

    program(DEAD)
    await eventually(() => daemon.records.some(({ reason }) => reason === 'removal'))
    const attempts = [
      connection(process.pid, [NODE, VIP, '80']),
      connection(topology.outside.pid, [CLIENT, NODE, String(NODE_PORT)]),
    ]
    await eventually(async () => (await unanswered()) === attempts.length)
    program(OTHER)
    for (const attempt of attempts) await attempt.until(`${OTHER} 8080\n`)
    expect(await unanswered()).toBe(0)
    await open.says('one')
  })
})

function isLiberal(): boolean {
  return readFileSync('/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal', 'utf8').trim() === '1'
}

/** A TCP client in a namespace, whose words are said back. */
class Echo {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  #heard = ''

  constructor(pid: number, [localAddress = '', host = '', port = '']: readonly string[]) {
    const script = `
      const s = require('net').connect(${JSON.stringify({ localAddress, host, port })})
      s.on('error', e => console.log(e.code))
      process.stdin.pipe(s).pipe(process.stdout)`
    this.#child = spawn('nsenter', ['-t', String(pid), '-n', process.execPath, '-e', script], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    // Words for a connection that has been reset: its end is heard, too.
    this.#child.stdin.on('error', error => {
      this.#heard += `${error.message}\n`
    })
    this.#child.stdout.on('data', chunk => {
      this.#heard += chunk
    })
  }

  async until(words: string): Promise<void> {
    await eventually(() => {
      if (this.#heard.includes('ETIMEDOUT')) throw new Error(`no connection: ${this.#heard}`)
      return this.#heard.includes(words)
    })
  }

  async says(words: string): Promise<void> {
    await this.hears(words, words)
  }

  async hears(words: string, answer: string): Promise<void> {
    this.#child.stdin.write(`${words}\n`)
    await this.until(`${answer}\n`)
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    this.#child.kill('SIGKILL')
    await ended
  }
}
