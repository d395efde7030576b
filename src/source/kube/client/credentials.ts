import { createHash, X509Certificate } from 'node:crypto'
import { createSecureContext } from 'node:tls'
import type { Clock } from '../../../base/clock.ts'
import { numberAt } from '../../../base/plain-data.ts'
import { ApiError, type CredentialsEnd } from '../api-client.ts'
import type { TlsMaterial } from './dial.ts'
import { type ExecCluster, type ExecCredential, runExecPlugin } from './exec-plugin.ts'
import {
  type Access,
  type AccessOptions,
  CachedFile,
  type CachedFileOptions,
  type ExecConfig,
  loadAccess,
  type Material,
} from './kubeconfig.ts'

export interface CredentialsOptions extends AccessOptions {
  readonly clock: Clock
  /** Time of day in milliseconds since 1970: plugins give their expiry in it. */
  readonly wallMs: () => number
  readonly warn: (text: string) => void
}

/** The authentication of one request. Holds secrets: never to be printed. */
export interface Pass {
  readonly headers: Readonly<Record<string, string | string[]>>
  /** Identifies the client certificate that belongs to the token. */
  readonly identity: string
  readonly generation: number
}

/** Reads the configuration. Throws ApiError 'credentials'. */
export async function openCredentials(options: CredentialsOptions): Promise<Credentials> {
  return new Credentials({ ...options, access: await loadAccess(options) })
}

interface Opened extends CredentialsOptions {
  readonly access: Access
}

/** Keeps our credentials fresh: reads files again, and runs plugins again when theirs have expired. */
export class Credentials {
  readonly #options: Opened
  readonly #ca: CachedFile | undefined
  #access: Access
  #token: CachedFile | undefined
  #certificate: ClientCertificate | undefined
  #exec: ExecCredential | undefined
  #execUntilMs = 0
  #running: Promise<ExecCredential> | undefined
  #renewing: Promise<boolean> | undefined
  #generation = 0
  readonly #closing = new AbortController()

  constructor(options: Opened) {
    this.#options = options
    this.#access = options.access
    this.#ca = this.#cached(options.access.ca, 'certificate authority', checkedAuthority)
    this.#adopt(options.access)
  }

  /** Ends a plugin that runs; no other begins. */
  close(): void {
    this.#closing.abort(new ApiError('aborted', 'the client was closed'))
  }

  get access(): Access {
    return this.#access
  }

  get showsSecret(): boolean {
    const { token, basic, exec } = this.#access
    return token !== undefined || basic !== undefined || exec !== undefined
  }

  /** Gives the credentials of the next request. Throws ApiError 'credentials'. */
  async pass(): Promise<Pass> {
    const generation = this.#generation
    const exec = await this.#fromPlugin()
    const pair = await this.#pair(exec)
    const authorization = await this.#authorization(exec)
    const { impersonation } = this.#access
    const headers = authorization === undefined ? impersonation : { ...impersonation, authorization }
    return { headers, identity: pair.identity, generation }
  }

