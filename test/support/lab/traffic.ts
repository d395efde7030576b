import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import { assert } from '../../../src/base/errors.ts'
import { within } from '../patience.ts'
import { endpointText, parseEndpoint } from './address.ts'
import { buildProgram } from './build.ts'
import { inNamespace, peerGateways, type Topology } from './topology.ts'

interface Program extends ChildProcessByStdio<Writable, Readable, Readable> {
  /** Rejects when the program ends with anything but 0, whenever that is. */
  readonly ended: Promise<void>
}

export interface TrafficReport {
  readonly ok: number
  readonly refused: number
  readonly timeouts: number
  readonly other: number
  /** Longest time to the answer, milliseconds; 1000 and more means that a SYN was lost and sent again. */
  readonly slowestMs: number
  /** By `address:port` of the server that answered; in the last report only. */
  readonly endpoints: ReadonlyMap<string, number>
}

export interface Servers {
  close(): Promise<void>
}

export interface TrafficClient {
  /** What came of the connections so far. */
  report(): Promise<TrafficReport>
  /** Waits for the connections under way, and ends. */
  stop(): Promise<TrafficReport>
}

/**
 * TCP servers at endpoints in the pods' namespace, each telling who it is. While they run, pods answer probes of
 * Lab.trace to the same addresses.
 */
export async function startServers(topology: Topology, endpoints: readonly string[]): Promise<Servers> {
  const parsed = endpoints.map(parseEndpoint)
  routeBack(topology.pods.pid)
  for (const address of new Set(parsed.map(({ address }) => address))) {
    inNamespace(topology.pods.pid, ['ip', 'route', 'replace', 'local', address, 'dev', 'lo'])
  }
  const ports = [...new Set(parsed.map(({ port }) => String(port)))]
  const program = start(topology.pods.pid, ['serve', ...ports])
  await within(Promise.race([once(program.stdout, 'data'), program.ended]), 'servers listen')
  return { close: () => end(program) }
}

export interface ClientOptions {
  readonly from: 'outside' | 'pod' | 'node'
  readonly source: string
  readonly destination: string
  readonly port: number
  /** Connections a second. */
  readonly rate: number
}

/** Opens connections at a steady rate until it is stopped. */
export function startClient(topology: Topology, options: ClientOptions): TrafficClient {
  const { outside, pods } = topology
  const pid = options.from === 'node' ? undefined : (options.from === 'pod' ? pods : outside).pid
  if (pid !== undefined) {
    routeBack(pid)
    inNamespace(pid, ['ip', 'addr', 'replace', host(options.source), 'dev', 'e0', ...noDad(options.source)])
  }
  const words = ['connect', options.source, options.destination, String(options.port), String(options.rate)]
  const program = start(pid, words)
  const lines = new Lines(program.stdout)
  return {
    report: async () => {
      program.stdin.write('?\n')
      return parseReport([await lines.next()])
    },
    stop: async () => {
      const before = lines.count
      await end(program)
      return parseReport(lines.after(before))
    },
  }
}

function start(pid: number | undefined, words: readonly string[]): Program {
  const program = buildProgram('traffic')
  const command = pid === undefined ? [program] : ['nsenter', '-t', String(pid), '-n', program]
  const [file = program, ...rest] = [...command, ...words]
  const child = spawn(file, rest, { stdio: ['pipe', 'pipe', 'pipe'] })
  const ended = endOf(child)
  // Who ends the program hears of it.
  ended.catch(() => undefined)
  return Object.assign(child, { ended })
}

async function endOf(child: ChildProcessByStdio<Writable, Readable, Readable>): Promise<void> {
  const words: Buffer[] = []
  child.stderr.on('data', chunk => words.push(chunk))
  const [code, signal] = await once(child, 'close')
  if (code !== 0)
    throw new Error(`traffic ended with ${code ?? signal}: ${Buffer.concat(words).toString().trim()}`)
}

async function end({ stdin, ended }: Program): Promise<void> {
  stdin.end()
  await within(ended, 'traffic ends')
}

/** Gives a namespace a way back to the node. */
function routeBack(pid: number): void {
  for (const { address, link } of peerGateways(pid)) {
    inNamespace(pid, `ip neigh replace ${address} lladdr ${link} dev e0 nud permanent`.split(' '))
    inNamespace(pid, `ip route replace default via ${address} dev e0 onlink`.split(' '))
  }
}

function host(address: string): string {
  return `${address}/${address.includes(':') ? 128 : 32}`
}

function noDad(address: string): readonly string[] {
  return address.includes(':') ? ['nodad'] : []
}

/** The lines a program has said, in order. */
class Lines {
  readonly #lines: string[] = []
  #taken = 0
  #rest = ''
  #wake: (() => void) | undefined

  constructor(stream: Readable) {
    stream.on('data', chunk => {
      const parts = `${this.#rest}${chunk}`.split('\n')
      this.#rest = parts.pop() ?? ''
      this.#lines.push(...parts)
      this.#wake?.()
    })
  }

  get count(): number {
    return this.#taken
  }

  after(count: number): readonly string[] {
    return this.#lines.slice(count)
  }

  async next(): Promise<string> {
    while (this.#taken >= this.#lines.length) {
      const woken = new Promise<void>(resolve => {
        this.#wake = resolve
      })
      await within(woken, 'traffic reports')
    }
    const line = this.#lines[this.#taken++]
    assert(line !== undefined, 'a line was awaited')
    return line
  }
}

const REPORT = /^ok (\d+) refused (\d+) timeout (\d+) other (\d+) slowest (\d+)$/

function parseReport(lines: readonly string[]): TrafficReport {
  const [first, ...rest] = lines
  const match = REPORT.exec(first ?? '')
  assert(match !== null, `not a report: ${first}`)
  const [ok, refused, timeouts, other, slowestMs] = match.slice(1).map(Number)
  const endpoints = new Map<string, number>()
  for (const line of rest) {
    const [address, port, count] = line.split(' ')
    endpoints.set(endpointText(address ?? '', Number(port)), Number(count))
  }
  return {
    ok: ok ?? 0,
    refused: refused ?? 0,
    timeouts: timeouts ?? 0,
    other: other ?? 0,
    slowestMs: slowestMs ?? 0,
    endpoints,
  }
}

/** SYNs that had to be sent again in the network namespaces of all clients, since their beginning. */
export function repeatedSyns({ outside }: Topology): number {
  const paths = [`/proc/${outside.pid}/net/netstat`, '/proc/thread-self/net/netstat']
  const counts = paths.map(path => {
    const [names = [], values = []] = readFileSync(path, 'utf8')
      .split('\n')
      .filter(line => line.startsWith('TcpExt:'))
      .map(line => line.split(' '))
    return Number(values[names.indexOf('TCPSynRetrans')])
  })
  return counts.reduce((sum, count) => sum + count, 0)
}
