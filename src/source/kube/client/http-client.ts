import type { LookupFunction } from 'node:net'
import type { Clock } from '../../../base/clock.ts'
import {
  type ApiClient,
  ApiError,
  type ApiRequest,
  type ApiResponse,
  type CredentialsEnd,
} from '../api-client.ts'
import { type Answer, type HttpConnection, parseRetryAfter } from './answer.ts'
import { Call, type Outgoing } from './call.ts'
import { Connections, closing, type DialWatch } from './connections.ts'
import { type Credentials, openCredentials, type Pass } from './credentials.ts'
import { isTurnedDown } from './dial.ts'
import { type Access, SERVICE_ACCOUNT_FOLDER } from './kubeconfig.ts'
import { RateLimit } from './rate-limit.ts'
import {
  isLoopbackHost,
  parseProxy,
  parseServer,
  proxyFromEnvironment,
  type ServerAddress,
} from './server-address.ts'

export interface ClientOptions {
  /** Path of a kubeconfig; empty for in-cluster credentials, unless `master` is given. */
  readonly kubeconfig: string
  /** URL that replaces the kubeconfig's server; may be empty. */
  readonly master: string
  /** The context of the kubeconfig to use instead of the current one. */
  readonly context?: string | undefined
  /** Requests a second on average; 0 for no limit. */
  readonly qps: number
  /** Requests that may go at once after a quiet time. */
  readonly burst: number
  readonly clock: Clock
  readonly env: Readonly<Record<string, string | undefined>>
  /** Gets warnings for an operator, one sentence at a time, never with a secret. */
  readonly warn: (text: string) => void
  readonly connect?: ConnectOverrides
  readonly dials?: DialWatch
}

interface ConnectOverrides {
  readonly lookup?: LookupFunction
  readonly serviceAccountFolder?: string
  /** Time of day in milliseconds since 1970. */
  readonly wallMs?: () => number
}

/**
 * Reads the configuration and gives a client that has no connection yet: the first request makes it. Throws ApiError
 * 'credentials' when the configuration cannot be used.
 */
export async function openApiClient(options: ClientOptions): Promise<ApiClient> {
  const { connect = {}, warn } = options
  const wallMs = connect.wallMs ?? Date.now
  const serviceAccountFolder = connect.serviceAccountFolder ?? SERVICE_ACCOUNT_FOLDER
  const credentials = await openCredentials({ ...options, wallMs, serviceAccountFolder })
  const { address, proxy } = wayTo(credentials.access, options.env)
  for (const text of doubts(credentials, address, options.env)) warn(text)
  const connections = new Connections({
    ...options,
    credentials,
    address,
    proxy,
    lookup: connect.lookup,
    dials: options.dials,
  })
  return new HttpClient({ ...options, credentials, address, connections })
}

/** The server, and the proxy in front of it. Throws ApiError 'credentials'. */
export function wayTo({ where, server, proxyUrl, ca, insecure, cert }: Access, env: ClientOptions['env']) {
  const secureByDefault = ca !== undefined || insecure || cert !== undefined
  const address = parseServer(server, `${where}: the server`, secureByDefault)
  const proxy =
    proxyUrl === undefined ? proxyFromEnvironment(env, address) : parseProxy(proxyUrl, `${where}: proxy-url`)
  return { address, proxy }
}

/** Gives warnings about an unsafe configuration. */
export function doubts(
  credentials: Credentials,
  address: ServerAddress,
  env: ClientOptions['env'],
): string[] {
  const { where, insecure } = credentials.access
  const found: string[] = []
  if (insecure && address.secure)
    found.push(`${where}: insecure-skip-tls-verify is set: any server can impersonate ${address.url}`)
  if (!address.secure && credentials.showsSecret && !isLoopbackHost(address.host))
    found.push(`${where}: credentials are sent in clear to ${address.url}`)
  if (env.NODE_TLS_REJECT_UNAUTHORIZED === '0')
    found.push('NODE_TLS_REJECT_UNAUTHORIZED=0 is ignored: kprobe verifies the API server')
  return found
}

interface Parts extends ClientOptions {
  readonly credentials: Credentials
  readonly address: ServerAddress
  readonly connections: Connections
}

