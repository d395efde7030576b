import { execFileSync } from 'node:child_process'
import { type Bytes, type Listener, measureBytes } from './kube-bytes.ts'
import { type EventCost, measureEvents } from './kube-events.ts'
import { type Load, METHODS, type Method, measureLoad } from './kube-load.ts'
import { type RunningServer, serve, startRealServer, startTestServer } from './kube-server.ts'
import { childResult, goal, median, print } from './report.ts'

const SHAPE = { services: 10_000, endpointsPerService: 10 }
const RUNS = 5
const GOALS = { ms: 350, peakMiB: 60, stallMs: 20 }

const [, bundle = '', role, ...words] = process.argv
if (role === 'serve') await serve({ services: Number(words[0]), endpointsPerService: Number(words[1]) })
else if (role === 'load') await finish(await measureLoad(methodOf(words[0]), words[1] ?? ''))
else if (role === 'events') await finish(await measureEvents(SHAPE))
else if (role === 'bytes')
  await finish(await measureBytes(listenerOf(words[0]), JSON.parse(words[1] ?? ''), SHAPE))
else await compare()

function methodOf(name = ''): Method {
  const method = METHODS.find(one => one === name)
  if (method === undefined) throw new Error(`no such method: ${name}`)
  return method
}

function listenerOf(name = ''): Listener {
  return name === 'kube-proxy' ? name : methodOf(name)
}

/** Whatever a client leaves open does not keep the process. */
async function finish(result: unknown): Promise<never> {
  await new Promise<void>(resolve => process.stdout.write(`${JSON.stringify(result)}\n`, () => resolve()))
  process.exit(0)
}

async function compare(): Promise<void> {
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  printEvents()
  for (const start of [() => startTestServer(bundle, SHAPE), () => startRealServer(SHAPE)]) {
    const server = await start()
    if (server === undefined) {
      console.log('\nskipped: the real API server, which node test/reference/build.mjs builds')
      continue
    }
    try {
      compareLoads(server.name, server.kubeconfig)
      if (server.name === 'kube-apiserver') compareBytes(server)
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

function compareBytes(server: RunningServer): void {
  const listeners = [...METHODS, 'kube-proxy'] as const
  const results = listeners.map(name => ({
    name,
    bytes: childResult<Bytes>(['bytes', name, JSON.stringify(server)]),
  }))
  const theirs = results.at(-1)?.bytes
  const told = (name: Listener, value: number, most: number | undefined): string =>
    name === 'kprobe' && most !== undefined
      ? `${value.toFixed(0)} ${goal(value, Math.round(most))}`
      : value.toFixed(0)
  print(
    'bytes from the kube-apiserver, as they go through the socket',
    results.map(({ name, bytes }) => ({
      by: name,
      'at the start': told(name, bytes.start, theirs?.start),
      'for each change of a slice': told(name, bytes.perChange, theirs?.perChange),
    })),
  )
}

function printEvents(): void {
  const runs = Array.from({ length: 3 }, () => childResult<EventCost>(['events']))
  const pick = (key: keyof EventCost): number => median(runs.map(run => run[key]))
  print('one slice event, bytes to Snapshot, medians of 3', [
    {
      'one by one us': pick('aloneUs').toFixed(0),
      'in bursts of 100 us': pick('inBurstsUs').toFixed(0),
      bytes: pick('bytes').toFixed(0),
    },
  ])
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
