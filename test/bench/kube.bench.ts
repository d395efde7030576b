import { execFileSync } from 'node:child_process'
import { type Load, METHODS, type Method, measureLoad } from './kube-load.ts'
import { serve, startRealServer, startTestServer } from './kube-server.ts'
import { childResult, goal, median, print } from './report.ts'

const SHAPE = { services: 10_000, endpointsPerService: 10 }
const RUNS = 5
const GOALS = { ms: 350, peakMiB: 60, stallMs: 20 }

const [, bundle = '', role, ...words] = process.argv
if (role === 'serve') await serve({ services: Number(words[0]), endpointsPerService: Number(words[1]) })
else if (role === 'load') await finish(await measureLoad(methodOf(words[0]), words[1] ?? ''))
else await compare()

function methodOf(name = ''): Method {
  const method = METHODS.find(one => one === name)
  if (method === undefined) throw new Error(`no such method: ${name}`)
  return method
}

/** Whatever a client leaves open does not keep the process. */
async function finish(result: unknown): Promise<never> {
  await new Promise<void>(resolve => process.stdout.write(`${JSON.stringify(result)}\n`, () => resolve()))
  process.exit(0)
}

async function compare(): Promise<void> {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  for (const start of [() => startTestServer(bundle, SHAPE), () => startRealServer(SHAPE)]) {
    const server = await start()
    if (server === undefined) {
      console.log('\nskipped: the real API server, which node test/reference/build.mjs builds')
      continue
    }
    try {
      compareLoads(server.name, server.kubeconfig)
    } finally {
      await server.stop()
    }
  }
}

function compareLoads(server: string, kubeconfig: string): void {
  const loads = METHODS.map(method => ({ method, load: typical(method, kubeconfig) }))
  const theirs = loads.at(-1)?.load
  const what = `${SHAPE.services} Services and slices x ${SHAPE.endpointsPerService} from the ${server}`
  print(
    `${what}: list to Snapshot, a fresh process each, medians of ${RUNS}`,
    loads.map(({ method, load }) => ({
      by: method,
      ms: figure(method, load, 'ms'),
      'CPU ms': load.cpuMs.toFixed(0),
      'peak above idle MiB': figure(method, load, 'peakMiB'),
      'of it kept': load.restMiB.toFixed(0),
      'longest stall ms': figure(method, load, 'stallMs'),
      MB: load.bodyBytes === 0 ? '' : (load.bodyBytes / 1e6).toFixed(1),
      'client-node takes': theirs === undefined ? '' : `${(theirs.ms / load.ms).toFixed(1)} times as long`,
    })),
  )
}

function figure(method: Method, load: Load, key: keyof typeof GOALS): string {
  const text = load[key].toFixed(key === 'stallMs' ? 1 : 0)
  return method === 'kprobe' ? `${text} ${goal(load[key], GOALS[key])}` : text
}

function typical(method: Method, kubeconfig: string): Load {
  const runs = Array.from({ length: RUNS }, () => childResult<Load>(['load', method, kubeconfig]))
  const pick = (key: keyof Load): number => median(runs.map(run => run[key]))
  return {
    ms: pick('ms'),
    cpuMs: pick('cpuMs'),
    peakMiB: pick('peakMiB'),
    restMiB: pick('restMiB'),
    stallMs: pick('stallMs'),
    objects: pick('objects'),
    bodyBytes: pick('bodyBytes'),
  }
}
