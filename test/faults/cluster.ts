import { existsSync, writeFileSync } from 'node:fs'
import { get, type RequestOptions } from 'node:http'
import { join } from 'node:path'
import { afterEach } from 'vitest'
import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { ApiServer, type ApiServerOptions } from '../support/apiserver/http-server.ts'
import { resourceOfKind } from '../support/apiserver/resources.ts'
import { keyOf } from '../support/apiserver/store.ts'
import { type Daemon, type DaemonOptions, Daemons } from '../support/daemon.ts'
import type { KubeconfigOptions } from '../support/kubeconfig.ts'
import { Lab } from '../support/lab/lab.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import { type ApiApart, apiServerApart } from './api-apart.ts'
import { differences } from './kernel.ts'

export const HEALTH_PORT = 10256
export const METRICS_PORT = 10249

/** Longest wait for the kernel to hold what the server has, once nothing is wrong any more: a back-off may be due. */
const CONVERGED_MS = 90_000

export interface Answer {
  readonly code: number
  readonly body: string
}

export interface ClusterOptions {
  /** The cluster is the node of a laboratory. */
  readonly packets?: boolean
  /** The API server has another network namespace, and API_ADDRESS. */
  readonly apart?: boolean
  readonly server?: ApiServerOptions
  /** What the server has at first, besides the Node. */
  readonly objects?: readonly object[]
}

interface Parts {
  server: ApiServer
  readonly folder: string
  readonly lab: Lab | undefined
  readonly apart: ApiApart | undefined
}

/** An API server in this process, the node's network namespace, and daemons that live with both. */
export class Cluster {
  readonly #daemons = new Daemons()
  #opened: Parts | undefined

  /** One for all tests of a file, which the test or a hook opens; it closes after each test. */
  static ofEachTest(): Cluster {
    const cluster = new Cluster()
    afterEach(() => cluster.close())
    return cluster
  }

  static async open(options: ClusterOptions = {}): Promise<Cluster> {
    const cluster = new Cluster()
    await cluster.open(options)
    return cluster
  }

  /** Begins in a new network namespace. */
  async open(options: ClusterOptions = {}): Promise<void> {
    const apart = options.apart === true ? await apiServerApart(options.server) : undefined
    const lab = options.packets === true ? await Lab.start() : undefined
    if (lab === undefined) {
      freshNetns()
      ip(['link set lo up'])
    }
    apart?.join()
    const server = apart?.server ?? (await ApiServer.start(options.server))
    this.#opened = { server, folder: this.#daemons.folder(), lab, apart }
    this.put(node(), ...(options.objects ?? []))
    this.configure()
  }

  async close(): Promise<void> {
    await this.#daemons.end()
    const opened = this.#opened
    this.#opened = undefined
    await opened?.server.close()
    await opened?.lab?.close()
    opened?.apart?.close()
  }

  get #parts(): Parts {
    if (this.#opened === undefined) throw new Error('this cluster is closed')
    return this.#opened
  }

  get server(): ApiServer {
    return this.#parts.server
  }

  get lab(): Lab {
    const { lab } = this.#parts
    if (lab === undefined) throw new Error('this cluster has no packets')
    return lab
  }

  get kubeconfig(): string {
    return this.file('kubeconfig')
  }

