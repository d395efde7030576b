import { execFileSync, spawnSync } from 'node:child_process'
import { performance } from 'node:perf_hooks'
import { type ClusterSize, clusterObjects, serviceObject, sliceObject } from './cluster.ts'
import { createIptablesPipeline, overheard } from './pipeline.ts'
import { replay, withoutGeneration } from './replay.ts'
import { childResult, goal, median, print, quantile } from './report.ts'

/*
 * The iptables mode: a full load and a change, against the kernel that replays the very same bytes, and against
 * iptables-nft-restore with the very same rules.
 */

const LOADS: readonly { readonly size: ClusterSize; readonly faster: number }[] = [
  { size: { services: 1_000, endpoints: 10 }, faster: 5 },
  { size: { services: 5_000, endpoints: 2 }, faster: 15 },
]
const LOAD_RUNS = 3
const CHANGED: ClusterSize = { services: 1_000, endpoints: 10 }
const CPU_SIZES: readonly ClusterSize[] = [
  { services: 1_000, endpoints: 3 },
  { services: 10_000, endpoints: 3 },
]
/** kube-proxy 1.36.3 in iptables mode needs 104 CPU seconds for the second one. */
const RESTARTED: readonly ClusterSize[] = [
  { services: 1_000, endpoints: 10 },
  { services: 10_000, endpoints: 2 },
]
const CHANGES = 60
const SERVICE_CHANGES = 10
/** Far enough apart that no change waits for another. */
const SPACING_MS = 5

const [what, services, endpoints] = process.argv.slice(2)
const size: ClusterSize = { services: Number(services), endpoints: Number(endpoints) }
if (what === 'load') await loadOnce(size)
else if (what === 'change') await changeOften(size)
else if (what === 'service') await changeServices(size)
else if (what === 'fill') await fill(size)
else if (what === 'restart') await restart(size)
else compare()

interface LoadResult {
  readonly pipelineMs: number
  /** Of this process meanwhile, in user space. */
  readonly userMs: number
  readonly kernelMs: number
  readonly restoreMs: number
  readonly rules: number
  readonly bytes: number
  readonly datagrams: number
  readonly peakRssMiB: number
}

/** One cold process: objects in memory to committed kernel state; then the same bytes by a bare loop, then by the tool. */
async function loadOnce(size: ClusterSize): Promise<void> {
  const objects: object[] = JSON.parse(JSON.stringify([...clusterObjects(size)]))
  const sent: Uint8Array[] = []
  const pipeline = createIptablesPipeline(transport =>
    overheard(transport, datagram => sent.push(datagram.slice())),
  )
  const before = process.cpuUsage()
  const start = performance.now()
  await pipeline.load(objects)
  const pipelineMs = performance.now() - start
  const userMs = process.cpuUsage(before).user / 1000
  const peakRssMiB = process.resourceUsage().maxRSS / 1024
  const batches = sent.filter(({ length }) => length > 4096).map(withoutGeneration)
  const text = execFileSync('iptables-nft-save', { encoding: 'utf8', maxBuffer: 1 << 30 })
  const times = Array.from({ length: 3 }, () => {
    flush()
    return batches.reduce((sum, batch) => sum + replay(pipeline.transport, batch), 0)
  })
  flush()
  const restoreStart = performance.now()
  const restore = spawnSync('iptables-nft-restore', ['--noflush'], {
    input: text,
    stdio: ['pipe', 'ignore', 'inherit'],
  })
  const restoreMs = performance.now() - restoreStart
  if (restore.status !== 0) throw new Error('iptables-nft-restore failed')
  flush()
  await pipeline.stop()
  const result: LoadResult = {
    pipelineMs,
    userMs,
    kernelMs: median(times),
    restoreMs,
    rules: text.match(/^-A/gm)?.length ?? 0,
    bytes: batches.reduce((sum, { length }) => sum + length, 0),
    datagrams: batches.length,
    peakRssMiB,
  }
  console.log(JSON.stringify(result))
}

function flush(): void {
  execFileSync('nft', ['flush', 'ruleset'])
}

interface RestartResult {
  readonly wholeMs: number
  readonly userMs: number
  readonly systemMs: number
  readonly peakRssMiB: number
}

