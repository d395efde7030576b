import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { serviceObject, sliceObject } from './cluster.ts'
import { createPipeline, overheard } from './pipeline.ts'
import { childResult, goal, median, print } from './report.ts'

/** Services and endpoints of each. Arguments replace it: `balance 200 10`. */
const SIZES: readonly (readonly [services: number, endpoints: number])[] = [
  [1_000, 10],
  [1_000, 100],
]
const POLICIES = ['random', 'maglev'] as const
const CHANGES = 50
/** The reconciler rests 250 ms at most after a change: none waits for another. */
const SPACING_MS = 300

interface BalanceResult {
  readonly loadMs: number
  readonly heapMiB: number
  readonly rssMiB: number
  readonly slabMiB: number
  readonly changeUs: readonly number[]
  readonly changeBytes: readonly number[]
}

const [command, policy = '', services = '', endpoints = ''] = process.argv.slice(2)
if (command === 'balance') await measure(policy, Number(services), Number(endpoints))
else compare()

function objectOf(index: number, policy: string): object {
  const object = serviceObject(index)
  const { metadata } = object as { readonly metadata: object }
  return { ...object, metadata: { ...metadata, annotations: { 'kprobe.io/balance': policy } } }
}

function* objects(policy: string, services: number, endpoints: number): IterableIterator<object> {
  for (let index = 0; index < services; index++) {
    yield objectOf(index, policy)
    yield sliceObject(index, endpoints)
  }
}

/** Loads Services, then changes an endpoint of one after the other, from event in to commit acknowledged. */
async function measure(policy: string, services: number, endpoints: number): Promise<void> {
  let bytes = 0
  const pipeline = createPipeline(transport =>
    overheard(transport, datagram => {
      bytes += datagram.length
    }),
  )
  globalThis.gc?.()
  const [heap, slab] = [process.memoryUsage().heapUsed, slabKiB()]
  const start = performance.now()
  await pipeline.load(objects(policy, services, endpoints))
  const loadMs = performance.now() - start
  globalThis.gc?.()
  const { heapUsed, rss } = process.memoryUsage()
  const slabMiB = (slabKiB() - slab) / 1024
  const [changeUs, changeBytes]: [number[], number[]] = [[], []]
  for (let at = 0; at < CHANGES; at++) {
    bytes = 0
    const begin = performance.now()
    await pipeline.change(sliceObject(at % services, endpoints, at % 2 === 0 ? 1 : 0))
    changeUs.push((performance.now() - begin) * 1_000)
    changeBytes.push(bytes)
    await new Promise(resolve => setTimeout(resolve, SPACING_MS))
  }
  await pipeline.cleanup()
  await pipeline.stop()
  const mib = (octets: number) => octets / (1 << 20)
  const result: BalanceResult = {
    loadMs,
    heapMiB: mib(heapUsed - heap),
    rssMiB: mib(rss),
    slabMiB,
    changeUs,
    changeBytes,
  }
  console.log(JSON.stringify(result))
}

function slabKiB(): number {
  return Number(/^SUnreclaim:\s+(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1] ?? 0)
}

function compare(): void {
  const asked = process.argv.slice(2).map(Number)
  const sizes = asked.length === 2 ? [[asked[0] ?? 0, asked[1] ?? 0] as const] : SIZES
  for (const [services, endpoints] of sizes) {
    const results = POLICIES.map(policy => ({
      policy,
      ...childResult<BalanceResult>(['balance', policy, String(services), String(endpoints)]),
    }))
    const rows = results.map(its => ({
      policy: its.policy,
      'load ms': `${its.loadMs.toFixed(0)} ${goal(its.loadMs, 2_000)}`,
      'heap MiB': its.heapMiB.toFixed(1),
      'rss MiB': its.rssMiB.toFixed(0),
      'kernel MiB': its.slabMiB.toFixed(1),
      'change p50 us': `${median(its.changeUs).toFixed(0)} ${goal(median(its.changeUs), 1_000)}`,
      'change octets': median(its.changeBytes).toFixed(0),
    }))
    print(`${services} Services of ${endpoints} endpoints; one endpoint replaced`, rows)
  }
}
