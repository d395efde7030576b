import { performance } from 'node:perf_hooks'
import { clusterObjects, sliceObject } from './cluster.ts'
import { createPipeline } from './pipeline.ts'
import { childResult, goal, print, quantile } from './report.ts'

const SIZES = [1_000, 30_000]
const ENDPOINTS = 3
const CHANGES = 1_000
/** Far enough apart that no change waits for another. */
const SPACING_MS = 5

interface ChangeResult {
  readonly addUs: number[]
  readonly removeUs: number[]
}

if (process.argv[2] === 'change') await measure(Number(process.argv[3]))
else compare()

/** One endpoint added to and removed from Services all over the table, each from event in to commit acknowledged. */
async function measure(services: number): Promise<void> {
  const pipeline = createPipeline()
  await pipeline.load(clusterObjects({ services, endpoints: ENDPOINTS }))
  globalThis.gc?.()
  const addUs: number[] = []
  const removeUs: number[] = []
  for (let change = 0; change < CHANGES; change++) {
    const service = (change * 7919) % services
    addUs.push(await timed(() => pipeline.change(sliceObject(service, ENDPOINTS + 1))))
    removeUs.push(await timed(() => pipeline.change(sliceObject(service, ENDPOINTS))))
  }
  await pipeline.cleanup()
  await pipeline.stop()
  const result: ChangeResult = { addUs, removeUs }
  console.log(JSON.stringify(result))
}

async function timed(run: () => Promise<void>): Promise<number> {
  const start = performance.now()
  await run()
  const elapsedUs = (performance.now() - start) * 1000
  await new Promise(resolve => setTimeout(resolve, SPACING_MS))
  return elapsedUs
}

function compare(): void {
  const results = SIZES.map(services => ({
    services,
    ...childResult<ChangeResult>(['change', String(services)]),
  }))
  const rows = results.map(({ services, addUs, removeUs }) => ({
    services: String(services),
    'add p50 us': `${quantile(addUs, 0.5).toFixed(0)} ${goal(quantile(addUs, 0.5), 500)}`,
    'add p99 us': quantile(addUs, 0.99).toFixed(0),
    'remove p50 us': `${quantile(removeUs, 0.5).toFixed(0)} ${goal(quantile(removeUs, 0.5), 500)}`,
    'remove p99 us': quantile(removeUs, 0.99).toFixed(0),
  }))
  print('one endpoint added, then removed: event in to commit acknowledged', rows)
  const [small, large] = results
  if (small === undefined || large === undefined) throw new Error('two sizes are compared')
  const ratio = quantile(large.addUs, 0.5) / quantile(small.addUs, 0.5)
  console.log(`ratio of the two sizes, add p50: ${ratio.toFixed(2)} ${goal(ratio, 1.5)}`)
}
