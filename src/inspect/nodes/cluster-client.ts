import { type ClientRequest, request as httpRequest, type IncomingMessage } from 'node:http'
import { request as httpsRequest, type RequestOptions } from 'node:https'
import { PassThrough } from 'node:stream'
import { systemClock } from '../../base/clock.ts'
import { failureText } from '../../base/errors.ts'
import { textAt } from '../../base/plain-data.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { ApiError } from '../../source/kube/api-client.ts'
import { Credentials, type Pass } from '../../source/kube/client/credentials.ts'
import { doubts, wayTo } from '../../source/kube/client/http-client.ts'
import type { Access } from '../../source/kube/client/kubeconfig.ts'
import { type ExecSocket, exitCodeOf, guarded, jsonOf, Output, textOf } from './exec-socket.ts'
import { type Impersonation, type Kubeconfig, readKubeconfigs } from './kubeconfig-files.ts'

/* @kubernetes/client-node makes the connections: proxies, TLS, WebSocket, OIDC. Kubeconfigs are read by our own code, since
   the package ignores tokenFile, as-uid and as-groups, quotes secrets in its errors, and sets no bounds for plugins. */

interface ExecEnded {
  readonly code: number
  readonly stdout: Buffer
  readonly stderr: Buffer
}

interface ExecRequest {
  readonly namespace: string
  readonly pod: string
  readonly container: string
  readonly command: readonly string[]
  readonly outputBytesMax: number
  readonly signal: AbortSignal
}

interface ClusterOptions {
  readonly kubeconfigs: readonly string[]
  readonly context: string | undefined
  readonly impersonation: Impersonation
  readonly env: Readonly<Record<string, string | undefined>>
  readonly warn: (text: string) => void
}

type Package = typeof import('./client-node.ts')

/** Options of Node, and those of `ws`, which the package hands on. */
interface ConnectionOptions extends RequestOptions {
  maxPayload?: number
  perMessageDeflate?: boolean
  closeTimeout?: number
  finishRequest?: (request: ClientRequest, socket: ExecSocket) => void
}

/** Reads the kubeconfigs. Throws ApiError 'credentials'. */
export async function openClusterClient(options: ClusterOptions): Promise<ClusterClient> {
  const { env, warn } = options
  const kubeconfig = await readKubeconfigs({ ...options, paths: options.kubeconfigs })
  const { access } = kubeconfig
  const credentials = new Credentials({
    access,
    // The files are not read again: they were merged.
    kubeconfig: '',
    master: '',
    serviceAccountFolder: '',
    clock: systemClock,
    wallMs: Date.now,
    env,
    warn,
  })
  const way = wayOf(access, env)
  for (const text of doubts(credentials, way.address, env)) warn(text)
  return new ClusterClient({ ...way, kubeconfig, credentials, its: await import('./client-node.ts') })
}

const PROXY_SCHEMES: readonly string[] = [
  'http:',
  'https:',
  'socks:',
  'socks4:',
  'socks4a:',
  'socks5:',
  'socks5h:',
]

/** The server, and the URL of the proxy in front of it, which may hold a password. Throws ApiError 'credentials'. */
function wayOf(access: Access, env: ClusterOptions['env']) {
  const { proxyUrl, where } = access
  if (proxyUrl !== undefined) {
    if (!URL.canParse(proxyUrl)) throw new ApiError('credentials', `${where}: proxy-url is not a URL`)
    const { protocol } = new URL(proxyUrl)
    if (!PROXY_SCHEMES.includes(protocol))
      throw new ApiError('credentials', `${where}: proxy-url has the unknown scheme ${protocol}`)
    return { address: wayTo({ ...access, proxyUrl: undefined }, {}).address, proxyUrl }
  }
  const { address, proxy } = wayTo(access, env)
  if (proxy === undefined) return { address, proxyUrl: undefined }
  const [, secret = ''] = (proxy.headers['proxy-authorization'] ?? '').split(' ')
  const url = new URL(`http://${proxy.host.includes(':') ? `[${proxy.host}]` : proxy.host}:${proxy.port}`)
  const [user = '', ...password] = Buffer.from(secret, 'base64').toString('utf8').split(':')
  url.username = encodeURIComponent(user)
  url.password = encodeURIComponent(password.join(':'))
  return { address, proxyUrl: url.href }
}

