import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { openRelayClient } from '../../src/relay/open.ts'
import { openApiClient } from '../../src/source/kube/client/http-client.ts'
import { KubeSource } from '../../src/source/kube/kube-source.ts'
import type { KubeObject } from '../support/reference/api.ts'
import { findBinaries } from '../support/reference/binaries.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { print } from './report.ts'

/*
 * The constants of docs/scale.md: what one change, one node and one object cost a real API server, a real relay and a node. Nodes are
 * the source of the daemon, many in one process; each has connections of its own.
 */

const SLICES = Number(process.env.KPROBE_SLICES ?? 500)
const PER_SECOND = 50
const COUNTS = (process.env.KPROBE_NODES ?? '50,100,200').split(',').map(Number)
const QUIET_MS = 3_000

interface Task {
  readonly kind: 'open' | 'changes' | 'end'
  readonly count: number
  readonly kubeconfig: string
  /** Undefined for nodes that watch the API server themselves. */
  readonly relay: string | undefined
}

/** Of `open`, bytes of the lists of all; of `changes`, the CPU of all. */
interface Answer {
  readonly listBytes: number
  readonly cpuMs: number
}

/** Many nodes in this process. */
class Nodes {
  readonly #ends: (() => Promise<unknown>)[] = []
  #changes = 0
  #listBytes = 0
  #synced = 0

  async open({ count, kubeconfig, relay }: Task): Promise<Answer> {
    const before = process.cpuUsage()
    for (let index = 0; index < count; index++) await this.#start(index, kubeconfig, relay)
    while (this.#synced < count) await sleep(20)
    this.#changes = 0
    return { listBytes: this.#listBytes, cpuMs: cpuMs(before) }
  }

  async changes(expected: number): Promise<Answer> {
    const before = process.cpuUsage()
    process.send?.('listening')
    while (this.#changes < expected) await sleep(20)
    return { listBytes: 0, cpuMs: cpuMs(before) }
  }

  async end(): Promise<void> {
    await Promise.all(this.#ends.map(end => end()))
  }

  async #start(index: number, kubeconfig: string, relay: string | undefined): Promise<void> {
    const warn = (text: string): void => console.error(text)
    const nodeName = `node-${index}`
    const common = { clock: systemClock, env: {}, warn }
    const kube = await openApiClient({ ...common, kubeconfig, master: '', qps: 0, burst: 10 })
    const client =
      relay === undefined
        ? kube
        : openRelayClient({
            addresses: [relay],
            zone: '',
            fallsBack: false,
            tls: undefined,
            tokenFile: '',
            nodeName,
            proxyName: '',
            kube,
            clock: systemClock,
            say: warn,
          })
    const accept = 'application/vnd.kubernetes.protobuf'
    const clock = systemClock
    const source = new KubeSource({
      client,
      clock,
      random: Math.random,
      nodeName,
      serviceProxyName: undefined,
      accept,
    })
    await source.start({
      events: async batch => {
        this.#changes += batch.filter(({ kind }) => kind === 'EndpointSlice').length
      },
      synced: () => this.#synced++,
      refusals: () => undefined,
      problem: ({ text }) => warn(text),
      observed: news => {
        if (news.kind === 'listed') this.#listBytes += news.bytes
      },
    })
    this.#ends.push(async () => {
      await source.stop()
      await client.close()
    })
  }
}

function cpuMs(before: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1_000
}

function beNodes(): void {
  const nodes = new Nodes()
  process.on('message', async ({ kind, ...task }: Task) => {
    if (kind === 'open') process.send?.(await nodes.open({ kind, ...task }))
    else if (kind === 'changes') process.send?.(await nodes.changes(task.count))
    else await nodes.end().finally(() => process.exit(0))
  })
  process.send?.('ready')
}

/** Nodes of kprobe, in a process of their own. */
class NodeReaders {
  readonly #child = fork(process.argv[1] ?? '', ['nodes'], { execArgv: process.execArgv })
  readonly #ready = once(this.#child, 'message')
  readonly #task: Omit<Task, 'kind'>

  constructor(task: Omit<Task, 'kind'>) {
    this.#task = task
  }

  /** Resolves once all have the whole state, with the bytes of all lists. */
  async open(): Promise<number> {
    await this.#ready
    return (await ask(this.#child, { ...this.#task, kind: 'open' })).listBytes
  }

  /** Resolves once all together have read so many changes, with the milliseconds of processor time for that. */
  async changes(count: number): Promise<number> {
    return (await ask(this.#child, { ...this.#task, kind: 'changes', count })).cpuMs
  }

  async end(): Promise<void> {
    this.#child.send({ ...this.#task, kind: 'end' } satisfies Task)
    await once(this.#child, 'exit')
  }
}

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

async function ask(child: ChildProcess, task: Task): Promise<Answer> {
  child.send(task)
  for (;;) {
    const [answer] = await once(child, 'message')
    if (answer !== 'listening') return answer
  }
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
  for (const count of [0, ...COUNTS]) rows.push(await bench.run(count))
  report(rows)
  rows.push(...(await throughRelay(plane, bench)))
  report(rows)
  await plane.stop()
}

async function throughRelay(plane: ControlPlane, bench: Bench): Promise<readonly Row[]> {
  const relay = `unix://${plane.folder}/bench-relay.sock`
  const command = join(process.env.KPROBE_ROOT ?? '', 'dist/kprobe.mjs')
  const flags = [`--listen=${relay}`, `--kubeconfig=${plane.kubeconfig('proxy')}`]
  const child = spawn(process.execPath, [command, 'relay', ...flags], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  await sleep(QUIET_MS)
  const kubeconfig = plane.kubeconfig('admin')
  const readers = (count: number) => new NodeReaders({ count, kubeconfig, relay })
  const rows: Row[] = []
  for (const count of COUNTS)
    rows.push(await bench.run(count, { who: 'one relay', pid: child.pid ?? 0, readers }))
  child.kill()
  await once(child, 'exit')
  return rows
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
