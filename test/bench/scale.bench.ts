import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KubeObject } from '../support/reference/api.ts'
import { findBinaries } from '../support/reference/binaries.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { print } from './report.ts'
import { beNodes, monotonicMs, NodeReaders } from './scale-nodes.ts'

/*
 * The constants of docs/scale.md: what one change, one node and one object cost a real API server, a real relay and a node, and how
 * long after the acknowledgement of a change in a calm the last of many nodes has read it. Nodes are the source of the daemon, many in
 * one process; each has connections of its own.
 */

const SLICES = Number(process.env.KPROBE_SLICES ?? 500)
const PER_SECOND = 50
const COUNTS = (process.env.KPROBE_NODES ?? '50,100,200').split(',').map(Number)
/** `delays` leaves the constants out. */
const ASKED = process.env.KPROBE_SCALE
const QUIET_MS = 3_000
/** Changes in a calm, of which the delays are the median and the most. */
const CALM_CHANGES = 20
const CALM_MS = 1_000
/** Of a relay: src/relay/server.ts. Its own probes need some. */
const RELAY_CONNECTIONS_MAX = 2_000

/** Between the API server and the nodes. */
interface Between {
  readonly who: string
  readonly pid: number
  readonly readers: (count: number) => NodeReaders
}

const TICK_MS = 10

/** User and system time of a process: proc(5). */
function cpuMsOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}

/** What a process has written to sockets and files. */
function writtenBytes(pid: number): number {
  return Number(/^wchar: (\d+)/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))?.[1])
}

function residentKiB(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
}

const slice = (index: number, round: number): KubeObject => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: {
    name: `service-${index}-abcde`,
    namespace: 'default',
    labels: {
      'kubernetes.io/service-name': `service-${index}`,
      'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io',
    },
  },
  addressType: 'IPv4',
  ports: [{ name: 'http', port: 8_080, protocol: 'TCP' }],
  endpoints: Array.from({ length: 10 }, (_, endpoint) => ({
    addresses: [`10.${endpoint}.${index >> 8}.${(index & 0xff) ^ (round & 1)}`],
    conditions: { ready: true, serving: true, terminating: false },
    nodeName: `node-${endpoint}`,
    zone: 'zone-a',
    targetRef: {
      kind: 'Pod',
      namespace: 'default',
      name: `service-${index}-${endpoint}`,
      uid: `uid-${index}-${endpoint}`,
    },
  })),
})

/** From the acknowledgement of a change to the nodes that have read it. */
interface Delay {
  readonly who: string
  readonly nodes: number
  /** Median of the changes: of the node in the middle, and of the last one. */
  readonly middleMs: number
  readonly lastMs: number
  /** The last node at the worst of the changes. */
  readonly worstMs: number
}

interface Row {
  readonly who: string
  readonly nodes: number
  readonly serverMsPerChange: number
  readonly serverBytesPerChange: number
  /** Undefined for nodes that watch the API server themselves. */
  readonly relayMsPerChange: number | undefined
  readonly relayBytesPerChange: number | undefined
  readonly nodeUs: number
  readonly serverListMs: number
  readonly listBytes: number
  readonly serverKiB: number
}

class Bench {
  readonly #plane: ControlPlane
  #round = 0

  constructor(plane: ControlPlane) {
    this.#plane = plane
  }

  async fill(): Promise<void> {
    const all = Array.from({ length: SLICES }, (_, index) => slice(index, 0))
    await this.#plane.api.each(all, each => this.#plane.api.put(each))
  }

  /** So many nodes, and each slice changes once. */
  async run(count: number, between?: Between): Promise<Row> {
    const { serverPid } = this.#plane
    const kubeconfig = this.#plane.kubeconfig('admin')
    await sleep(QUIET_MS)
    const readers = between?.readers(count) ?? new NodeReaders({ count, kubeconfig, relay: undefined })
    const [serverBefore, kiBBefore] = [cpuMsOf(serverPid), residentKiB(serverPid)]
    const listBytes = await readers.open()
    await sleep(QUIET_MS)
    const serverListMs = cpuMsOf(serverPid) - serverBefore
    const serverKiB = residentKiB(serverPid) - kiBBefore
    const pids = [serverPid, between?.pid ?? serverPid]
    const used = () => pids.map(pid => ({ ms: cpuMsOf(pid), bytes: writtenBytes(pid) }))
    const before = used()
    const done = readers.changes(count * SLICES)
    await this.#change()
    const nodesMs = await done
    const [server, relay] = used().map(({ ms, bytes }, index) => ({
      ms: (ms - (before[index]?.ms ?? 0)) / SLICES,
      bytes: (bytes - (before[index]?.bytes ?? 0)) / SLICES,
    }))
    await readers.end()
    return {
      who: between?.who ?? 'themselves',
      nodes: count,
      serverMsPerChange: server?.ms ?? 0,
      serverBytesPerChange: server?.bytes ?? 0,
      relayMsPerChange: between && relay?.ms,
      relayBytesPerChange: between && relay?.bytes,
      nodeUs: count === 0 ? 0 : (nodesMs * 1_000) / count / SLICES,
      serverListMs,
      listBytes: count === 0 ? 0 : listBytes / count,
      serverKiB,
    }
  }