  /** Path of a file of this name, beside the kubeconfig. */
  file(name: string): string {
    return join(this.#parts.folder, name)
  }

  configure(options: Partial<KubeconfigOptions> = {}): void {
    writeFileSync(this.kubeconfig, this.server.kubeconfig(options))
  }

  /** Another server with the same objects at the same port; the one before ends. */
  async replaceServer(options: ApiServerOptions = {}): Promise<ApiServer> {
    const { store, port, authority = false } = this.server
    await this.server.close()
    this.#parts.server = await ApiServer.start({ store, port, tls: authority, ...options })
    return this.server
  }

  daemon(options: Omit<DaemonOptions, 'source'> = {}): Daemon {
    return this.#daemons.start({ source: { kind: 'kube', kubeconfig: this.kubeconfig }, ...options })
  }

  /** A daemon that has programmed what the server has. */
  async running(options: Omit<DaemonOptions, 'source'> = {}): Promise<Daemon> {
    const daemon = this.daemon(options)
    await daemon.synced()
    return daemon
  }

  /** What an earlier daemon has left in the kernel: all that the server has. */
  async programmedBefore(): Promise<void> {
    await (await this.running()).stop()
  }

  put(...objects: readonly object[]): void {
    for (const object of objects) this.server.store.put(pluralOf(object), { ...object })
  }

  /** Deletes what is of the same kind and name as each of these. */
  remove(...objects: readonly object[]): void {
    for (const object of objects) this.server.store.delete(pluralOf(object), keyOf({ ...object }))
  }

  /** What the server has now. */
  get objects(): readonly object[] {
    const kinds = ['services', 'endpointslices', 'nodes', 'servicecidrs']
    return kinds.flatMap(plural => this.server.store.list(plural))
  }

  /** Resolves with the milliseconds until the kernel holds exactly what the server has. */
  async converged(limitMs = CONVERGED_MS): Promise<number> {
    let left: readonly string[] = []
    try {
      return await eventually(async () => {
        left = await differences(this.objects)
        return left.length === 0
      }, limitMs)
    } catch (cause) {
      throw new Error(`the kernel lacks ${left.length} changes:\n${left.slice(0, 10).join('\n')}`, { cause })
    }
  }

  /** Requests for lists and watches since the n-th request, as `list services` and `watch services`. */
  asked(since = 0): readonly string[] {
    return this.server.log.slice(since).flatMap(({ path, query }) => {
      const plural = /\/(services|endpointslices|nodes|servicecidrs)(\?|$)/.exec(path)?.[1]
      if (plural === undefined) return []
      if (query.get('limit') === '1') return [`revision ${plural}`]
      const streamed = query.get('sendInitialEvents') === 'true'
      return [`${query.has('watch') && !streamed ? 'watch' : 'list'} ${plural}`]
    })
  }
}

/** `/healthz`, `/livez`, `/metrics`, of a daemon in this namespace. Rejects when nobody answers. */
export function ask(path: string, port = HEALTH_PORT, host = '127.0.0.1'): Promise<Answer> {
  return asked({ host, port, path })
}

/** The same of --admin-socket, once it is there: rules do not wait for it. */
export async function askSocket(socketPath: string, path: string): Promise<Answer> {
  await eventually(() => existsSync(socketPath))
  return asked({ socketPath, path })
}

function asked(options: RequestOptions): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = get({ ...options, agent: false, timeout: patientMs(5_000) }, response => {
      let body = ''
      response.on('data', chunk => {
        body += chunk
      })
      response.on('end', () => resolve({ code: response.statusCode ?? 0, body }))
      response.on('error', reject)
    })
    request.on('timeout', () => request.destroy(new Error(`no answer for ${options.path}`)))
    request.on('error', reject)
  })
}

/** Whether this is answered with this code; no answer is none. */
export async function answers(code: number, ...where: Parameters<typeof ask>): Promise<boolean> {
  try {
    return (await ask(...where)).code === code
  } catch {
    return false
  }
}

/** The sum of a metric over its labels; `having` is a part of the labels. Undefined when there is none such. */
export async function metric(name: string, having = ''): Promise<number | undefined> {
  const { body } = await ask('/metrics', METRICS_PORT)
  const values = body.split('\n').flatMap(line => {
    const match = /^([\w:]+)(\{.*\})? (\S+)$/.exec(line)
    return match?.[1] === name && (match[2] ?? '').includes(having) ? [Number(match[3])] : []
  })
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0)
}

/** The Node of the daemon under test. */
export function node(
  change: { readonly spec?: object; readonly labels?: object; readonly ips?: readonly string[] } = {},
): object {
  const { spec = {}, labels = {}, ips = ['192.168.0.2', '2001:db8::2'] } = change
  return {
    kind: 'Node',
    apiVersion: 'v1',
    metadata: { name: NODE_NAME, labels: { 'kubernetes.io/hostname': NODE_NAME, ...labels } },
    spec,
    status: { addresses: ips.map(address => ({ type: 'InternalIP', address })) },
  }
}

function pluralOf(object: object): string {
  const { kind }: ApiObject = { ...object }
  const resource = resourceOfKind(kind)
  if (resource === undefined) throw new Error(`${String(kind)} is no kind of the server`)
  return resource.plural
}
