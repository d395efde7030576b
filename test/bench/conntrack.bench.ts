import { spawnSync } from 'node:child_process'
import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { finish, processCpuMs, systemClock } from '../../src/base/clock.ts'
import { type FlowEvent, FlowReconciler } from '../../src/flows/flow-reconciler.ts'
import { type ConntrackClient, createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import type { FlowProtocol } from '../../src/kernel/conntrack/flow.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject } from '../../src/model/parse.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../src/model/snapshot.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { resolveOptionsOf } from '../support/pipeline.ts'
import { type Entry, entry, inject } from '../unit/kernel/conntrack/flows.ts'
import { childResult, goal, median, print } from './report.ts'

const SIZES = [100_000, 250_000, 500_000, 1_000_000]
const SHAPES = [
  'one VIP, 100 stale',
  'one VIP, 300 stale',
  'all flows stale',
  'start: everything is looked at',
  'TCP: 300 attempts without an answer',
] as const
type Shape = (typeof SHAPES)[number]
const protocolOf = (shape: Shape): FlowProtocol => (shape.startsWith('TCP') ? 'TCP' : 'UDP')
const RUNS = 3
const RSS_MIB_MAX = 64

interface PassResult {
  readonly taken: number
  readonly deleted: number
  readonly examined: number
  readonly ms: number
  readonly cpuMs: number
  readonly stallMs: number
  readonly rssMiB: number
  readonly listMs: number
  readonly toolMs: number
}

const openTransport = () => openNetlink({ protocol: NETLINK_NETFILTER })
const [A, B] = ['10.200.0.1', '10.200.0.2']

if (process.argv[2] === 'pass') await measure(Number(process.argv[3]), Number(process.argv[4]))
else compare()

/** A cold process whose DNS Service loses one of two endpoints, with so many flows in the kernel. */
async function measure(entries: number, shapeIndex: number): Promise<void> {
  const shape = SHAPES[shapeIndex] ?? SHAPES[0]
  // Children share the network namespace of the benchmark.
  spawnSync('conntrack', ['-F'], { stdio: 'ignore' })
  const injector = openTransport()
  const taken = inject(injector, entriesOf(entries, shape))
  const client = createConntrackClient({ openTransport, clock: systemClock })
  const listMs = await naiveList(client)
  const toolMs = timed(() =>
    spawnSync('conntrack', ['-D', '-p', 'udp', '--orig-dst', '192.0.2.1'], { stdio: 'ignore' }),
  )
  const events: FlowEvent[] = []
  const flows = new FlowReconciler({
    client,
    clock: systemClock,
    random: Math.random,
    report: event => events.push(event),
  })
  const protocol = protocolOf(shape)
  const before = resolved(undefined, [service(protocol), slice([A, B], protocol)])
  if (!shape.startsWith('start')) {
    flows.offer(before.snapshot, before.table)
    if (protocol === 'UDP') await next(events)
  }
  const after = resolved(before, [slice([B], protocol)])
  globalThis.gc?.()
  const rss = process.memoryUsage.rss()
  const peak = watchRss()
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  await new Promise(done => setTimeout(done, 50))
  delay.reset()
  const cpuStartMs = processCpuMs()
  flows.offer(after.snapshot, after.table)
  const seen = protocol === 'TCP' ? await next(events) : undefined
  const event = await next(events)
  const cpuMs = processCpuMs() - cpuStartMs
  const stallMs = delay.max / 1e6
  await flows.stop()
  await Promise.all([client.close(), injector.close()])
  const { examined } = event
  const ms = event.durationMs + (seen?.durationMs ?? 0)
  const deleted = event.deleted + event.halfOpen
  const result: PassResult = {
    taken,
    deleted,
    examined,
    ms,
    cpuMs,
    stallMs,
    rssMiB: (peak() - rss) / 2 ** 20,
    listMs,
    toolMs,
  }
  console.log(JSON.stringify(result))
}

function* entriesOf(entries: number, shape: Shape): Generator<Entry> {
  const stale = shape === 'all flows stale' ? entries : Number(/\d+/.exec(shape)?.[0] ?? 300)
  const protocol = protocolOf(shape)
  const isHalfOpen = protocol === 'TCP'
  for (let n = 0; n < entries; n++) {
    const from = `10.${1 + (n >> 16)}.${(n >> 8) & 255}.${n & 255}:4000`
    if (n < stale) yield entry(from, '10.96.0.10:53', `${A}:1053`, { protocol, isHalfOpen })
    else yield entry(from, `10.97.${(n >> 8) & 255}.${n & 255}:53`, undefined, { protocol })
  }
}

/** As a cleanup without filters begins: everything as objects. */
async function naiveList(client: ConntrackClient): Promise<number> {
  let count = 0
  const start = performance.now()
  await client.dump({ family: 'IPv4', protocol: 'UDP' }, { isWanted: () => true, visit: () => count++ })
  return performance.now() - start
}

function timed(run: () => unknown): number {
  const start = performance.now()
  run()
  return performance.now() - start
}

async function next(events: FlowEvent[]): Promise<Extract<FlowEvent, { kind: 'reconciled' }>> {
  for (;;) {
    const event = events.shift()
    if (event?.kind === 'reconciled') return event
    if (event?.kind === 'failed') throw event.error
    await new Promise(done => setTimeout(done, 2))
  }
}

/** The most memory the process had until the result is called. */
function watchRss(): () => number {
  let most = process.memoryUsage.rss()
  const look = () => {
    most = Math.max(most, process.memoryUsage.rss())
  }
  const timer = setInterval(look, 5)
  return () => {
    clearInterval(timer)
    look()
    return most
  }
}

function service(protocol: FlowProtocol): object {
  const ports = [{ name: 'dns', port: 53, protocol }]
  const metadata = { namespace: 'kube-system', name: 'kube-dns' }
  return { apiVersion: 'v1', kind: 'Service', metadata, spec: { clusterIP: '10.96.0.10', ports } }
}

function slice(addresses: readonly string[], protocol: FlowProtocol): object {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'kube-system',
      name: 'kube-dns-a',
      labels: { 'kubernetes.io/service-name': 'kube-dns' },
    },
    addressType: 'IPv4',
    endpoints: addresses.map(address => ({ addresses: [address], conditions: { ready: true } })),
    ports: [{ name: 'dns', port: 1053, protocol }],
  }
}

