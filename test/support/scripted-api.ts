import { setMaxListeners } from 'node:events'
import {
  type ApiClient,
  ApiError,
  type ApiErrorKind,
  type ApiRequest,
  type ApiResponse,
} from '../../src/source/kube/api-client.ts'

/** An object of the API as a test writes it. */
export type Written = Readonly<Record<string, unknown>> & {
  readonly metadata: Readonly<Record<string, unknown>>
}

export type Kind = 'Service' | 'EndpointSlice' | 'ServiceCIDR' | 'Node'

const KINDS: Readonly<Record<string, { readonly kind: Kind; readonly apiVersion: string }>> = {
  services: { kind: 'Service', apiVersion: 'v1' },
  endpointslices: { kind: 'EndpointSlice', apiVersion: 'discovery.k8s.io/v1' },
  servicecidrs: { kind: 'ServiceCIDR', apiVersion: 'networking.k8s.io/v1' },
  nodes: { kind: 'Node', apiVersion: 'v1' },
}

interface StatusText {
  readonly reason?: string
  readonly message?: string
  readonly causes?: readonly string[]
  readonly retryAfterSeconds?: number
  readonly retryAfterMs?: number
}

/** An API server in memory that answers what the test says, request by request, or by a rule. */
export class ScriptedApi implements ApiClient {
  readonly server = 'https://api.test:6443'
  /** Everything that was ever asked. */
  readonly asked: Asked[] = []
  readonly #rules = new Map<string, (asked: Asked) => void>()
  readonly #open: Asked[] = []

  send(request: ApiRequest): Promise<ApiResponse> {
    // Requests are many and their signals few.
    setMaxListeners(0, request.signal)
    const asked = new Asked(request)
    this.asked.push(asked)
    const rule = this.#rules.get(asked.resource)
    if (rule === undefined) this.#open.push(asked)
    else rule(asked)
    return asked.response
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  /** From now on each request for the resource is answered so; undefined leaves them to take(). */
  answer(resource: string, rule: ((asked: Asked) => void) | undefined): void {
    if (rule === undefined) this.#rules.delete(resource)
    else this.#rules.set(resource, rule)
  }

  /** The oldest request that nobody has taken. */
  take(resource = 'services'): Asked {
    const index = this.#open.findIndex(asked => asked.resource === resource)
    const [asked] = index < 0 ? [] : this.#open.splice(index, 1)
    if (asked === undefined)
      throw new Error(
        `nobody asks for ${resource}; asked were:\n${this.asked.map(each => each.text).join('\n')}`,
      )
    return asked
  }

  /** Requests that nobody has taken or given up. */
  waiting(resource = 'services'): number {
    return this.#open.filter(asked => asked.resource === resource && !asked.request.signal.aborted).length
  }

  count(form: Asked['form'], resource = 'services'): number {
    return this.asked.filter(asked => asked.resource === resource && asked.form === form).length
  }
}

/** A request on its way. */
export class Asked {
  readonly request: ApiRequest
  readonly resource: string
  readonly query: ReadonlyMap<string, string>
  readonly response: Promise<ApiResponse>
  #answer: (response: ApiResponse) => void = () => undefined
  #reject: (error: Error) => void = () => undefined

  constructor(request: ApiRequest) {
    this.request = request
    const url = new URL(request.path, 'https://api.test')
    this.resource = url.pathname.split('/').at(-1) ?? ''
    this.query = new Map(url.searchParams)
    this.response = new Promise((resolve, reject) => {
      this.#answer = resolve
      this.#reject = reject
    })
    // The one who asked hears of it; a test that stops does not.
    this.response.catch(() => undefined)
    request.signal.addEventListener('abort', () => this.fail('aborted', 'aborted'))
  }

  get form(): 'list' | 'watch' | 'streaming list' | 'metadata' {
    if (this.request.accept.includes('PartialObjectMetadataList')) return 'metadata'
    if (this.query.get('watch') !== '1') return 'list'
    return this.query.get('sendInitialEvents') === 'true' ? 'streaming list' : 'watch'
  }

  /** The form and the parameters that tell one list from another. */
  get text(): string {
    const parameters = ['resourceVersion', 'limit', 'continue']
      .filter(name => this.query.has(name))
      .map(name => ` ${name}=${this.query.get(name)}`)
    return this.form + parameters.join('')
  }

  list(objects: readonly Written[], resourceVersion: string, token = ''): void {
    const { kind, apiVersion } = typeOf(this.resource)
    const partial = this.form === 'metadata'
    this.body(
      JSON.stringify({
        kind: partial ? 'PartialObjectMetadataList' : `${kind}List`,
        apiVersion: partial ? 'meta.k8s.io/v1' : apiVersion,
        metadata: { resourceVersion, ...(token === '' ? {} : { continue: token }) },
        items: partial ? objects.map(({ metadata }) => ({ metadata })) : objects,
      }),
    )
  }

  status(code: number, text: StatusText = {}): void {
    this.#answer({
      status: code,
      contentType: 'application/json',
      retryAfterMs: text.retryAfterMs,
      body: whole(JSON.stringify(statusObject(code, text))),
    })
  }

  /** A whole body of status 200. */
  body(text: string | Uint8Array, contentType = 'application/json'): void {
    this.#answer({ status: 200, contentType, retryAfterMs: undefined, body: whole(text) })
  }

  watch(): ScriptedWatch {
    const watch = new ScriptedWatch(this.resource, this.request.signal)
    this.#answer({
      status: 200,
      contentType: 'application/json',
      retryAfterMs: undefined,
      body: watch.body(),
    })
    return watch
  }

  fail(kind: ApiErrorKind, message: string): void {
    this.#reject(new ApiError(kind, message))
  }
}