  /** Gives SHA-256 of each certificate of the authority, which is read anew. Throws ApiError 'credentials'. */
  async authorities(): Promise<readonly string[]> {
    this.#ca?.expire()
    const text = (await this.#ca?.read()) ?? ''
    const bodies = [...text.matchAll(/-----BEGIN [A-Z ]*CERTIFICATE-----([^-]*)/g)]
    return bodies.map(([, body = '']) => createHash('sha256').update(body.replace(/\s+/g, '')).digest('hex'))
  }

  /** Gives when the present credentials expire. Runs no plugin. Throws ApiError 'credentials'. */
  async end(): Promise<CredentialsEnd> {
    const exec = this.#exec
    const token = (await this.#token?.read()) ?? exec?.token
    const { cert } = await this.#pair(exec)
    return {
      tokenMs: exec?.expiresWallMs ?? (token === undefined ? undefined : endOfToken(token)),
      certificateMs: cert === undefined ? undefined : endOfCertificate(cert),
    }
  }

  /** Gives the TLS material of the next connection, with a freshly read authority. Throws ApiError 'credentials'. */
  async tls(): Promise<TlsMaterial> {
    this.#ca?.expire()
    // The request that needs this connection has already run the plugin.
    const exec = this.#exec ?? (await this.#fromPlugin())
    const { where, tlsServerName, insecure } = this.#access
    const pair = await this.#pair(exec)
    return { ...pair, ca: await this.#ca?.read(), serverName: tlsServerName, insecure, where }
  }

  /**
   * The server refused `refused` with 401: reads everything anew, unless that has happened since. False when there is
   * nothing that could have changed.
   */
  async renew(refused: Pass): Promise<boolean> {
    if (refused.generation !== this.#generation) return true
    this.#renewing ??= this.#readAnew().finally(() => {
      this.#renewing = undefined
    })
    return this.#renewing
  }

  async #readAnew(): Promise<boolean> {
    const changed = await this.#reload()
    this.#generation++
    this.#token?.expire()
    this.#certificate?.expire()
    this.#exec = undefined
    const { token, cert, exec } = this.#access
    return changed || token?.kind === 'file' || cert?.kind === 'file' || exec !== undefined
  }

  /** The user's entry of a kubeconfig may have been replaced; the server stays the one that was named at first. */
  async #reload(): Promise<boolean> {
    if (this.#options.kubeconfig === '') return false
    try {
      const loaded = await loadAccess(this.#options)
      const { token, basic, cert, key, exec, impersonation } = loaded
      const access = { ...this.#access, token, basic, cert, key, exec, impersonation }
      if (JSON.stringify(access) === JSON.stringify(this.#access)) return false
      this.#adopt(access)
      return true
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      this.#options.warn(`${error.message}; the last values stay in use`)
      return false
    }
  }

  #adopt(access: Access): void {
    const { clock, warn } = this.#options
    this.#access = access
    this.#token = this.#cached(access.token, 'token', checkedToken)
    this.#certificate = certificateOf(access, { clock, warn, where: access.where })
    this.#exec = undefined
  }

  #cached(material: Material | undefined, what: string, check: Check): CachedFile | undefined {
    if (material === undefined) return undefined
    const { clock, warn, access } = this.#options
    return new CachedFile({ material, what, check, where: access.where, clock, warn })
  }

  async #authorization(exec: ExecCredential | undefined): Promise<string | undefined> {
    const token = await this.#token?.read()
    if (token !== undefined) return `Bearer ${token}`
    const { basic } = this.#access
    if (basic !== undefined)
      return `Basic ${Buffer.from(`${basic.username}:${basic.password}`).toString('base64')}`
    return exec?.token === undefined ? undefined : `Bearer ${checkedToken(exec.token, this.#access.where)}`
  }

  async #pair(exec: ExecCredential | undefined): Promise<KeyPair> {
    if (this.#certificate !== undefined) return this.#certificate.read()
    if (exec?.cert === undefined || exec.key === undefined) return NO_KEY_PAIR
    return keyPair(exec.cert, exec.key)
  }

  /** Runs one plugin at a time, and none while what the last one gave is good or a token stands in the kubeconfig. */
  async #fromPlugin(): Promise<ExecCredential | undefined> {
    const { exec, token, basic } = this.#access
    const { clock } = this.#options
    if (exec === undefined || token !== undefined || basic !== undefined) return undefined
    if (this.#exec !== undefined && clock.nowMs() < this.#execUntilMs) return this.#exec
    this.#running ??= this.#runPlugin(exec).finally(() => {
      this.#running = undefined
    })
    return this.#running
  }

