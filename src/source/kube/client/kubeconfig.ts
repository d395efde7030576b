import { open } from 'node:fs/promises'
import { isIP } from 'node:net'
import { dirname, isAbsolute, join } from 'node:path'
import type { Clock } from '../../../base/clock.ts'
import { codeOf } from '../../../base/errors.ts'
import { readToEnd } from '../../../base/octets.ts'
import { oneLine, PLACEHOLDER_REASON, placeholderIn } from '../../../base/text.ts'
import { isJson, type Json } from '../../../model/fields.ts'
import { YamlTextError, yamlDocuments } from '../../file/yaml-documents.ts'
import { ApiError } from '../api-client.ts'

/** Text that stands in the kubeconfig, or in a file of its own that may change. */
export type Material =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'file'; readonly path: string }

/** One way in: a server and who we are there. Holds secrets: never to be printed. */
export interface Access {
  /** `kubeconfig F, context "a", cluster "b", user "c"`: for messages. */
  readonly where: string
  /** Empty when the cluster names none. */
  readonly server: string
  readonly ca: Material | undefined
  readonly insecure: boolean
  readonly tlsServerName: string | undefined
  readonly proxyUrl: string | undefined
  readonly token: Material | undefined
  readonly basic: { readonly username: string; readonly password: string } | undefined
  readonly cert: Material | undefined
  readonly key: Material | undefined
  readonly exec: ExecConfig | undefined
  /** Impersonate-*: the identity that kprobe asks the server to use. */
  readonly impersonation: Readonly<Record<string, string | string[]>>
}

/** A credential plugin (client.authentication.k8s.io). */
export interface ExecConfig {
  readonly apiVersion: string
  readonly command: string
  readonly args: readonly string[]
  readonly env: readonly { readonly name: string; readonly value: string }[]
  readonly installHint: string
  readonly provideClusterInfo: boolean
}

interface KubeconfigFile {
  readonly path: string
  readonly text: string
  /** Replaces the cluster's server; a context is then not needed. May be empty. */
  readonly master: string
  /** The context to use instead of the current one. */
  readonly context?: string | undefined
}

/**
 * Reads the current context of a kubeconfig, as client-go does: paths are relative to the file, and data win over
 * files. Throws ApiError 'credentials' that names the file and the entry and repeats no value from it: a parser's own
 * words may quote the line that holds a token.
 */
export function readKubeconfig(file: KubeconfigFile): Access {
  const root = parseKubeconfig(file)
  const names = currentNames(root, file)
  const cluster = entry(root, 'cluster', names.cluster)
  const user = entry(root, 'user', names.user)
  if (cluster === undefined && file.master === '')
    throw new ApiError(
      'credentials',
      `${names.where}: ${names.cluster === '' ? 'it names no cluster' : 'there is no cluster of that name'}`,
    )
  if (user === undefined && names.user !== '')
    throw new ApiError('credentials', `${names.where}: there is no user of that name`)
  const read = { where: names.where, folder: dirname(file.path) }
  return {
    where: names.where,
    ...clusterPart(cluster ?? {}, read, file.master),
    ...userPart(user ?? {}, read),
  }
}

/** An entry, and where its paths begin. */
interface Reading {
  readonly where: string
  readonly folder: string
}

export function parseKubeconfig({ path, text }: Pick<KubeconfigFile, 'path' | 'text'>): Json {
  try {
    for (const { value } of yamlDocuments(text)) {
      if (isJson(value)) return value
      if ((value ?? null) !== null) break
    }
  } catch (error) {
    if (!(error instanceof YamlTextError)) throw error
    throw new ApiError(
      'credentials',
      `kubeconfig ${path}: not YAML at line ${error.line}, column ${error.column}`,
    )
  }
  throw new ApiError('credentials', `kubeconfig ${path}: not a mapping`)
}

function currentNames(root: Json, { path, master, context: asked }: KubeconfigFile) {
  const where = `kubeconfig ${path}`
  const read = { where, folder: '' }
  const name = asked ?? text(root, 'current-context', read)
  const context = entry(root, 'context', name)
  const which = asked === undefined ? ', the current-context' : ''
  if (context === undefined && name !== '')
    throw new ApiError('credentials', `${where}: there is no context ${quoted(name)}${which}`)
  if (context === undefined && master === '')
    throw new ApiError('credentials', `${where}: it names no current-context`)
  const cluster = text(context ?? {}, 'cluster', read)
  const user = text(context ?? {}, 'user', read)
  const named = [
    context === undefined ? '' : `, context ${quoted(name)}`,
    cluster === '' ? '' : `, cluster ${quoted(cluster)}`,
    user === '' ? '' : `, user ${quoted(user)}`,
  ]
  return { where: `${where}${named.join('')}`, cluster, user }
}