type Parts = ReturnType<typeof wayOf> & {
  readonly kubeconfig: Kubeconfig
  readonly credentials: Credentials
  readonly its: Package
}

interface Limits {
  readonly signal: AbortSignal
  readonly timeoutMs: number
}

/** Asks an API server, and runs commands in containers; each request has a connection of its own. */
export class ClusterClient {
  readonly #parts: Parts
  /** The fields of auth-provider `oidc`, where the package leaves renewed tokens. */
  readonly #oidc: Record<string, unknown> | undefined
  #asked: Promise<string> | undefined

  constructor(parts: Parts) {
    this.#parts = parts
    const { oidc } = parts.kubeconfig
    const issuer = oidc?.['idp-issuer-url'] ?? ''
    // The package hands the issuer on as it is, to a function that takes only a URL.
    if (oidc !== undefined)
      this.#oidc = { ...oidc, ...(URL.canParse(issuer) ? { 'idp-issuer-url': new URL(issuer) } : {}) }
  }

  async get(path: string, { signal, timeoutMs }: Limits): Promise<Json> {
    const late = new AbortController()
    const cancel = systemClock.after(timeoutMs, () => late.abort(`no answer within ${timeoutMs / 1_000} s`))
    try {
      return await this.#get(path, AbortSignal.any([signal, late.signal]))
    } finally {
      cancel()
    }
  }

  async #get(path: string, signal: AbortSignal): Promise<Json> {
    for (let isSecond = false; ; isSecond = true) {
      const pass = await this.#parts.credentials.pass()
      const response = await this.#answer(path, signal, pass)
      // Maximum bytes of an answer: a page of pods has some hundred kilobytes.
      const json = jsonOf(await textOf(response, 32 * 1024 * 1024))
      if (response.statusCode === 200) return json
      if (response.statusCode === 401 && !isSecond && (await this.#parts.credentials.renew(pass))) continue
      throw new ApiError('protocol', `status ${response.statusCode}: ${String(json.message)}`)
    }
  }

  async #answer(path: string, signal: AbortSignal, pass: Pass): Promise<IncomingMessage> {
    const { url, secure } = this.#parts.address
    const options: ConnectionOptions = { headers: { accept: 'application/json' }, signal }
    await this.#config({}, pass).applyToHTTPSOptions(options)
    return await new Promise((resolve, reject) => {
      const send = secure ? httpsRequest : httpRequest
      const failed = (error: Error) =>
        reject(
          signal.aborted
            ? new ApiError('aborted', String(signal.reason))
            : new ApiError('unreachable', `cannot reach ${url}: ${error.message}`, { cause: error }),
        )
      send(`${url}${path}`, options).once('response', resolve).once('error', failed).end()
    })
  }

