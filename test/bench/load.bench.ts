import { spawnSync } from 'node:child_process'
import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { type ClusterSize, clusterObjects } from './cluster.ts'
import { kubeProxyLayout } from './kube-proxy-layout.ts'
import { createPipeline, overheard } from './pipeline.ts'
import { replay, withoutGeneration } from './replay.ts'
import { childResult, goal, median, print } from './report.ts'

const SIZES: readonly ClusterSize[] = [
  { services: 1_000, endpoints: 10 },
  { services: 10_000, endpoints: 2 },
  { services: 10_000, endpoints: 10 },
  { services: 30_000, endpoints: 3 },
]
const RUNS = 5

interface LoadResult {
  readonly pipelineMs: number
  readonly kernelMs: number
  readonly stallMs: number
  readonly bytes: number
  readonly baseRssMiB: number
  readonly peakRssMiB: number
}

const child = process.argv[2]
if (child === 'load')
  await loadOnce({ services: Number(process.argv[3]), endpoints: Number(process.argv[4]) })
else compare()

/** One cold process: objects in memory to committed kernel state, then the same bytes again by a bare loop. */
async function loadOnce(size: ClusterSize): Promise<void> {
  const objects: object[] = JSON.parse(JSON.stringify([...clusterObjects(size)]))
  globalThis.gc?.()
  const baseRssMiB = process.memoryUsage.rss() / 2 ** 20
  const sent: Uint8Array[] = []
  const pipeline = createPipeline(transport => overheard(transport, datagram => sent.push(datagram.slice())))
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  const start = performance.now()
  await pipeline.load(objects)
  const pipelineMs = performance.now() - start
  delay.disable()
  const largest = sent.reduce((a, b) => (b.length > a.length ? b : a))
  const peakRssMiB = process.resourceUsage().maxRSS / 1024
  const times: number[] = []
  for (let run = 0; run < 3; run++) {
    await pipeline.cleanup()
    times.push(replay(pipeline.transport, withoutGeneration(largest)))
  }
  await pipeline.cleanup()
  await pipeline.stop()
  const result: LoadResult = {
    pipelineMs,
    kernelMs: median(times),
    stallMs: delay.max / 1e6,
    bytes: largest.length,
    baseRssMiB,
    peakRssMiB,
  }
  console.log(JSON.stringify(result))
}

function compare(): void {
  const rows = SIZES.map(size => {
    const runs = Array.from({ length: RUNS }, () =>
      childResult<LoadResult>(['load', String(size.services), String(size.endpoints)]),
    )
    const pick = (key: keyof LoadResult): number => median(runs.map(run => run[key]))
    return {
      size: `${size.services} x ${size.endpoints}`,
      'pipeline ms': pick('pipelineMs').toFixed(0),
      'kernel alone ms': pick('kernelMs').toFixed(0),
      ratio: withGoal(median(runs.map(run => run.pipelineMs / run.kernelMs)), 3),
      'batch MB': (pick('bytes') / 1e6).toFixed(2),
      'longest stall ms': withGoal(pick('stallMs'), 50),
      'RSS before MiB': pick('baseRssMiB').toFixed(0),
      'peak RSS MiB': pick('peakRssMiB').toFixed(0),
    }
  })
  print('objects in memory to committed kernel state, one cold process each, medians', rows)
  const nft = SIZES.slice(0, 2).map(size => againstNft(size))
  print("the same cluster by `nft -f` in kube-proxy's layout, one run", nft)
}

function withGoal(value: number, most: number): string {
  return `${value.toFixed(1)} ${goal(value, most)}`
}

function againstNft(size: ClusterSize): Record<string, string> {
  const ours = median(
    Array.from(
      { length: 3 },
      () => childResult<LoadResult>(['load', String(size.services), String(size.endpoints)]).pipelineMs,
    ),
  )
  const input = [...kubeProxyLayout(size)].join('\n')
  const start = performance.now()
  const run = spawnSync('nft', ['-f', '-'], { input, stdio: ['pipe', 'ignore', 'inherit'] })
  const nftMs = performance.now() - start
  if (run.status !== 0) throw new Error('nft -f failed')
  spawnSync('nft', ['delete', 'table', 'ip', 'kube-proxy'])
  return {
    size: `${size.services} x ${size.endpoints}`,
    'pipeline ms': ours.toFixed(0),
    'nft -f ms': nftMs.toFixed(0),
    'times faster': `${(nftMs / ours).toFixed(0)} (goal at 10000 x 2: 100 or more)`,
  }
}