/** The stream of a watch, written by the test. */
export class ScriptedWatch {
  readonly #resource: string
  readonly #signal: AbortSignal
  readonly #chunks: Uint8Array[] = []
  #end: 'open' | 'closed' | Error = 'open'
  #left = false
  #wake: () => void = () => undefined
  /** Chunks that were read. */
  taken = 0

  constructor(resource: string, signal: AbortSignal) {
    this.#resource = resource
    this.#signal = signal
    signal.addEventListener('abort', () => this.cut('aborted'))
  }

  /** The client has gone away, in whatever way. */
  get isLeft(): boolean {
    return this.#left || this.#signal.aborted
  }

  added(...objects: readonly Written[]): this {
    return this.#events('ADDED', objects)
  }

  modified(...objects: readonly Written[]): this {
    return this.#events('MODIFIED', objects)
  }

  deleted(...objects: readonly Written[]): this {
    return this.#events('DELETED', objects)
  }

  bookmark(resourceVersion: string, annotations: Readonly<Record<string, string>> = {}): this {
    return this.event('BOOKMARK', { ...typeOf(this.#resource), metadata: { resourceVersion, annotations } })
  }

  /** The list that a streaming list begins with is whole. */
  listed(resourceVersion: string): this {
    return this.bookmark(resourceVersion, { 'k8s.io/initial-events-end': 'true' })
  }

  error(code: number, text: StatusText = {}): this {
    return this.event('ERROR', statusObject(code, text))
  }

  event(type: string, object: unknown): this {
    return this.raw(`${JSON.stringify({ type, object })}\n`)
  }

  raw(text: string | Uint8Array): this {
    this.#chunks.push(typeof text === 'string' ? Buffer.from(text) : text)
    this.#wake()
    return this
  }

  close(): void {
    this.#finish('closed')
  }

  cut(kind: ApiErrorKind = 'lost'): void {
    this.#finish(new ApiError(kind, `the stream was ${kind}`))
  }

  async *body(): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        const chunk = this.#chunks.shift()
        if (chunk !== undefined) {
          this.taken++
          yield chunk
        } else if (this.#end instanceof Error) throw this.#end
        else if (this.#end === 'closed') return
        else
          await new Promise<void>(resolve => {
            this.#wake = resolve
          })
      }
    } finally {
      this.#left = true
    }
  }

  #events(type: string, objects: readonly Written[]): this {
    if (objects.length === 0) return this
    return this.raw(objects.map(object => `${JSON.stringify({ type, object })}\n`).join(''))
  }

  #finish(end: 'closed' | Error): void {
    if (this.#end === 'open') this.#end = end
    this.#wake()
  }
}

/** A Service as the API server gives it. */
export function service(name: string, resourceVersion: string | number, more: ServiceText = {}): Written {
  const { uid = `uid-${name}`, ip = '10.0.0.1', ports = [{ port: 80, protocol: 'TCP' }] } = more
  return {
    kind: 'Service',
    apiVersion: 'v1',
    metadata: { namespace: 'ns', name, uid, resourceVersion: String(resourceVersion) },
    spec: { clusterIP: ip, clusterIPs: [ip], ipFamilies: ['IPv4'], ports },
  }
}

interface ServiceText {
  readonly uid?: string
  readonly ip?: string
  readonly ports?: readonly object[]
}

/** Services `s0`, `s1` and so on. */
export function services(count: number, resourceVersion = 10): Written[] {
  return Array.from({ length: count }, (_, index) => service(`s${index}`, resourceVersion))
}

export function slice(name: string, resourceVersion: string | number, addresses: readonly string[]): Written {
  return {
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    metadata: {
      namespace: 'ns',
      name,
      uid: `uid-${name}`,
      resourceVersion: String(resourceVersion),
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    addressType: 'IPv4',
    endpoints: addresses.map(address => ({ addresses: [address], conditions: { ready: true } })),
    ports: [{ name: '', port: 8080, protocol: 'TCP' }],
  }
}

export function node(name: string, resourceVersion: string | number, zone = 'z1'): Written {
  return {
    kind: 'Node',
    apiVersion: 'v1',
    metadata: {
      name,
      uid: `uid-${name}`,
      resourceVersion: String(resourceVersion),
      labels: { 'topology.kubernetes.io/zone': zone },
    },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  }
}

function typeOf(resource: string): { readonly kind: Kind; readonly apiVersion: string } {
  const type = KINDS[resource]
  if (type === undefined) throw new Error(`no resource ${resource}`)
  return type
}

function statusObject(
  code: number,
  { reason = '', message = '', causes = [], retryAfterSeconds }: StatusText,
) {
  return {
    kind: 'Status',
    apiVersion: 'v1',
    status: 'Failure',
    code,
    reason,
    message,
    details: { causes: causes.map(each => ({ reason: each })), retryAfterSeconds },
  }
}

async function* whole(text: string | Uint8Array): AsyncGenerator<Uint8Array> {
  yield typeof text === 'string' ? Buffer.from(text) : text
}