  /** Rejects with ApiError where the command did not run to its end. */
  async exec(asked: ExecRequest): Promise<ExecEnded> {
    const { outputBytesMax, signal } = asked
    const pass = await this.#parts.credentials.pass()
    return await new Promise((resolve, reject) => {
      let socket: ExecSocket | undefined
      const over = () => {
        signal.removeEventListener('abort', abort)
        socket?.terminate()
      }
      const fail = (kind: ApiError['kind'], text: string) => {
        reject(new ApiError(kind, text))
        over()
      }
      const abort = () => fail('aborted', String(signal.reason))
      signal.addEventListener('abort', abort)
      if (signal.aborted) return abort()
      const watch = (request: ClientRequest, opened: ExecSocket) => {
        socket = guarded(opened, fail)
        if (signal.aborted) abort()
        request.end()
      }
      const limits = {
        maxPayload: outputBytesMax + 1,
        perMessageDeflate: false,
        // Time for a server that has announced the end of a connection.
        closeTimeout: 1_000,
        finishRequest: watch,
      }
      const output = new Output(outputBytesMax, text => fail('protocol', text))
      this.#start(asked, { config: this.#config(limits, pass), output }, status => {
        const code = exitCodeOf(status)
        if (code === undefined)
          return fail('protocol', `the command did not run: ${textAt(status, 'message').slice(0, 300)}`)
        resolve({ code, stdout: output.stdout.bytes, stderr: output.stderr.bytes })
        over()
      }).catch((error: unknown) => {
        reject(error instanceof ApiError ? error : new ApiError('lost', failureText(error), { cause: error }))
        over()
      })
    })
  }

  async #start(
    { namespace, pod, container, command }: ExecRequest,
    { config, output }: { readonly config: InstanceType<Package['KubeConfig']>; readonly output: Output },
    take: (status: unknown) => void,
  ): Promise<void> {
    const { Exec, WebSocketHandler } = this.#parts.its
    // By default the package closes the streams of this process at a server's request.
    const streams = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() }
    const exec = new Exec(config, new WebSocketHandler(config, undefined, streams))
    const [place, name] = [encodeURIComponent(namespace), encodeURIComponent(pod)]
    const { stdout, stderr } = output
    await exec.exec(place, name, container, [...command], stdout.stream, stderr.stream, null, false, take)
  }

  /** A configuration with one cluster and one user, whose credentials are ours. */
  #config(limits: Partial<ConnectionOptions>, pass: Pass) {
    const { its, address, proxyUrl, kubeconfig } = this.#parts
    const { insecure, tlsServerName } = kubeconfig.access
    const config = new its.KubeConfig()
    config.addAuthenticator({
      isAuthProvider: () => true,
      applyAuthentication: (_: unknown, options: ConnectionOptions) => this.#identify(options, limits, pass),
    })
    config.loadFromClusterAndUser(
      {
        name: 'cluster',
        server: address.url,
        // The package refuses http: without it.
        skipTLSVerify: insecure || !address.secure,
        ...(tlsServerName === undefined ? {} : { tlsServerName }),
        ...(proxyUrl === undefined ? {} : { proxyUrl }),
      },
      { name: 'user' },
    )
    return config
  }

  async #identify(options: ConnectionOptions, limits: Partial<ConnectionOptions>, pass: Pass): Promise<void> {
    const { credentials, kubeconfig } = this.#parts
    const { ca, cert, key } = await credentials.tls()
    const { access } = kubeconfig
    const authorization = this.#oidc === undefined ? {} : { authorization: await this.#idToken(this.#oidc) }
    const headers = { ...options.headers, ...authorization, ...pass.headers, 'user-agent': 'kprobe' }
    // NODE_TLS_REJECT_UNAUTHORIZED does not count.
    Object.assign(options, limits, { headers, ca, cert, key, rejectUnauthorized: !access.insecure })
  }

  /** Requests a new token at most once at a time, since a provider may accept a refresh-token only once. */
  #idToken(config: Record<string, unknown>): Promise<string> {
    this.#asked ??= this.#freshToken(config).finally(() => {
      this.#asked = undefined
    })
    return this.#asked
  }

  async #freshToken(config: Record<string, unknown>): Promise<string> {
    const { where } = this.#parts.kubeconfig.access
    const options: { readonly headers: Record<string, string> } = { headers: {} }
    try {
      // One for each request: it takes the lifetime of a renewed token for a time of day.
      const provider = new this.#parts.its.OpenIDConnectAuth()
      await provider.applyAuthentication({ name: 'user', authProvider: { name: 'oidc', config } }, options)
    } catch (error) {
      throw new ApiError('credentials', `${where}: the OIDC token cannot be renewed: ${oidcCode(error)}`)
    }
    const { Authorization: header } = options.headers
    if (header !== undefined) return header
    const why = config['id-token'] === undefined ? 'has no id-token' : 'has an id-token that is expired'
    throw new ApiError(
      'credentials',
      `${where}: auth-provider oidc ${why}, and cannot get another; log in again`,
    )
  }

  close(): void {
    this.#parts.credentials.close()
  }
}

/** A code of OAuth 2.0 or of the system: the words of an error may quote a token. */
function oidcCode(error: unknown): string {
  const { error: answer, code } = isJson(error) ? error : {}
  const found = [answer, code].find(each => typeof each === 'string' && /^\w{1,40}$/.test(each))
  return found === undefined ? 'the provider does not answer as it should' : String(found)
}
