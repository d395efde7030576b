import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { cpus, release } from 'node:os'
import { performance } from 'node:perf_hooks'
import { finish } from '../../src/base/clock.ts'
import type { IpvsPlane } from '../../src/modes/ipvs/plane.ts'
import { clusterObjects, sliceObject } from '../bench/cluster.ts'
import { createIpvsPipeline, tableOf } from '../bench/pipeline.ts'
import { childResult, goal, median, print, quantile } from '../bench/report.ts'

const LOAD = { services: 1_000, endpoints: 10 }
const LOAD_RUNS = 3
const TIMES_FASTER_MIN = 5
const SIZES = [100, 2_000]
const ENDPOINTS = 5
const CHANGES = 100
const SPACING_MS = 10
const WAYS: readonly Way[] = ['servers and sets', 'state', 'objects']
const SAVED = { servers: '/tmp/ipvsadm-save', sets: '/tmp/ipset-save' }

interface Cost {
  readonly wallMs: number
  readonly cpuMs: number
}

interface ChangeCost {
  readonly us: number[]
  /** Datagrams that were sent for one change. */
  readonly messages: number[]
}

const [, , child, ...words] = process.argv
if (child === 'load') await load(wayOf(words[0]))
else if (child === 'change') await change(Number(words[0]))
else compare()

type Way =
  /** Virtual servers and ipsets, from the state in memory: what the tools restore. */
  | 'servers and sets'
  /** The whole state: rules, device and addresses, too. */
  | 'state'
  /** From objects in memory on. */
  | 'objects'

/** One cold process. What is there is saved for the tools. */
async function load(way: Way): Promise<void> {
  const objects: object[] = JSON.parse(JSON.stringify([...clusterObjects(LOAD)]))
  const pipeline = createIpvsPipeline()
  const { plane } = pipeline
  const wanted = way === 'objects' ? plane.empty : stateOf(plane, objects, way)
  globalThis.gc?.()
  const cpu = process.cpuUsage()
  const began = performance.now()
  if (way === 'objects') await pipeline.load(objects)
  else await write(plane, wanted)
  const wallMs = performance.now() - began
  const { user, system } = process.cpuUsage(cpu)
  if (way === 'servers and sets') save()
  await pipeline.cleanup()
  await pipeline.stop()
  const cost: Cost = { wallMs, cpuMs: (user + system) / 1_000 }
  console.log(JSON.stringify(cost))
}

function stateOf(plane: IpvsPlane, objects: readonly object[], way: Way): IpvsPlane['empty'] {
  const whole = finish(plane.render(tableOf(objects), { base: plane.empty, without: new Set() }))
  if (way === 'state') return whole
  const { ruleset, addresses, device } = plane.empty
  return { ...whole, ruleset, addresses, device }
}

async function write(plane: IpvsPlane, wanted: IpvsPlane['empty']): Promise<void> {
  const { outcome, refusals } = await plane.commit(finish(plane.diff(plane.empty, wanted)), {})
  if (outcome !== 'committed') throw new Error(`${outcome}: ${refusals[0]?.error.message}`)
}

function save(): void {
  writeFileSync(SAVED.servers, command('ipvsadm', ['-S', '-n']))
  writeFileSync(SAVED.sets, command('ipset', ['save']))
}

function command(file: string, args: readonly string[]): string {
  const run = spawnSync(file, args, { encoding: 'utf8', maxBuffer: 1 << 28 })
  if (run.status !== 0) throw new Error(`${file} ${args.join(' ')}: ${run.stderr}`)
  return run.stdout
}

/** One endpoint more, then one less, of Services all over the table; far enough apart that none waits for another. */
async function change(services: number): Promise<void> {
  const pipeline = createIpvsPipeline()
  await pipeline.load(clusterObjects({ services, endpoints: ENDPOINTS }))
  globalThis.gc?.()
  const us: number[] = []
  const messages: number[] = []
  const timed = async (slice: object): Promise<void> => {
    const before = pipeline.datagrams()
    const began = performance.now()
    await pipeline.change(slice)
    us.push((performance.now() - began) * 1_000)
    messages.push(pipeline.datagrams() - before)
    await new Promise(resolve => setTimeout(resolve, SPACING_MS))
  }
  for (let number = 0; number < CHANGES / 2; number++) {
    const service = (number * 7919) % services
    await timed(sliceObject(service, ENDPOINTS + 1))
    await timed(sliceObject(service, ENDPOINTS))
  }
  await pipeline.cleanup()
  await pipeline.stop()
  const result: ChangeCost = { us, messages }
  console.log(JSON.stringify(result))
}