/** Leaves everything to the next process. */
async function fill(size: ClusterSize): Promise<void> {
  const pipeline = createIptablesPipeline()
  await pipeline.load(clusterObjects(size))
  await pipeline.stop()
  console.log('{}')
}

/** A cold process, objects in memory, and a kernel that holds it all: it is read, compared, and not written to. */
async function restart(size: ClusterSize): Promise<void> {
  const objects: object[] = JSON.parse(JSON.stringify([...clusterObjects(size)]))
  let written = 0
  const pipeline = createIptablesPipeline(transport =>
    overheard(transport, ({ length }) => {
      if (length > LONGEST_REQUEST) written++
    }),
  )
  const before = process.cpuUsage()
  const start = performance.now()
  await pipeline.load(objects)
  const wholeMs = performance.now() - start
  const { user, system } = process.cpuUsage(before)
  const peakRssMiB = process.resourceUsage().maxRSS / 1024
  await pipeline.stop()
  flush()
  if (written > 0) throw new Error(`${written} batches where nothing differs`)
  const result: RestartResult = { wholeMs, userMs: user / 1000, systemMs: system / 1000, peakRssMiB }
  console.log(JSON.stringify(result))
}

/** Bytes of a question to the kernel, at most: a batch has more. */
const LONGEST_REQUEST = 256

interface ChangeResult {
  readonly wholeMs: number[]
  readonly kernelMs: number[]
  /** Of this process, in user space, for one change. */
  readonly userMs: number
  readonly datagrams: number
  readonly bytes: number
}

/** One endpoint more and one less, from event in to commit acknowledged; then the last of these batches over again. */
async function changeOften(size: ClusterSize): Promise<void> {
  let sent: Uint8Array[] = []
  const pipeline = createIptablesPipeline(transport =>
    overheard(transport, datagram => sent.push(datagram.slice())),
  )
  await pipeline.load(clusterObjects(size))
  globalThis.gc?.()
  const wholeMs: number[] = []
  const before = process.cpuUsage()
  let pair: Uint8Array[] = []
  for (let change = 0; change < CHANGES; change++) {
    const service = (change * 7919) % size.services
    pair = []
    for (const count of [size.endpoints + 1, size.endpoints]) {
      sent = []
      wholeMs.push(await timed(() => pipeline.change(sliceObject(service, count))))
      pair.push(...sent.filter(({ length }) => length > 1024).map(withoutGeneration))
    }
  }
  const userMs = process.cpuUsage(before).user / 1000 / (2 * CHANGES)
  const kernelMs = Array.from({ length: CHANGES }, () =>
    pair.map(batch => replay(pipeline.transport, batch)),
  ).flat()
  flush()
  await pipeline.stop()
  const result: ChangeResult = {
    wholeMs,
    kernelMs,
    userMs,
    datagrams: pair.length / 2,
    bytes: pair.reduce((sum, { length }) => sum + length, 0) / 2,
  }
  console.log(JSON.stringify(result))
}

/** A Service gets another port, and its own again: the list of all Services is written anew. */
async function changeServices(size: ClusterSize): Promise<void> {
  let bytes = 0
  const pipeline = createIptablesPipeline(transport =>
    overheard(transport, ({ length }) => {
      bytes += length
    }),
  )
  await pipeline.load(clusterObjects(size))
  globalThis.gc?.()
  bytes = 0
  const wholeMs: number[] = []
  const before = process.cpuUsage()
  for (let change = 0; change < SERVICE_CHANGES; change++) {
    const service = serviceObject((change * 7919) % size.services)
    const text = JSON.stringify(service)
    for (const port of ['"port":81', '"port":80'])
      wholeMs.push(await timed(() => pipeline.change(JSON.parse(text.replace('"port":80', port)))))
  }
  const userMs = process.cpuUsage(before).user / 1000 / wholeMs.length
  flush()
  await pipeline.stop()
  console.log(JSON.stringify({ wholeMs, userMs, bytes: bytes / wholeMs.length }))
}

async function timed(run: () => Promise<void>): Promise<number> {
  const start = performance.now()
  await run()
  const elapsed = performance.now() - start
  await new Promise(resolve => setTimeout(resolve, SPACING_MS))
  return elapsed
}

