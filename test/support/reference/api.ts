import { Agent, request } from 'node:https'
import { text } from 'node:stream/consumers'
import { patientMs } from '../patience.ts'

/** An object of the API in its JSON form. */
export interface KubeObject {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: ObjectName & Readonly<Record<string, unknown>>
  readonly [field: string]: unknown
}

interface ObjectName {
  readonly name: string
  readonly namespace?: string
}

interface ApiOptions {
  /** A unix socket that leads to the server: see openOutlet. */
  readonly socketPath: string
  /** PEM; the server's own certificate will do. */
  readonly ca: string
  readonly token: string
}

export interface Reply {
  readonly status: number
  readonly body: unknown
}

interface Exchange {
  readonly method: string
  readonly path: string
  readonly body?: unknown
  readonly contentType?: string
  readonly timeoutMs?: number
}

/** The server said no. */
export class ApiRefusal extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.name = 'ApiRefusal'
    this.status = status
  }
}

const CONNECTIONS = 8
const REQUEST_MAX_MS = 30_000
const READY_ANSWER_MS = 3_000
const MERGE_PATCH = 'application/merge-patch+json'

const PATHS: Readonly<Record<string, string>> = {
  Service: 'services',
  EndpointSlice: 'endpointslices',
  ServiceCIDR: 'servicecidrs',
  Node: 'nodes',
  Pod: 'pods',
  Namespace: 'namespaces',
  ServiceAccount: 'serviceaccounts',
  ClusterRole: 'clusterroles',
  ClusterRoleBinding: 'clusterrolebindings',
  ConfigMap: 'configmaps',
  DaemonSet: 'daemonsets',
  Deployment: 'deployments',
  NetworkPolicy: 'networkpolicies',
  PodDisruptionBudget: 'poddisruptionbudgets',
}

/** What tests do to objects of an API server, over eight connections at once. */
export class Api {
  readonly #options: ApiOptions
  readonly #agent: Agent

  constructor(options: ApiOptions) {
    this.#options = options
    this.#agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS, ca: options.ca })
  }

  /** Path and query; the body is sent as JSON. Resolves with any status. */
  async send(method: string, path: string, body?: unknown, contentType = 'application/json'): Promise<Reply> {
    const { status, text: words } = await this.#exchange({ method, path, body, contentType })
    return { status, body: words.startsWith('{') ? JSON.parse(words) : words }
  }

  /** Creates it; a status is patched in afterwards, since a POST drops it. Throws ApiRefusal. */
  async create(object: KubeObject): Promise<KubeObject> {
    const created = await this.#expect('POST', collectionPath(object), object)
    return (await this.#patchStatus(object)) ?? created
  }

  /** Creates it, or makes an object of this name what is given. Throws ApiRefusal. */
  async put(object: KubeObject): Promise<KubeObject> {
    const path = objectPath(object)
    const { status, body } = await this.send('GET', path)
    if (status === 404) return this.create(object)
    const resourceVersion = metadataOf(body).resourceVersion
    const replaced = await this.#expect('PUT', path, {
      ...object,
      metadata: { ...object.metadata, resourceVersion },
    })
    return (await this.#patchStatus(object)) ?? replaced
  }

  /** What the server would make of it; nothing is created. Unknown and duplicate fields are refused. Throws ApiRefusal. */
  async check(object: KubeObject): Promise<KubeObject> {
    return this.#expect('POST', `${collectionPath(object)}?dryRun=All&fieldValidation=Strict`, object)
  }

  /** A merge patch of an object that is there. Throws ApiRefusal. */
  async patch(object: KubeObject, change: object): Promise<KubeObject> {
    return this.#expect('PATCH', objectPath(object), change, MERGE_PATCH)
  }

  async get(apiVersion: string, kind: string, name: ObjectName): Promise<KubeObject> {
    return this.#expect('GET', objectPath({ apiVersion, kind, metadata: { ...name } }))
  }

  /** True when there was one. */
  async remove(apiVersion: string, kind: string, name: ObjectName): Promise<boolean> {
    const { status, body } = await this.send(
      'DELETE',
      objectPath({ apiVersion, kind, metadata: { ...name } }),
      {
        propagationPolicy: 'Background',
        gracePeriodSeconds: 0,
      },
    )
    if (status >= 300 && status !== 404) throw refusal(status, `DELETE ${kind} ${name.name}`, body)
    return status !== 404
  }

  list(apiVersion: string, kind: string): Promise<readonly KubeObject[]> {
    return this.listAt(`${root(apiVersion)}/${plural(kind)}`, apiVersion, kind)
  }