function wayOf(word: string | undefined): Way {
  const way = WAYS.find(each => each === word)
  if (way === undefined) throw new Error(`no such way: ${word}`)
  return way
}

function compare(): void {
  console.log(`Node ${process.versions.node}, ${cpus().length} emulated processors, Linux ${release()}`)
  const [same, state, objects] = WAYS.map(way =>
    Array.from({ length: LOAD_RUNS }, () => childResult<Cost>(['load', way])),
  )
  const theirs = Array.from({ length: LOAD_RUNS }, restore)
  if (same === undefined || state === undefined || objects === undefined) throw new Error('three ways')
  print(`${LOAD.services} Services x ${LOAD.endpoints} to kernel state, medians`, [
    row('ipvsadm -R, ipset restore: virtual servers and ipsets', theirs),
    row('kprobe, the same from the state in memory', same),
    row('kprobe, with rules, device and addresses', state),
    row('kprobe, all of it from objects in memory', objects),
  ])
  tellRatio('the same state: times faster', same, theirs)
  tellRatio('with rules, device and addresses', state, theirs)
  tellRatio('from objects', objects, theirs)
  compareChanges()
}

function tellRatio(words: string, ours: readonly Cost[], theirs: readonly Cost[]): void {
  const ratio = (of: keyof Cost): number =>
    median(theirs.map(cost => cost[of])) / median(ours.map(cost => cost[of]))
  const [wall, cpu] = [ratio('wallMs'), ratio('cpuMs')]
  console.log(`${words}: ${wall.toFixed(1)} ${least(wall)}, of CPU: ${cpu.toFixed(1)} ${least(cpu)}`)
}

function row(by: string, costs: readonly Cost[]): Readonly<Record<string, string>> {
  return {
    by,
    'wall ms': median(costs.map(({ wallMs }) => wallMs)).toFixed(0),
    'CPU ms': median(costs.map(({ cpuMs }) => cpuMs)).toFixed(0),
  }
}

function least(value: number): string {
  return `(goal ${TIMES_FASTER_MIN} or more: ${value >= TIMES_FASTER_MIN ? 'met' : 'MISSED'})`
}

/** The same state by the tools, from what they saved themselves. */
function restore(): Cost {
  const script = `ipvsadm -R < ${SAVED.servers} && ipset restore -exist < ${SAVED.sets}; times`
  const began = performance.now()
  const times = command('sh', ['-c', script])
  const wallMs = performance.now() - began
  command('ipvsadm', ['-C'])
  command('ipset', ['destroy'])
  const children = times.trim().split('\n').at(-1) ?? ''
  const cpuMs = [...children.matchAll(/(\d+)m([\d.]+)s/g)].reduce(
    (sum, [, minutes, seconds]) => sum + Number(minutes) * 60_000 + Number(seconds) * 1_000,
    0,
  )
  return { wallMs, cpuMs }
}

function compareChanges(): void {
  const results = SIZES.map(services => ({
    services,
    ...childResult<ChangeCost>(['change', String(services)]),
  }))
  print(
    'one endpoint more or less: event in to commit acknowledged',
    results.map(({ services, us, messages }) => ({
      services: String(services),
      'p50 us': quantile(us, 0.5).toFixed(0),
      'p99 us': quantile(us, 0.99).toFixed(0),
      'datagrams p50': String(median(messages)),
      'datagrams max': String(Math.max(...messages)),
    })),
  )
  const [small, large] = results
  if (small === undefined || large === undefined) throw new Error('two sizes are compared')
  const ratio = quantile(large.us, 0.5) / quantile(small.us, 0.5)
  console.log(`ratio of the two sizes, p50: ${ratio.toFixed(2)} ${goal(ratio, 1.5)}`)
}