function resolved(previous: Resolved | undefined, objects: readonly object[]): Resolved {
  const events: SourceEvent[] = []
  for (const object of objects) {
    const event = parseObject(object)
    if (event === undefined || isRefusal(event)) throw new Error('an object of this benchmark is refused')
    events.push(event)
  }
  const snapshot = applyEvents(previous?.snapshot ?? EMPTY_SNAPSHOT, events)
  return finish(resolve(resolveOptionsOf({}), previous, snapshot))
}

function compare(): void {
  const most = Number(
    spawnSync('sysctl', ['-n', 'net.netfilter.nf_conntrack_max'], { encoding: 'utf8' }).stdout,
  )
  const sizes = SIZES.filter(size => size <= most)
  for (const size of SIZES.filter(each => each > most))
    console.log(`${size} entries: not measured, nf_conntrack_max is ${most} and the whole machine's`)
  let isOver = false
  for (const size of sizes) {
    const rows = SHAPES.map((shape, index) => {
      const runs = Array.from({ length: RUNS }, () =>
        childResult<PassResult>(['pass', String(size), String(index)]),
      )
      const pick = (key: keyof PassResult): number => median(runs.map(run => run[key]))
      isOver ||= pick('rssMiB') > RSS_MIB_MAX
      return {
        change: shape,
        'pass ms': pick('ms').toFixed(0),
        'CPU ms': pick('cpuMs').toFixed(0),
        examined: pick('examined').toFixed(0),
        deleted: pick('deleted').toFixed(0),
        'longest stall ms': pick('stallMs').toFixed(0),
        'RSS growth MiB': `${pick('rssMiB').toFixed(1)} ${goal(pick('rssMiB'), RSS_MIB_MAX)}`,
        'list all ms': pick('listMs').toFixed(0),
        'conntrack -D of none ms': pick('toolMs').toFixed(0),
        'tool / pass': (pick('toolMs') / pick('ms')).toFixed(1),
      }
    })
    print(`one endpoint is gone, ${size} entries in the kernel, medians of ${RUNS} cold processes`, rows)
  }
  if (isOver) throw new Error(`memory grew by more than ${RSS_MIB_MAX} MiB`)
}
