import { isJson } from '../../../model/fields.ts'
import { ApiError } from '../api-client.ts'
import type { KubeConfig } from './client-node.ts'
import type { ExecConfig } from './kubeconfig.ts'
import { codeOf } from './small-file.ts'

/** What a credential plugin gave. Holds secrets: never to be printed. */
export interface ExecCredential {
  readonly token: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Time of day in milliseconds since 1970; undefined when it lasts until it is refused. */
  readonly expiresWallMs: number | undefined
}

/** What plugins that ask for it are told of the cluster (ExecCredential.spec.cluster). */
export interface ExecCluster {
  readonly server: string
  readonly 'tls-server-name'?: string
  readonly 'insecure-skip-tls-verify'?: boolean
  /** In base64. */
  readonly 'certificate-authority-data'?: string
}

export interface ExecRun {
  /** Fresh for each run: the library keeps what a plugin gave. */
  readonly config: KubeConfig
  readonly exec: ExecConfig
  readonly where: string
  readonly cluster: ExecCluster
  /** The plugin is killed when it has run so long, milliseconds. */
  readonly limitMs: number
}

const NAME = 'exec'
const STDERR_CHARS_MAX = 300

/**
 * Runs a credential plugin and reads what it prints. The library starts the process. Throws ApiError 'credentials',
 * whose words hold no output that could be a secret.
 */
export async function runExecPlugin(run: ExecRun): Promise<ExecCredential> {
  const { config, exec, where } = run
  const env = [...exec.env, { name: 'KUBERNETES_EXEC_INFO', value: execInfo(run) }]
  const user = { name: NAME, exec: { command: exec.command, args: [...exec.args], env } }
  config.loadFromClusterAndUser({ name: NAME, server: 'https://localhost', skipTLSVerify: false }, user)
  const plugin = boundedPlugin(config, run.limitMs)
  const options: {
    headers?: Readonly<Record<string, unknown>>
    cert?: unknown
    key?: unknown
  } = {}
  try {
    await config.applyToHTTPSOptions(Object.assign(options, { headers: {} }))
  } catch (error) {
    // Without the cause: it holds the arguments and all that the plugin printed.
    throw new ApiError('credentials', `${where}: ${exec.command} ${whyFailed(error, exec)}`)
  }
  const credential = readCredential(plugin, options)
  if (credential !== undefined) return credential
  throw new ApiError('credentials', `${where}: ${exec.command} gave neither a token nor a certificate`)
}

function execInfo({ exec, cluster }: ExecRun): string {
  return JSON.stringify({
    apiVersion: exec.apiVersion,
    kind: 'ExecCredential',
    spec: { interactive: false, ...(exec.provideClusterInfo ? { cluster } : {}) },
  })
}

/**
 * The library's plugin runner, made to kill a plugin that hangs and to give it no input. Neither is to be had by its
 * public names; its version is pinned, and a test tells when these are gone.
 */
function boundedPlugin(config: KubeConfig, limitMs: number): object {
  const authenticators: unknown = Reflect.get(config, 'authenticators')
  const list: readonly unknown[] = Array.isArray(authenticators) ? authenticators : []
  for (const candidate of list) {
    if (!isJson(candidate)) continue
    const spawn: unknown = Reflect.get(candidate, 'execFn')
    if (typeof spawn !== 'function') continue
    const limits = { timeout: limitMs, killSignal: 'SIGKILL', stdio: ['ignore', 'pipe', 'pipe'] }
    Reflect.set(candidate, 'execFn', (command: string, args: readonly string[], options: object) =>
      Reflect.apply(spawn, undefined, [command, args, { ...options, ...limits }]),
    )
    return candidate
  }
  throw new ApiError('credentials', 'this build of @kubernetes/client-node runs no credential plugins')
}

function readCredential(
  plugin: object,
  options: {
    readonly headers?: Readonly<Record<string, unknown>>
    readonly cert?: unknown
    readonly key?: unknown
  },
): ExecCredential | undefined {
  const authorization = options.headers?.Authorization
  const token = typeof authorization === 'string' ? authorization.replace(/^Bearer /, '') : undefined
  const cert = typeof options.cert === 'string' ? options.cert : undefined
  const key = typeof options.key === 'string' ? options.key : undefined
  if (token === undefined && (cert === undefined || key === undefined)) return undefined
  return { token, cert, key, expiresWallMs: expiryOf(plugin) }
}

/** From what the library keeps of the plugin's answer. */
function expiryOf(plugin: object): number | undefined {
  const cache: unknown = Reflect.get(plugin, 'tokenCache')
  const answer = isJson(cache) ? cache[NAME] : undefined
  const status = isJson(answer) ? answer.status : undefined
  const timestamp = isJson(status) ? status.expirationTimestamp : undefined
  const wallMs = typeof timestamp === 'string' ? Date.parse(timestamp) : Number.NaN
  return Number.isNaN(wallMs) ? undefined : wallMs
}

function whyFailed(error: unknown, exec: ExecConfig): string {
  if (error instanceof SyntaxError || error instanceof TypeError)
    return 'printed something that is no ExecCredential'
  if (error instanceof Error && 'syscall' in error) {
    const hint = exec.installHint === '' ? '' : `; ${exec.installHint.trim().slice(0, STDERR_CHARS_MAX)}`
    return `cannot be started: ${codeOf(error)}${hint}`
  }
  const said = error instanceof Error ? withoutSecrets(error.message).trim() : ''
  return said === '' ? 'failed or was killed, and said nothing' : `failed: ${said}`
}

/** Anything long that is not a path or address may be a token. */
function withoutSecrets(output: string): string {
  const words = output.slice(0, 4 * STDERR_CHARS_MAX).split(/\s+/)
  const safe = words.map(word => (word.length > 24 && !/^["'(]?(\/|https?:)/.test(word) ? '…' : word))
  return safe.join(' ').slice(0, STDERR_CHARS_MAX)
}