  /** With a path and query of one's own. Items of a list have neither apiVersion nor kind by themselves. */
  async listAt(path: string, apiVersion: string, kind: string): Promise<readonly KubeObject[]> {
    const { status, body } = await this.send('GET', path)
    if (status !== 200 || !isList(body)) throw refusal(status, `GET ${path}`, body)
    return body.items.map(item => ({ ...item, apiVersion, kind }))
  }

  /** Runs over many at once, eight at a time; in order otherwise. */
  async each<T>(values: Iterable<T>, run: (value: T) => Promise<unknown>): Promise<void> {
    const iterator = values[Symbol.iterator]()
    const worker = async (): Promise<void> => {
      for (let next = iterator.next(); next.done !== true; next = iterator.next()) await run(next.value)
    }
    await Promise.all(Array.from({ length: CONNECTIONS }, worker))
  }

  close(): void {
    this.#agent.destroy()
  }

  async #patchStatus(object: KubeObject): Promise<KubeObject | undefined> {
    const { status } = object
    if (status === undefined) return undefined
    const path = `${objectPath(object)}/status`
    return this.#expect('PATCH', path, { status }, MERGE_PATCH)
  }

  async #expect(method: string, path: string, sent?: unknown, contentType?: string): Promise<KubeObject> {
    const { status, body } = await this.send(method, path, sent, contentType)
    if (status >= 300 || !isObject(body)) throw refusal(status, `${method} ${path}`, body)
    return body
  }

  /**
   * What keeps the server from being ready; undefined when it is. A question that is not answered is asked again: one to a
   * server that is still starting may never be.
   */
  async notReadyYet(): Promise<string | undefined> {
    const asked = this.#exchange({ method: 'GET', path: '/readyz?verbose', timeoutMs: READY_ANSWER_MS })
    return await asked.then(
      ({ status, text: words }) => (status === 200 ? undefined : `${status} ${failedChecks(words)}`),
      error => String(error),
    )
  }

  #exchange({ method, path, body, contentType, timeoutMs = REQUEST_MAX_MS }: Exchange) {
    const { socketPath, token } = this.#options
    const payload = body === undefined ? undefined : JSON.stringify(body)
    return new Promise<{ readonly status: number; readonly text: string }>((resolve, reject) => {
      const sent = request({
        socketPath,
        path,
        method,
        agent: this.#agent,
        // The certificate is for addresses, and a unix socket has none.
        checkServerIdentity: () => undefined,
        headers: {
          host: '127.0.0.1',
          authorization: `Bearer ${token}`,
          accept: 'application/json',
          ...(payload === undefined
            ? {}
            : { 'content-type': contentType, 'content-length': Buffer.byteLength(payload) }),
        },
        timeout: patientMs(timeoutMs),
      })
      sent.on('timeout', () => sent.destroy(new Error(`${method} ${path}: no answer`)))
      sent.on('error', reject)
      sent.on('response', response => {
        text(response).then(words => resolve({ status: response.statusCode ?? 0, text: words }), reject)
      })
      sent.end(payload)
    })
  }
}

/** Lines of /readyz: `[+]ping ok`, `[-]etcd failed: reason withheld`. */
function failedChecks(words: string): string {
  return words
    .split('\n')
    .filter(line => line.startsWith('[-]'))
    .join(' ')
}

function refusal(status: number, what: string, body: unknown): ApiRefusal {
  const message = isRecord(body) ? body.message : body
  return new ApiRefusal(status, `${what}: ${status} ${message}`)
}

export function objectPath(object: KubeObject): string {
  return `${collectionPath(object)}/${object.metadata.name}`
}

function collectionPath({ apiVersion, kind, metadata: { namespace } }: KubeObject): string {
  const middle = namespace === undefined ? '' : `/namespaces/${namespace}`
  return `${root(apiVersion)}${middle}/${plural(kind)}`
}

function root(apiVersion: string): string {
  return apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`
}

function plural(kind: string): string {
  const path = PATHS[kind]
  if (path === undefined) throw new Error(`no path is known for a ${kind}`)
  return path
}

function metadataOf(value: unknown): Readonly<Record<string, unknown>> {
  return isRecord(value) && isRecord(value.metadata) ? value.metadata : {}
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null
}

export function isObject(value: unknown): value is KubeObject {
  return isRecord(value) && typeof value.kind === 'string' && isRecord(value.metadata)
}

function isList(value: unknown): value is { readonly items: readonly KubeObject[] } {
  return isRecord(value) && Array.isArray(value.items)
}