  /** So many nodes, and one slice at a time changes in a calm. */
  async delay(count: number, between?: Between): Promise<Delay> {
    const kubeconfig = this.#plane.kubeconfig('admin')
    const readers = between?.readers(count) ?? new NodeReaders({ count, kubeconfig, relay: undefined })
    await readers.open()
    this.#round++
    const middles: number[] = []
    const lasts: number[] = []
    for (let index = 0; index < CALM_CHANGES; index++) {
      await sleep(CALM_MS)
      const { all } = await readers.arrivals(count)
      const object = slice(index % SLICES, this.#round)
      await this.#plane.api.patch(object, { endpoints: object.endpoints })
      const acknowledgedMs = monotonicMs()
      const delays = (await all).map(ms => ms - acknowledgedMs).sort((a, b) => a - b)
      middles.push(median(delays))
      lasts.push(delays.at(-1) ?? 0)
    }
    await readers.end()
    return {
      who: between?.who ?? 'themselves',
      nodes: count,
      middleMs: median(middles),
      lastMs: median(lasts),
      worstMs: Math.max(...lasts),
    }
  }

  async #change(): Promise<void> {
    this.#round++
    const began = performance.now()
    const pending: Promise<unknown>[] = []
    for (let index = 0; index < SLICES; index++) {
      await sleep(Math.max(0, began + (index * 1_000) / PER_SECOND - performance.now()))
      const object = slice(index, this.#round)
      pending.push(this.#plane.api.patch(object, { endpoints: object.endpoints }))
    }
    await Promise.all(pending)
  }
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? 0
}

async function measure(): Promise<void> {
  if (findBinaries() === undefined) {
    console.log('skipped: the real API server, which node test/reference/build.mjs builds')
    return
  }
  const plane = await ControlPlane.start()
  const bench = new Bench(plane)
  await bench.fill()
  const rows: Row[] = []
  const delays: Delay[] = []
  for (const count of [0, ...COUNTS]) {
    if (ASKED !== 'delays') rows.push(await bench.run(count))
    if (count > 0) delays.push(await bench.delay(count))
  }
  await withRelay(plane, async between => {
    for (const count of COUNTS.filter(count => count <= RELAY_CONNECTIONS_MAX)) {
      if (ASKED !== 'delays') rows.push(await bench.run(count, between))
      delays.push(await bench.delay(count, between))
    }
  })
  if (ASKED !== 'delays') report(rows)
  reportDelays(delays)
  await plane.stop()
}

async function withRelay(plane: ControlPlane, measured: (between: Between) => Promise<void>): Promise<void> {
  const relay = `unix://${plane.folder}/bench-relay.sock`
  const command = join(process.env.KPROBE_ROOT ?? '', 'dist/kprobe.mjs')
  const flags = [`--listen=${relay}`, `--kubeconfig=${plane.kubeconfig('proxy')}`]
  const child = spawn(process.execPath, [command, 'relay', ...flags], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  await sleep(QUIET_MS)
  const kubeconfig = plane.kubeconfig('admin')
  const readers = (count: number) => new NodeReaders({ count, kubeconfig, relay })
  await measured({ who: 'one relay', pid: child.pid ?? 0, readers })
  child.kill()
  await once(child, 'exit')
}

function reportDelays(delays: readonly Delay[]): void {
  print(
    `${CALM_CHANGES} changes of one EndpointSlice, ${CALM_MS} ms apart: from the acknowledgement to nodes that read by`,
    delays.map(({ who, nodes, middleMs, lastMs, worstMs }) => ({
      by: who,
      nodes: String(nodes),
      'middle node, p50 ms': middleMs.toFixed(1),
      'last node, p50 ms': lastMs.toFixed(1),
      'last node, max ms': worstMs.toFixed(1),
    })),
  )
}

function report(rows: readonly Row[]): void {
  const [idle] = rows
  const perNode = (all: number, { nodes }: Row, least = 0) =>
    nodes === 0 ? '' : ((all - least) / nodes).toFixed(1)
  print(
    `${SLICES} EndpointSlices with 10 endpoints, each changed once, ${PER_SECOND}/s; nodes read by`,
    rows.map(row => ({
      by: row.who,
      nodes: String(row.nodes),
      'server ms/change': row.serverMsPerChange.toFixed(2),
      'server us/node and change': perNode(
        row.serverMsPerChange * 1e3,
        row,
        (idle?.serverMsPerChange ?? 0) * 1e3,
      ),
      'server bytes/node and change': perNode(row.serverBytesPerChange, row, idle?.serverBytesPerChange),
      'relay us/node and change':
        row.relayMsPerChange === undefined ? '' : perNode(row.relayMsPerChange * 1e3, row),
      'relay bytes/node and change':
        row.relayBytesPerChange === undefined ? '' : perNode(row.relayBytesPerChange, row),
      'node us/change': row.nodeUs.toFixed(1),
      'server ms/node, first state': row.nodes === 0 ? '' : (row.serverListMs / row.nodes).toFixed(1),
      'bytes of it/object': Number.isNaN(row.listBytes) ? '' : (row.listBytes / SLICES).toFixed(0),
      'server KiB/node': row.nodes === 0 ? '' : (row.serverKiB / row.nodes).toFixed(0),
    })),
  )
}

if (process.argv[2] === 'nodes') beNodes()
else await measure()
