import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type ClusterShape, sliceOf } from '../support/apiserver/generator.ts'
import { findBinaries } from '../support/reference/binaries.ts'
import { Program } from '../support/reference/process.ts'
import { Forwarder } from '../support/reference/relay.ts'
import { type Method, openLoader } from './kube-load.ts'
import { ask, openBenchClient, type RunningServer, writeKubeconfig } from './kube-server.ts'
import { proxyFlags } from './proxy-flags.ts'

/** Bytes from the API server as they go through a socket, TLS and all. */
export interface Bytes {
  readonly start: number
  readonly perChange: number
}

export type Listener = Method | 'kube-proxy'

const CHANGES = 100
/** Nothing came for so long: that was all. */
const QUIET_MS = 2_000
const START_MAX_MS = 60_000

export async function measureBytes(
  listener: Listener,
  server: Pick<RunningServer, 'port' | 'kubeconfig' | 'certificateAuthority' | 'token'>,
  shape: ClusterShape,
): Promise<Bytes> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  const relay = await Forwarder.start({ listen: { port: 0 }, dial: { port: server.port } })
  const kubeconfig = join(folder, 'kubeconfig')
  writeKubeconfig(kubeconfig, { ...server, port: relay.port })
  const stop = await listen(listener, kubeconfig, folder)
  const start = await quiet(relay)
  await change(server.kubeconfig, shape)
  const perChange = ((await quiet(relay)) - start) / CHANGES
  await stop()
  rmSync(folder, { recursive: true })
  return { start, perChange }
}

async function listen(listener: Listener, kubeconfig: string, folder: string): Promise<() => Promise<void>> {
  if (listener !== 'kube-proxy') {
    const loader = await openLoader(listener, kubeconfig)
    await loader.run()
    return () => loader.stop()
  }
  const args = proxyFlags({ kubeconfig })
  const file = findBinaries()?.kubeProxy ?? ''
  const program = new Program({ name: 'kube-proxy', file, args, log: join(folder, 'kube-proxy.log') })
  return () => program.stop('SIGKILL')
}

/** So many slices get other endpoints each, which none of an earlier process had. */
async function change(kubeconfig: string, shape: ClusterShape): Promise<void> {
  const client = await openBenchClient(kubeconfig)
  const first = 4_000_000 + ((process.pid * 1_009) % 4_000_000)
  for (let index = 0; index < CHANGES; index++) {
    const pods = Array.from({ length: shape.endpointsPerService }, (_, slot) => first + index * 100 + slot)
    const { endpoints, metadata } = sliceOf(index, { number: 0, pods, ballast: false })
    const { name, namespace } = { name: '', namespace: '', ...Object(metadata) }
    await ask(client, {
      method: 'PATCH',
      path: `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices/${name}`,
      body: JSON.stringify({ endpoints }),
      contentType: 'application/merge-patch+json',
    })
  }
  await client.close()
}

/** Gives the bytes so far, once there have been some and no more come. */
async function quiet(relay: Forwarder): Promise<number> {
  const end = performance.now() + START_MAX_MS
  let bytes = relay.receivedBytes
  let sinceMs = performance.now()
  while (bytes === 0 || performance.now() - sinceMs < QUIET_MS) {
    if (performance.now() > end) throw new Error('bytes never stop coming')
    await sleep(50)
    if (relay.receivedBytes === bytes) continue
    bytes = relay.receivedBytes
    sinceMs = performance.now()
  }
  return bytes
}
