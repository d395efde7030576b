import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { systemClock } from '../../src/base/clock.ts'
import type { ApiClient } from '../../src/source/kube/api-client.ts'
import { openApiClient } from '../../src/source/kube/client/http-client.ts'
import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { type Changes, drive, replacements } from '../support/apiserver/churn.ts'
import { type ClusterShape, clusterOf, nodeOf, serviceOf, slicesOf } from '../support/apiserver/generator.ts'
import { ApiServer } from '../support/apiserver/http-server.ts'
import { createRandom } from '../support/apiserver/random.ts'
import { kubeconfigText } from '../support/kubeconfig.ts'
import { type Binaries, findBinaries } from '../support/reference/binaries.ts'
import { freePorts } from '../support/reference/ports.ts'
import { startApiServer, startEtcd } from '../support/reference/programs.ts'

/** An API server that holds a cluster, as a process of its own. */
export interface RunningServer {
  readonly name: string
  readonly port: number
  /** Path of one for an administrator. */
  readonly kubeconfig: string
  /** PEM file. */
  readonly certificateAuthority: string
  readonly token: string
  stop(): Promise<void>
}

/** Its objects change on demand: an endpoint of some slice is replaced, so often. */
export interface TestServer extends RunningServer {
  /** The rate lasts until the next call; `once` is a single change, at once. */
  change(perSecond: number | 'once'): void
}

/** What a line of the test API server says once it is ready. */
interface Ready {
  readonly port: number
  readonly caPem: string
}

const TOKEN = 'bench'
const READY_MAX_MS = 120_000
/** The real server takes the first addresses of the range for itself. */
const FIRST_ADDRESS = 256
const NAMESPACES = 50
const REQUESTS = 32

/** The test API server, from this bundle again. */
export async function startTestServer(bundle: string, shape: ClusterShape): Promise<TestServer> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  const { services, endpointsPerService } = shape
  const words = [bundle, 'serve', String(services), String(endpointsPerService)]
  const child = spawn(process.execPath, words, { stdio: ['pipe', 'pipe', 'inherit'] })
  const [line] = await once(createInterface(child.stdout), 'line')
  const { port, caPem }: Ready = JSON.parse(String(line))
  return {
    name: 'test API server',
    port,
    ...credentials(folder, port, caPem),
    change: perSecond => void child.stdin.write(`${perSecond}\n`),
    async stop() {
      const closed = once(child, 'close')
      child.stdin.end()
      await closed
      rmSync(folder, { recursive: true })
    },
  }
}

/**
 * Runs the test API server until standard input ends; each of its lines is a rate of changes. Each object is encoded
 * once, before anybody asks.
 */
export async function serve(shape: ClusterShape): Promise<void> {
  const server = await ApiServer.start({ relay: false })
  for (const { resource, object } of clusterOf(shape)) server.store.create(resource, object)
  const { authority, port } = server
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  const { kubeconfig } = credentials(folder, port, authority?.caPem ?? '')
  await warm(kubeconfig)
  rmSync(folder, { recursive: true })
  console.log(JSON.stringify({ port, caPem: authority?.caPem }))
  await changeByLines(server, replacements({ shape, random: createRandom(1) }))
  await server.close()
}

async function changeByLines({ store }: ApiServer, changes: Changes): Promise<void> {
  let stop: () => void = () => undefined
  for await (const line of createInterface(process.stdin)) {
    stop()
    const next = line === 'once' ? changes.next().value : undefined
    if (next !== undefined) store.put(next.resource, next.object)
    const perSecond = Number(line)
    stop = perSecond > 0 ? drive(changes, { store, clock: systemClock, perSecond }) : () => undefined
  }
  stop()
}

async function warm(kubeconfig: string): Promise<void> {
  const client = await openBenchClient(kubeconfig)
  const media = ['application/vnd.kubernetes.protobuf', 'application/json']
  const paths = ['/api/v1/services', '/apis/discovery.k8s.io/v1/endpointslices']
  for (const path of paths) for (const accept of media) await ask(client, { method: 'GET', path, accept })
  await client.close()
}

/**
 * etcd and kube-apiserver, if they were built. The cluster is put into it once; what etcd wrote then is kept for later
 * runs, each of which works on a copy.
 */
export async function startRealServer(shape: ClusterShape): Promise<RunningServer | undefined> {
  const binaries = findBinaries()
  if (binaries === undefined) return undefined
  const kept = join(dataFolder(), `${shape.services}x${shape.endpointsPerService}`)
  if (!existsSync(kept)) await fill(binaries, shape, kept)
  return await startCopy(binaries, kept)
}

async function fill(binaries: Binaries, shape: ClusterShape, kept: string): Promise<void> {
  console.log(`creating ${shape.services} Services and their slices at the real API server, once`)
  const server = await startCopy(binaries, undefined)
  try {
    const client = await openBenchClient(server.kubeconfig)
    await create(client, objectsOf(shape))
    await client.close()
    await server.quiesce()
    mkdirSync(dataFolder(), { recursive: true })
    const partial = `${kept}.${process.pid}`
    cpSync(join(server.folder, 'etcd'), partial, { recursive: true })
    renameSync(partial, kept)
  } finally {
    await server.stop()
  }
}

function dataFolder(): string {
  return join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'kprobe/reference/bench-data')
}

interface Copy extends RunningServer {
  readonly folder: string
  /** Ends the programs in good order; the folder stays. */
  quiesce(): Promise<void>
}