/** Unused entries may be invalid. */
function entry(root: Json, kind: 'cluster' | 'context' | 'user', name: string): Json | undefined {
  const list: unknown = root[`${kind}s`]
  if (!Array.isArray(list)) return undefined
  const found: unknown = list.find(each => isJson(each) && each.name === name)
  if (!isJson(found)) return undefined
  const body = found[kind]
  return isJson(body) ? body : {}
}

function clusterPart(cluster: Json, read: Reading, master: string) {
  const insecure = cluster['insecure-skip-tls-verify'] === true
  const ca = material(cluster, 'certificate-authority', read)
  // Both together are an error, as in client-go.
  if (insecure && ca !== undefined)
    throw refused(read, 'insecure-skip-tls-verify', 'is true beside a certificate-authority')
  const server = master === '' ? text(cluster, 'server', read) : master
  const left = placeholderIn(server)
  if (left !== undefined) throw refused(read, 'server', `${left} ${PLACEHOLDER_REASON}`)
  return {
    server,
    ca,
    insecure,
    tlsServerName: optional(text(cluster, 'tls-server-name', read)),
    proxyUrl: optional(text(cluster, 'proxy-url', read)),
  }
}

function userPart(user: Json, read: Reading) {
  const provider = user['auth-provider']
  if (isJson(provider))
    throw refused(read, 'auth-provider', 'is no longer part of Kubernetes; use exec or tokenFile')
  const tokenFile = text(user, 'tokenFile', read)
  const token = text(user, 'token', read)
  const username = text(user, 'username', read)
  return {
    token: tokenFile !== '' ? fileMaterial(tokenFile, read) : textMaterial(token),
    basic: username === '' ? undefined : { username, password: text(user, 'password', read) },
    cert: material(user, 'client-certificate', read),
    key: material(user, 'client-key', read),
    exec: isJson(user.exec) ? execPart(user.exec, read) : undefined,
    impersonation: impersonationPart(user, read),
  }
}

function execPart(exec: Json, read: Reading): ExecConfig {
  const command = text(exec, 'command', read, 'exec.')
  if (command === '') throw refused(read, 'exec.command', 'is missing')
  if (exec.interactiveMode === 'Always')
    throw refused(read, 'exec.interactiveMode', 'is Always, but kprobe cannot prompt for input')
  const args: readonly unknown[] = Array.isArray(exec.args) ? exec.args : []
  const env: readonly unknown[] = Array.isArray(exec.env) ? exec.env : []
  return {
    apiVersion: text(exec, 'apiVersion', read, 'exec.'),
    command: command.includes('/') && !isAbsolute(command) ? join(read.folder, command) : command,
    args: args.map(String),
    env: env.filter(isJson).map(({ name, value }) => ({ name: String(name), value: String(value ?? '') })),
    installHint: text(exec, 'installHint', read, 'exec.'),
    provideClusterInfo: exec.provideClusterInfo === true,
  }
}

function impersonationPart(user: Json, read: Reading): Access['impersonation'] {
  if (user['as-user-extra'] !== undefined) throw refused(read, 'as-user-extra', 'is not supported')
  const name = text(user, 'as', read)
  const uid = text(user, 'as-uid', read)
  const groups: readonly unknown[] = Array.isArray(user['as-groups']) ? user['as-groups'] : []
  if (name === '' && (uid !== '' || groups.length > 0)) throw refused(read, 'as', 'is missing')
  return {
    ...(name === '' ? {} : { 'impersonate-user': name }),
    ...(uid === '' ? {} : { 'impersonate-uid': uid }),
    ...(groups.length === 0 ? {} : { 'impersonate-group': groups.map(String) }),
  }
}

/** `field-data` in base64, or else the file that `field` names. */
function material(body: Json, field: string, read: Reading): Material | undefined {
  const data = text(body, `${field}-data`, read)
  if (data !== '') return { kind: 'text', text: Buffer.from(data, 'base64').toString('utf8') }
  const path = text(body, field, read)
  return path === '' ? undefined : fileMaterial(path, read)
}

function fileMaterial(path: string, { folder }: Reading): Material {
  return { kind: 'file', path: isAbsolute(path) ? path : join(folder, path) }
}

function textMaterial(value: string): Material | undefined {
  return value === '' ? undefined : { kind: 'text', text: value }
}

function text(body: Json, field: string, read: Reading, prefix = ''): string {
  const value = body[field]
  if (value === undefined || value === null) return ''
  if (typeof value !== 'string') throw refused(read, `${prefix}${field}`, 'is not text')
  return value
}

function optional(value: string): string | undefined {
  return value === '' ? undefined : value
}

function quoted(name: string): string {
  return oneLine(JSON.stringify(name))
}

function refused({ where }: Reading, field: string, why: string): ApiError {
  return new ApiError('credentials', `${where}: ${field} ${why}`)
}

