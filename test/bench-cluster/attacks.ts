import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import type { Program } from '../support/reference/process.ts'
import { API_ADDRESS, AttackSite, answering, canConnect, service, slice, untilServed } from './attack-site.ts'
import { childrenOf, peakMiB, rssMiB } from './cost.ts'
import type { ProxyName } from './proxies.ts'

const START_MAX_MS = 60_000
const LOCKED_OUT_MS = 60_000
const FOLLOWS_MAX_MS = 300_000
/** A proxy that takes more with its children is ended: it would take the machine. */
const MEMORY_MAX_MIB = 8_192
const LOOK_EVERY_MS = 200
const HEALTH_PORT = 10_256
const PROBES = 10
const PROBE_MAX_MS = 5_000

/** Texts by title. */
export type AttackFigures = Readonly<Record<string, string>>

/** Attacks of docs/threat-model.md on one proxy, each on an empty node. */
export async function attackProxy(name: ProxyName): Promise<AttackFigures> {
  const plane = await ControlPlane.start()
  try {
    await plane.api.put(LAB_NODE)
    await plane.api.put(namespaceObject('ns'))
    const figures: Record<string, string> = {}
    for (const attack of [captureApiServer, holdConnections, sendLargeService]) {
      const site = await AttackSite.open(plane, name)
      try {
        Object.assign(figures, await attack(site))
      } finally {
        await site.close()
      }
      process.stderr.write(`${name}: ${attack.name} is done\n`)
    }
    return figures
  } finally {
    await plane.stop()
  }
}

/** An external address that is the API server's, at its port, without endpoints. */
async function captureApiServer(site: AttackSite): Promise<AttackFigures> {
  await started(site)
  const ports = [{ name: 'http', port: site.plane.port, protocol: 'TCP' }]
  const thief = service('thief', 9, { externalIPs: [API_ADDRESS], ports })
  await site.put(thief, ...answering('second', 2))
  await served(2)
  const isOpen = await canConnect(API_ADDRESS, site.plane.port)
  await site.stop()
  await site.plane.api.remove(thief.apiVersion, thief.kind, thief.metadata)
  await site.put(...answering('third', 3))
  await site.start()
  const tookMs = await untilServed(3, LOCKED_OUT_MS)
  return {
    'API server captured: new connections to it': isOpen ? 'made' : 'refused',
    'started again after that Service was deleted':
      tookMs === undefined ? `no change for ${LOCKED_OUT_MS / 1000} s` : `follows after ${seconds(tookMs)}`,
  }
}

/** Idle connections of one local process at the port of the health checks. */
async function holdConnections(site: AttackSite): Promise<AttackFigures> {
  const { pid } = await started(site)
  const before = rssMiB(pid)
  const sockets = Array.from({ length: 1_200 }, (_, index) => {
    const localAddress = `127.0.0.${2 + (index % 8)}`
    return connect({ port: HEALTH_PORT, host: '127.0.0.1', localAddress }).on('error', () => undefined)
  })
  await sleep(3_000)
  const times: number[] = []
  for (let probe = 0; probe < PROBES; probe++) {
    const beganMs = performance.now()
    if (await isAlive()) times.push(performance.now() - beganMs)
  }
  const held = sockets.filter(({ readyState }) => readyState === 'open').length
  const figures = {
    '1,200 idle connections: /livez answers': `${times.length} of ${PROBES}, ${Math.ceil(Math.max(0, ...times))} ms at most`,
    'of these connections, still open': String(held),
    'memory for them': `${Math.round(rssMiB(pid) - before)} MiB`,
  }
  for (const socket of sockets) socket.destroy()
  return figures
}

/** A Service of 5,000 ports with a slice of 5,000 ports and 1,000 endpoints; and a small one behind it. */
async function sendLargeService(site: AttackSite): Promise<AttackFigures> {
  const program = await started(site)
  const before = peakMiB(program.pid)
  const ports = Array.from({ length: 5_000 }, (_, i) => ({ name: `p${i}`, port: i + 1, protocol: 'TCP' }))
  const addresses = Array.from({ length: 1_000 }, (_, i) => `10.181.${i >> 8}.${i & 255}`)
  const memory = new Memory(program)
  await site.put(service('large', 77, { ports }), slice('large', ports, addresses))
  await site.put(...answering('second', 2))
  const tookMs = await untilServed(2, FOLLOWS_MAX_MS, () => program.hasExited)
  const isOld = await canConnect('172.30.1.1', 80)
  memory.stop()
  const never = memory.isOver
    ? `ended at ${MEMORY_MAX_MIB} MiB after ${seconds(memory.elapsedMs)}`
    : program.hasExited
      ? `it ended: ${program.lastWords().slice(-200)}`
      : `not within ${FOLLOWS_MAX_MS / 1000} s`
  return {
    '5,000 ports x 1,000 endpoints: a Service made behind it': tookMs === undefined ? never : seconds(tookMs),
    'a Service from before': isOld ? 'served' : 'not served',
    'peak memory of the process': `${Math.round(memory.ownMiB)} MiB (${Math.round(before)} before)`,
    'peak memory with its children': `${Math.round(memory.allMiB)} MiB`,
  }
}

/** Follows the memory of a program and of its children, and ends it when they take too much. */
class Memory {
  ownMiB = 0
  allMiB = 0
  isOver = false
  readonly #beganMs = performance.now()
  readonly #program: Program
  readonly #timer: NodeJS.Timeout

  constructor(program: Program) {
    this.#program = program
    this.#timer = setInterval(() => this.#look(), LOOK_EVERY_MS)
  }

  get elapsedMs(): number {
    return performance.now() - this.#beganMs
  }

  stop(): void {
    clearInterval(this.#timer)
    this.#look()
  }

  #look(): void {
    const { pid, hasExited } = this.#program
    if (hasExited) return
    const children = childrenOf(pid).reduce((sum, child) => sum + rssMiB(child), 0)
    this.ownMiB = Math.max(this.ownMiB, peakMiB(pid))
    this.allMiB = Math.max(this.allMiB, rssMiB(pid) + children)
    if (this.allMiB < MEMORY_MAX_MIB || this.isOver) return
    this.isOver = true
    void this.#program.stop('SIGKILL')
  }
}

async function started(site: AttackSite): Promise<Program> {
  await site.put(...answering('first', 1))
  const program = await site.start()
  await served(1)
  return program
}

async function served(number: number): Promise<void> {
  if ((await untilServed(number, START_MAX_MS)) === undefined)
    throw new Error(`Service ${number} is not served`)
}

async function isAlive(): Promise<boolean> {
  try {
    const signal = AbortSignal.timeout(PROBE_MAX_MS)
    const { ok } = await fetch(`http://127.0.0.1:${HEALTH_PORT}/livez`, {
      signal,
      headers: { connection: 'close' },
    })
    return ok
  } catch {
    return false
  }
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1)} s`
}