async function startCopy(binaries: Binaries, kept: string | undefined): Promise<Copy> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  if (kept !== undefined) cpSync(kept, join(folder, 'etcd'), { recursive: true })
  const [port = 0, clientPort = 0, peerPort = 0] = await freePorts(3)
  writeFileSync(join(folder, 'tokens.csv'), `${TOKEN},bench,bench,"system:masters"\n`)
  execFileSync('openssl', [
    'ecparam',
    '-name',
    'prime256v1',
    '-genkey',
    '-noout',
    '-out',
    join(folder, 'sa.key'),
  ])
  // A copy of somebody else's data: members are known by their ports.
  const etcd = startEtcd({ clientPort, peerPort }, { binaries, folder, flags: ['--force-new-cluster'] })
  const place = { port, etcdPort: clientPort, serviceCidrs: '10.96.0.0/12' }
  // Bursts of a bench are no attack.
  const flags = ['--max-requests-inflight=4000', '--max-mutating-requests-inflight=4000']
  const server = startApiServer(place, { binaries, folder, flags })
  const certificate = join(folder, 'apiserver.crt')
  await server.until(() => existsSync(certificate), READY_MAX_MS)
  const paths = credentialsOf(folder, port, certificate)
  await server.until(() => isReady(paths.kubeconfig), READY_MAX_MS)
  const quiesce = async () => {
    await server.stop()
    await etcd.stop()
  }
  return {
    name: 'kube-apiserver',
    port,
    folder,
    ...paths,
    quiesce,
    async stop() {
      await quiesce()
      rmSync(folder, { recursive: true })
    },
  }
}

/** As a real server keeps them: it writes managedFields itself, and gives addresses of its range alone. */
function* objectsOf(shape: ClusterShape): IterableIterator<readonly [path: string, object: ApiObject]> {
  const bare = { ...shape, ballast: false }
  for (let index = 0; index < NAMESPACES; index++) {
    const metadata = { name: `namespace-${index}` }
    yield ['/api/v1/namespaces', { apiVersion: 'v1', kind: 'Namespace', metadata }]
  }
  yield ['/api/v1/nodes', nodeOf('node-0', 0)]
  for (let index = 0; index < shape.services; index++) {
    const place = `namespaces/namespace-${index % NAMESPACES}`
    yield [`/api/v1/${place}/services`, serviceOf(index, bare, { address: FIRST_ADDRESS + index })]
    for (const slice of slicesOf(index, bare))
      yield [`/apis/discovery.k8s.io/v1/${place}/endpointslices`, slice]
  }
}

async function create(
  client: ApiClient,
  objects: IterableIterator<readonly [path: string, object: ApiObject]>,
): Promise<void> {
  const worker = async (): Promise<void> => {
    for (let next = objects.next(); next.done !== true; next = objects.next()) {
      const [path, object] = next.value
      await ask(client, { method: 'POST', path, body: JSON.stringify(object) })
    }
  }
  // The namespaces first: everything else lies in them.
  for (let index = 0; index <= NAMESPACES; index++) {
    const [path, object] = objects.next().value ?? []
    if (path !== undefined) await ask(client, { method: 'POST', path, body: JSON.stringify(object) })
  }
  await Promise.all(Array.from({ length: REQUESTS }, worker))
}

export interface Asked {
  readonly method: 'GET' | 'POST' | 'PATCH'
  readonly path: string
  readonly accept?: string
  readonly body?: string
  readonly contentType?: string
}

/** Reads the answer to its end. Throws when it is no success. */
export async function ask(client: ApiClient, asked: Asked): Promise<void> {
  const { signal } = new AbortController()
  const accept = asked.accept ?? 'application/vnd.kubernetes.protobuf'
  const { status, body } = await client.send({ ...asked, accept, idleMs: 60_000, longLived: false, signal })
  const pieces: Uint8Array[] = []
  for await (const piece of body) if (status >= 300) pieces.push(piece)
  if (status >= 300) throw new Error(`${asked.method} ${asked.path}: ${status} ${Buffer.concat(pieces)}`)
}

export function openBenchClient(kubeconfig: string): Promise<ApiClient> {
  return openApiClient({
    kubeconfig,
    master: '',
    qps: 0,
    burst: 0,
    clock: systemClock,
    env: {},
    warn: () => undefined,
  })
}

async function isReady(kubeconfig: string): Promise<boolean> {
  const client = await openBenchClient(kubeconfig)
  try {
    await ask(client, { method: 'GET', path: '/readyz' })
    return true
  } catch {
    return false
  } finally {
    await client.close()
  }
}

function credentials(folder: string, port: number, caPem: string) {
  const certificateAuthority = join(folder, 'ca.pem')
  writeFileSync(certificateAuthority, caPem)
  return credentialsOf(folder, port, certificateAuthority)
}

function credentialsOf(folder: string, port: number, certificateAuthority: string) {
  const kubeconfig = join(folder, `kubeconfig-${port}`)
  writeKubeconfig(kubeconfig, { port, certificateAuthority, token: TOKEN })
  return { kubeconfig, certificateAuthority, token: TOKEN }
}

export function writeKubeconfig(
  path: string,
  server: Pick<RunningServer, 'port' | 'certificateAuthority' | 'token'>,
): void {
  const { port, certificateAuthority: caFile, token } = server
  writeFileSync(path, kubeconfigText({ server: `https://127.0.0.1:${port}`, caFile, token }))
}