  async #runPlugin(exec: ExecConfig): Promise<ExecCredential> {
    const { clock, env, wallMs } = this.#options
    const access = this.#access
    const credential = await runExecPlugin({
      exec,
      where: access.where,
      cluster: await this.#clusterInfo(access),
      clock,
      env,
      signal: this.#closing.signal,
    })
    const { expiresWallMs } = credential
    this.#exec = credential
    this.#execUntilMs =
      expiresWallMs === undefined ? Number.POSITIVE_INFINITY : clock.nowMs() + expiresWallMs - wallMs()
    return credential
  }

  async #clusterInfo({ server, insecure, tlsServerName }: Access): Promise<ExecCluster> {
    const ca = await this.#ca?.read()
    return {
      server,
      ...(insecure ? { 'insecure-skip-tls-verify': true } : {}),
      ...(tlsServerName === undefined ? {} : { 'tls-server-name': tlsServerName }),
      ...(ca === undefined ? {} : { 'certificate-authority-data': Buffer.from(ca).toString('base64') }),
    }
  }
}

type Check = (text: string, place: string) => string

/** Throws for a token that does not fit a header, so that no later error quotes it. */
function checkedToken(text: string, place: string): string {
  const token = text.trim()
  if (token === '') throw new ApiError('credentials', `${place}: the token is empty`)
  if (!/^[\x21-\x7e]+$/.test(token))
    throw new ApiError('credentials', `${place}: the token has invalid characters`)
  return token
}

/** An empty authority would mean to Node that any it knows will do. */
function checkedAuthority(text: string, place: string): string {
  if (!text.includes('-----BEGIN '))
    throw new ApiError('credentials', `${place}: no certificate in the certificate authority`)
  return text
}

/** Reads `exp` of a JSON Web Token (RFC 7519); undefined for other tokens. */
function endOfToken(token: string): number | undefined {
  try {
    const claims: unknown = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString('utf8'))
    const seconds = numberAt(claims, 'exp')
    return seconds === undefined ? undefined : seconds * 1_000
  } catch {
    return undefined
  }
}

function endOfCertificate(pem: string): number | undefined {
  try {
    return Date.parse(new X509Certificate(pem).validTo)
  } catch {
    return undefined
  }
}

interface KeyPair {
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Differs between any two pairs, and reveals nothing about them. */
  readonly identity: string
}

const NO_KEY_PAIR: KeyPair = { cert: undefined, key: undefined, identity: '' }

type FileContext = Pick<CachedFileOptions, 'where' | 'clock' | 'warn'>

/**
 * A client certificate and its key. Two files are not replaced in one moment: until they belong together, the pair
 * before them stays in use.
 */
class ClientCertificate {
  readonly #cert: CachedFile
  readonly #key: CachedFile
  #pair: KeyPair | undefined

  constructor(cert: Material, key: Material, context: FileContext) {
    const check = (text: string): string => text
    this.#cert = new CachedFile({ ...context, check, material: cert, what: 'client certificate' })
    this.#key = new CachedFile({ ...context, check, material: key, what: 'client key' })
  }

  expire(): void {
    this.#cert.expire()
    this.#key.expire()
  }

  async read(): Promise<KeyPair> {
    const cert = await this.#cert.read()
    const key = await this.#key.read()
    const pair = keyPair(cert, key)
    if (this.#pair === undefined || (pair.identity !== this.#pair.identity && belongTogether(cert, key)))
      this.#pair = pair
    return this.#pair
  }
}

function keyPair(cert: string, key: string): KeyPair {
  const identity = createHash('sha256').update(cert).update('\0').update(key).digest('hex')
  return { cert, key, identity }
}

function certificateOf(access: Access, context: FileContext): ClientCertificate | undefined {
  const { cert, key } = access
  return cert === undefined || key === undefined ? undefined : new ClientCertificate(cert, key, context)
}

function belongTogether(cert: string, key: string): boolean {
  try {
    createSecureContext({ cert, key })
    return true
  } catch {
    // The files are half rotated.
    return false
  }
}
