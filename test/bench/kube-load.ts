import { readFileSync, writeFileSync } from 'node:fs'
import { monitorEventLoopDelay, performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { systemClock } from '../../src/base/clock.ts'
import type { ApiClient } from '../../src/source/kube/api-client.ts'
import type { SourceObservation } from '../../src/source/source.ts'

export const METHODS = ['kprobe', 'kprobe, not streamed', 'kprobe, JSON', 'client-node'] as const
export type Method = (typeof METHODS)[number]

/** From nothing to everything known. */
export interface Load {
  readonly ms: number
  readonly cpuMs: number
  /** Of the resident set, above the process with everything imported and nothing asked. */
  readonly peakMiB: number
  /** What stays of it. */
  readonly restMiB: number
  /** Longest time that the event loop did not come round. */
  readonly stallMs: number
  /** Objects known at the end. */
  readonly objects: number
  /** Bytes of bodies, where the method tells them. */
  readonly bodyBytes: number
}

/** A client of an API server that has been asked for nothing yet. */
export interface Loader {
  /** Resolves once everything is known; gives the number of objects. */
  run(): Promise<number>
  readonly bodyBytes: number
  stop(): Promise<void>
}

/** In this process, which should be a fresh one. */
export async function measureLoad(method: Method, kubeconfig: string): Promise<Load> {
  const loader = await openLoader(method, kubeconfig)
  await settled()
  const idleMiB = residentMiB('VmRSS')
  // Forgets the peak so far: proc(5).
  writeFileSync('/proc/self/clear_refs', '5')
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  const cpuBefore = process.cpuUsage()
  const began = performance.now()
  const objects = await loader.run()
  const ms = performance.now() - began
  const { user, system } = process.cpuUsage(cpuBefore)
  // The last slice counts as well: the delay is known when a timer fires after it.
  await sleep(5)
  delay.disable()
  const peakMiB = residentMiB('VmHWM') - idleMiB
  await settled()
  const restMiB = residentMiB('VmRSS') - idleMiB
  await loader.stop()
  const cpuMs = (user + system) / 1_000
  return { ms, cpuMs, peakMiB, restMiB, stallMs: delay.max / 1e6, objects, bodyBytes: loader.bodyBytes }
}

/** As src/main.ts does; only the daemon's own methods know of it. */
function flagsOfTheDaemon(): void {
  setFlagsFromString('--semi-space-growth-factor=1')
}

async function settled(): Promise<void> {
  for (let round = 0; round < 3; round++) {
    globalThis.gc?.()
    await sleep(20)
  }
}

/** A field of proc(5) status, in MiB. */
function residentMiB(field: 'VmRSS' | 'VmHWM'): number {
  const match = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(readFileSync('/proc/self/status', 'utf8'))
  return Number(match?.[1] ?? Number.NaN) / 1_024
}

/** Each loads nothing but what it needs itself. */
export async function openLoader(method: Method, kubeconfig: string): Promise<Loader> {
  if (method === 'client-node') return openInformers(kubeconfig)
  flagsOfTheDaemon()
  const contentType = method === 'kprobe, JSON' ? 'application/json' : PROTOBUF
  return openKprobe(kubeconfig, { contentType, streams: method !== 'kprobe, not streamed' })
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'

interface Asking {
  readonly contentType: string
  /** Lists may be streamed as the beginning of a watch. */
  readonly streams: boolean
}

/** A server that cannot stream lists. */
function unstreaming(client: ApiClient): ApiClient {
  const nothing = {
    [Symbol.asyncIterator]: () => ({ next: async () => ({ done: true, value: undefined }) as const }),
  }
  const refusal = { status: 400, contentType: '', retryAfterMs: 0, body: nothing }
  return {
    server: client.server,
    close: () => client.close(),
    send: request =>
      request.path.includes('sendInitialEvents') ? Promise.resolve(refusal) : client.send(request),
  }
}

async function openKprobe(kubeconfig: string, { contentType, streams }: Asking): Promise<Loader> {
  const { openBenchClient } = await import('./kube-server.ts')
  const { KubeSource } = await import('../../src/source/kube/kube-source.ts')
  const { acceptFor } = await import('../../src/source/kube/wire/encodings.ts')
  const { Intake } = await import('../../src/daemon/intake.ts')
  const client = await openBenchClient(kubeconfig)
  const source = new KubeSource({
    client: streams ? client : unstreaming(client),
    clock: systemClock,
    random: Math.random,
    nodeName: 'node-0',
    serviceProxyName: undefined,
    accept: acceptFor(contentType),
  })
  let bodyBytes = 0
  return {
    get bodyBytes() {
      return bodyBytes
    },
    run: () =>
      new Promise((resolve, reject) => {
        const observed = (observation: SourceObservation) => {
          if (observation.kind === 'listed') bodyBytes += observation.bytes
        }
        const problem = ({ kind, text }: { readonly kind: string; readonly text: string }) => {
          if (kind === 'failed') reject(new Error(text))
        }
        const intake = new Intake({
          handlers: { observed, problem, refusals: list => list.length > 0 && reject(new Error('refused')) },
        })
        intake.deliverTo({ offer: ({ services, sliceByKey }) => resolve(services.size + sliceByKey.size) })
        intake.follow(source).catch(reject)
      }),
    async stop() {
      await source.stop()
      await client.close()
    },
  }
}

/** The package's own informers, one for each of the two large resources, as its documentation shows them. */
async function openInformers(kubeconfig: string): Promise<Loader> {
  const { ADD, CoreV1Api, DiscoveryV1Api, ERROR, KubeConfig, makeInformer } = await import(
    '@kubernetes/client-node'
  )
  const config = new KubeConfig()
  config.loadFromFile(kubeconfig)
  const core = config.makeApiClient(CoreV1Api)
  const discovery = config.makeApiClient(DiscoveryV1Api)
  const services = makeInformer(config, '/api/v1/services', () => core.listServiceForAllNamespaces())
  const slices = makeInformer(config, '/apis/discovery.k8s.io/v1/endpointslices', () =>
    discovery.listEndpointSliceForAllNamespaces(),
  )
  return {
    bodyBytes: 0,
    async run() {
      let objects = 0
      const added = (): void => {
        objects++
      }
      services.on(ADD, added)
      slices.on(ADD, added)
      for (const informer of [services, slices]) informer.on(ERROR, () => undefined)
      await Promise.all([services.start(), slices.start()])
      return objects
    },
    async stop() {
      await Promise.all([services.stop(), slices.stop()])
    },
  }
}