interface Exchange {
  readonly answer: Answer
  readonly pass: Pass
}

class HttpClient implements ApiClient {
  readonly server: string
  readonly #parts: Parts
  readonly #limit: RateLimit
  readonly #calls = new Set<Call>()
  #closed = false

  constructor(parts: Parts) {
    this.#parts = parts
    this.server = parts.address.url
    this.#limit = new RateLimit(parts)
  }

  async authorities(): Promise<readonly string[]> {
    return await this.#parts.credentials.authorities()
  }

  async credentialsEnd(): Promise<CredentialsEnd> {
    return await this.#parts.credentials.end()
  }

  async send(request: ApiRequest): Promise<ApiResponse> {
    const call = this.#begin(request)
    await call.until(this.#limit.turn(call))
    const first = await this.#persist(request, call)
    if (first.answer.status !== 401) return this.#response(first.answer)
    // The second answer repeats the information of this body.
    if (!(await call.until(this.#parts.credentials.renew(first.pass)))) return this.#response(first.answer)
    first.answer.body.discard()
    const second = await this.#persist(request, this.#begin(request))
    return this.#response(second.answer)
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const call of [...this.#calls]) call.fail(closing())
    this.#parts.credentials.close()
    await this.#parts.connections.close()
  }

  #begin(request: ApiRequest): Call {
    const call = new Call(request, this.server)
    const { signal } = request
    const aborted = (): void => call.fail(new ApiError('aborted', 'aborted', { cause: signal.reason }))
    this.#calls.add(call)
    signal.addEventListener('abort', aborted)
    call.onOver(() => {
      this.#calls.delete(call)
      signal.removeEventListener('abort', aborted)
    })
    if (signal.aborted) aborted()
    if (this.#closed) call.fail(closing())
    return call
  }

  /** kube-apiserver closes a connection with bad credentials, and rejects all requests on it. */
  async #persist(request: ApiRequest, call: Call): Promise<Exchange> {
    try {
      return await this.#exchange(request, call)
    } catch (error) {
      if (!isTurnedDown(error)) throw error
      return await this.#exchange(request, this.#begin(request))
    }
  }

  /** One request and the head of its response, within idleMs once there are credentials. */
  async #exchange(request: ApiRequest, call: Call): Promise<Exchange> {
    const { clock, connections, credentials } = this.#parts
    // These have a limit of their own: a plugin that hangs is not a server that does.
    const pass = await call.until(credentials.pass())
    let used: HttpConnection | undefined
    const cancel = clock.after(request.idleMs, () => {
      used?.probe?.()
      call.fail(new ApiError('silent', `no answer within ${request.idleMs / 1000} s`))
    })
    try {
      const sent = connections.use(pass.identity, call, connection => {
        used = connection
        return connection.send(this.#outgoing(request, pass), call)
      })
      return { answer: await call.until(sent), pass }
    } finally {
      cancel()
    }
  }

  #outgoing(request: ApiRequest, pass: Pass): Outgoing {
    const { method, path, accept, body, contentType = 'application/json', idleMs, longLived } = request
    return {
      method,
      path: `${this.#parts.address.basePath}${path}`,
      headers: {
        accept,
        'accept-encoding': 'gzip',
        'user-agent': 'kprobe',
        ...(body === undefined ? {} : { 'content-type': contentType }),
        ...pass.headers,
      },
      body,
      idleMs,
      longLived,
      watchIdleMs: watchLimitMs(path) + idleMs,
    }
  }

  #response({ status, header, body }: Answer): ApiResponse {
    return {
      status,
      contentType: header('content-type')?.toLowerCase().replace(/\s+/g, '') ?? '',
      retryAfterMs: parseRetryAfter(header('retry-after')),
      body,
    }
  }
}

/**
 * The kernel's keep-alive notices a peer that is gone. A middlebox may answer in its stead: then only a watch that is
 * silent for longer than its timeout shows it.
 */
function watchLimitMs(path: string): number {
  const seconds = /[?&]timeoutSeconds=(\d{1,6})(?:&|$)/.exec(path)?.[1]
  // Without one of its own, a watch lasts half an hour to an hour (kube-apiserver's min-request-timeout).
  return Number(seconds ?? 3_600) * 1_000
}
