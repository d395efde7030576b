import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { vipOf } from '../bench-cluster/objects.ts'
import { firstPacketCosts } from '../bench-cluster/path.ts'
import { POD_GATEWAYS } from '../support/lab/address.ts'
import { serviceObject, sliceObject } from './cluster.ts'
import { createPipeline, overheard } from './pipeline.ts'
import { childResult, goal, median, print } from './report.ts'

/** Services and endpoints of each. */
const SIZES = (process.env.KPROBE_SIZES ?? '1000x10,1000x100')
  .split(',')
  .map(size => size.split('x').map(Number))
/** The index of the Service at the first address of `vipOf`. */
const VIPS_FROM = 256
const POLICIES = ['random', 'maglev'] as const
const CHANGES = 50

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
else if (command === 'packets') await measurePackets()
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
    await pipeline.change(sliceObject(at % services, endpoints, 1 + Math.floor(at / services)))
    changeUs.push((performance.now() - begin) * 1_000)
    changeBytes.push(bytes)
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

/** The first packet of a connection through a Service of each policy, of ten endpoints, from a socket of the node. */
async function measurePackets(): Promise<void> {
  const [gateway = ''] = POD_GATEWAYS
  for (const words of [
    'link add pod0 type veth peer name pod1',
    'link set pod0 up',
    'link set pod1 up',
    `address add ${gateway}/32 dev pod0`,
    'route add 10.0.0.0/8 dev pod0',
  ])
    execFileSync('ip', words.split(' '))
  const pipeline = createPipeline(transport => transport)
  await pipeline.load(
    POLICIES.flatMap((policy, at) => [objectOf(VIPS_FROM + at, policy), sliceObject(VIPS_FROM + at, 10)]),
  )
  console.log(JSON.stringify(firstPacketCosts(POLICIES.map((_, at) => vipOf(at)))))
  await pipeline.cleanup()
  await pipeline.stop()
}

function slabKiB(): number {
  return Number(/^SUnreclaim:\s+(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))?.[1] ?? 0)
}

function compare(): void {
  for (const [services = 0, endpoints = 0] of SIZES) {
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
  const [random = 0, maglev = 0] = childResult<readonly number[]>(['packets'])
  const rate = random / maglev
  const row = {
    'random ns': random.toFixed(0),
    'maglev ns': maglev.toFixed(0),
    'rate of random': `${rate.toFixed(2)} (goal 0.97: ${rate >= 0.97 ? 'met' : 'MISSED'})`,
  }
  print('first packet of a connection, one of ten endpoints', [row])
}