function compare(): void {
  compareLoads()
  compareRestarts()
  compareChanges()
}

function compareLoads(): void {
  print(
    'objects in memory to committed kernel state, one cold process each, medians',
    LOADS.map(({ size, faster }) => {
      const runs = Array.from({ length: LOAD_RUNS }, () => child<LoadResult>('load', size))
      const pick = (key: keyof LoadResult): number => median(runs.map(run => run[key]))
      const times = median(runs.map(run => run.restoreMs / run.pipelineMs))
      return {
        size: `${size.services} x ${size.endpoints}`,
        rules: pick('rules').toFixed(0),
        'batch MB': (pick('bytes') / 1e6).toFixed(1),
        datagrams: pick('datagrams').toFixed(0),
        'pipeline ms': pick('pipelineMs').toFixed(0),
        'user ms': pick('userMs').toFixed(0),
        'kernel alone ms': pick('kernelMs').toFixed(0),
        ratio: least(median(runs.map(run => run.pipelineMs / run.kernelMs)), 2),
        'iptables-nft-restore ms': pick('restoreMs').toFixed(0),
        'times faster': `${times.toFixed(1)} (goal ${faster} or more: ${times >= faster ? 'met' : 'MISSED'})`,
        'peak RSS MiB': pick('peakRssMiB').toFixed(0),
      }
    }),
  )
}

function compareRestarts(): void {
  print(
    'a cold start where nothing changed: read, compared, not written',
    RESTARTED.map(size => {
      const runs = Array.from({ length: LOAD_RUNS }, () => {
        child('fill', size)
        return child<RestartResult>('restart', size)
      })
      const pick = (key: keyof RestartResult): string => median(runs.map(run => run[key])).toFixed(0)
      return {
        size: `${size.services} x ${size.endpoints}`,
        ms: pick('wholeMs'),
        'user ms': pick('userMs'),
        'system ms': pick('systemMs'),
        'peak RSS MiB': pick('peakRssMiB'),
      }
    }),
  )
}

function compareChanges(): void {
  const one = child<ChangeResult>('change', CHANGED)
  print('one endpoint more or less: event in to commit acknowledged', [
    {
      size: `${CHANGED.services} x ${CHANGED.endpoints}`,
      'p50 ms': quantile(one.wholeMs, 0.5).toFixed(2),
      'p99 ms': quantile(one.wholeMs, 0.99).toFixed(2),
      'kernel alone p50 ms': quantile(one.kernelMs, 0.5).toFixed(2),
      ratio: least(quantile(one.wholeMs, 0.5) / quantile(one.kernelMs, 0.5), 1.5),
      batches: one.datagrams.toFixed(1),
      bytes: one.bytes.toFixed(0),
    },
  ])
  const cpu = CPU_SIZES.map(size => ({ size, ...child<ChangeResult>('change', size) }))
  print(
    'user-space CPU of one change',
    cpu.map(({ size, userMs, wholeMs }) => ({
      size: `${size.services} x ${size.endpoints}`,
      'user ms': userMs.toFixed(2),
      'p50 ms': quantile(wholeMs, 0.5).toFixed(2),
    })),
  )
  const changed = CPU_SIZES.map(size => ({ size, ...child<Omit<ChangeResult, 'kernelMs'>>('service', size) }))
  print(
    'another port of one Service',
    changed.map(({ size, userMs, wholeMs, bytes }) => ({
      size: `${size.services} x ${size.endpoints}`,
      'user ms': userMs.toFixed(2),
      'p50 ms': quantile(wholeMs, 0.5).toFixed(2),
      bytes: bytes.toFixed(0),
    })),
  )
  const [small, large] = cpu
  if (small === undefined || large === undefined) throw new Error('two sizes are compared')
  console.log(`ratio of the two sizes: ${least(large.userMs / small.userMs, 1.5)}`)
}

function child<T>(what: string, size: ClusterSize): T {
  return childResult<T>([what, String(size.services), String(size.endpoints)])
}

function least(value: number, most: number): string {
  return `${value.toFixed(2)} ${goal(value, most)}`
}