export const SERVICE_ACCOUNT_FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'

export interface AccessOptions {
  /** Path of a kubeconfig; may be empty. */
  readonly kubeconfig: string
  /** URL of the server; may be empty. */
  readonly master: string
  /** The context of the kubeconfig to use instead of the current one. */
  readonly context?: string | undefined
  readonly env: Readonly<Record<string, string | undefined>>
  readonly serviceAccountFolder: string
}

/**
 * Finds the way to the server: a kubeconfig, whose server `master` replaces; `master` alone, anonymously; or, with
 * neither, the files that the pod was given (client-go's InClusterConfig). Throws ApiError 'credentials'.
 */
export async function loadAccess(options: AccessOptions): Promise<Access> {
  const { kubeconfig, master, context } = options
  if (kubeconfig !== '') {
    const text = await readSmallFile(kubeconfig, 'kubeconfig')
    return readKubeconfig({ path: kubeconfig, text, master, context })
  }
  if (master !== '') return { ...ANONYMOUS, where: '--master', server: master }
  return inCluster(options)
}

const ANONYMOUS: Access = {
  where: '',
  server: '',
  ca: undefined,
  insecure: false,
  tlsServerName: undefined,
  proxyUrl: undefined,
  token: undefined,
  basic: undefined,
  cert: undefined,
  key: undefined,
  exec: undefined,
  impersonation: {},
}

function inCluster({ env, serviceAccountFolder }: AccessOptions): Access {
  const host = env.KUBERNETES_SERVICE_HOST ?? ''
  const port = env.KUBERNETES_SERVICE_PORT ?? ''
  if (host === '' || port === '')
    throw new ApiError(
      'credentials',
      'no kubeconfig and no --master are given, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: kprobe does not run in a pod; give --kubeconfig, --master or another --source',
    )
  return {
    ...ANONYMOUS,
    where: 'in-cluster configuration',
    server: `https://${isIP(host) === 6 ? `[${host}]` : host}:${port}`,
    ca: { kind: 'file', path: `${serviceAccountFolder}/ca.crt` },
    token: { kind: 'file', path: `${serviceAccountFolder}/token` },
  }
}

/**
 * The text of a file of at most 1 MiB: kubeconfigs, tokens and certificates are a few KiB. Throws ApiError 'credentials' that
 * names `what` and the path.
 */
export async function readSmallFile(path: string, what: string): Promise<string> {
  try {
    const file = await open(path)
    try {
      const bytes = await readToEnd(file, 1024 * 1024)
      if (bytes === undefined) throw new ApiError('credentials', `${what} ${path} is larger than 1 MiB`)
      return new TextDecoder().decode(bytes)
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof ApiError) throw error
    throw new ApiError('credentials', `cannot read ${what} ${path}: ${codeOf(error)}`, { cause: error })
  }
}

export interface CachedFileOptions {
  readonly material: Material
  /** `token`, `client certificate`: for messages. */
  readonly what: string
  readonly where: string
  readonly clock: Clock
  readonly warn: (text: string) => void
  /** Throws ApiError when the text cannot be what it should be. */
  readonly check: (text: string, path: string) => string
}

/**
 * A value that may stand in a file and change there: read again when it is older than 60 s. When that fails the value
 * before it stays in use, with one warning until it can be read again.
 */
export class CachedFile {
  readonly #options: CachedFileOptions
  #value: string | undefined
  #readMs = 0
  #stale = false
  #warned = false

  constructor(options: CachedFileOptions) {
    this.#options = options
  }

  /** The next read goes to the file. */
  expire(): void {
    this.#stale = true
  }

  /** Throws ApiError 'credentials' when there has never been a value. */
  async read(): Promise<string> {
    const { material, clock, where, check } = this.#options
    if (material.kind === 'text') return check(material.text, where)
    // The kubelet replaces a projected token minutes before its end; client-go waits 60 s, too.
    if (this.#value !== undefined && !this.#stale && clock.nowMs() - this.#readMs < 60_000) return this.#value
    try {
      this.#value = check(await readSmallFile(material.path, this.#options.what), material.path)
      this.#warned = false
    } catch (error) {
      if (this.#value === undefined) throw withPlace(error, where)
      this.#warn(error)
    }
    this.#readMs = clock.nowMs()
    this.#stale = false
    return this.#value
  }

  #warn(error: unknown): void {
    if (this.#warned) return
    this.#warned = true
    const why = error instanceof Error ? error.message : String(error)
    this.#options.warn(`${this.#options.where}: ${why}; the last values stay in use`)
  }
}

function withPlace(error: unknown, where: string): unknown {
  if (!(error instanceof ApiError)) return error
  return new ApiError(error.kind, `${where}: ${error.message}`, { cause: error })
}
