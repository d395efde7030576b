import { lookup as systemLookup } from 'node:dns'
import { type EventEmitter, once } from 'node:events'
import { request } from 'node:http'
import { connect as connectTcp, isIP, type LookupFunction, type Socket } from 'node:net'
import { connect as connectTls, createSecureContext, type SecureContext, TLSSocket } from 'node:tls'
import type { Clock } from '../../../base/clock.ts'
import { codeOf } from '../../../base/errors.ts'
import { contains, hostCidr, type Ip, isLoopback, parseCidr, parseIp } from '../../../base/ip.ts'
import { ApiError } from '../api-client.ts'
import { firstConnection, type RaceOptions } from './race.ts'

/**
 * Linux asks a peer that is silent for so long, and ends the connection after 10 s more without an answer (libuv sets
 * the interval to 1 s and the count to 10).
 */
export const KEEP_ALIVE_MS = 30_000

/** TLS settings besides the address. Certificates and keys in PEM. */
export interface TlsMaterial {
  /** Undefined for the authorities that Node knows. */
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Changes with the client certificate. */
  readonly identity: string
  /** The name that the certificate of the server has to be for, instead of the address's host. */
  readonly serverName: string | undefined
  /** The certificate of the server is not checked. */
  readonly insecure: boolean
  /** Their origin, for messages. */
  readonly where: string
}

interface DialOptions extends RaceOptions {
  readonly address: ServerAddress
  readonly tls: TlsMaterial
  readonly proxy: HttpProxy | undefined
  /** The TCP port to connect from; the kernel's choice unless given. */
  readonly localPort?: number | undefined
  /** Offers HTTP/1.1 alone: a connection that is to be upgraded. */
  readonly isUpgraded?: boolean
}

/** One attempt: the server, or the proxy, is at this address. */
interface Way extends DialOptions {
  readonly at: string
}

/** Makes one connection; the server chooses HTTP/2 or HTTP/1.1 by ALPN. Throws ApiError. */
export async function dial(
  options: DialOptions,
): Promise<{ readonly socket: Socket; readonly protocol: 'h2' | 'http/1.1' }> {
  const { address, proxy, signal } = options
  try {
    const { host } = proxy ?? address
    const socket = await firstConnection(host, options, (at, signal) => attempt({ ...options, at, signal }))
    const isHttp2 = socket instanceof TLSSocket && socket.alpnProtocol === 'h2'
    return { socket, protocol: isHttp2 ? 'h2' : 'http/1.1' }
  } catch (error) {
    const reason: unknown = signal.reason
    throw signal.aborted && reason instanceof ApiError ? reason : dialFailure(error)
  }
}

async function attempt(way: Way): Promise<Socket> {
  const tcp = way.proxy === undefined ? await direct(way) : await throughProxy(way.proxy, way)
  tcp.setNoDelay(true)
  tcp.setKeepAlive(true, KEEP_ALIVE_MS)
  return way.address.secure ? await secure(tcp, way) : tcp
}

/** Wraps a resolver, by default that of the system; `resolved` gets all addresses that it finds. */
export function watchedLookup(
  lookup: LookupFunction = systemLookup,
  resolved: (addresses: readonly string[]) => void,
): LookupFunction {
  return (host, options, done) =>
    lookup(host, options, (error, address, family) => {
      if (error === null) resolved(typeof address === 'string' ? [address] : address.map(its => its.address))
      done(error, address, family)
    })
}

/** Tests whether a TCP connection to an address succeeds within CONNECTS_MS. It is closed at once. */
export async function connects(clock: Clock, host: string, port: number): Promise<boolean> {
  const controller = new AbortController()
  const cancel = clock.after(CONNECTS_MS, () => controller.abort())
  try {
    const socket = await settled(connectTcp({ host, port }), 'connect', controller.signal)
    socket.destroy()
    return true
  } catch {
    return false
  } finally {
    cancel()
  }
}

/** Time for a second SYN, which follows the first one after a second. */
const CONNECTS_MS = 2_000

function direct({ address, at, localPort, signal }: Way): Promise<Socket> {
  const socket = connectTcp({ host: at, port: address.port, ...portOf(localPort) })
  return settled(socket, 'connect', signal)
}

function portOf(localPort: number | undefined) {
  return localPort === undefined ? {} : { localPort }
}

/** A tunnel by CONNECT (RFC 9110, 9.3.6). */
function throughProxy(proxy: HttpProxy, { address, at, localPort, signal }: Way): Promise<Socket> {
  const target = `${isIP(address.host) === 6 ? `[${address.host}]` : address.host}:${address.port}`
  const asked = request({
    method: 'CONNECT',
    host: at,
    port: proxy.port,
    path: target,
    headers: { host: target, ...proxy.headers },
    agent: false,
    signal,
    ...portOf(localPort),
  })
  return new Promise((resolve, reject) => {
    asked.once('error', error => reject(viaProxy(proxy, codeOf(error), error)))
    asked.once('response', response => {
      response.destroy()
      reject(viaProxy(proxy, `it answers ${response.statusCode} to CONNECT`))
    })
    asked.once('connect', (response, socket, rest) => {
      if (response.statusCode === 200 && rest.length === 0) return resolve(socket)
      socket.destroy()
      reject(viaProxy(proxy, `it answers ${response.statusCode} to CONNECT`))
    })
    asked.end()
  })
}

function viaProxy(proxy: HttpProxy, why: string, cause?: unknown): ApiError {
  return new ApiError('unreachable', `cannot connect through the proxy ${proxy.host}:${proxy.port}: ${why}`, {
    cause,
  })
}

async function secure(tcp: Socket, options: Way): Promise<TLSSocket> {
  const { address, tls, signal } = options
  const servername = tls.serverName ?? (isIP(address.host) === 0 ? address.host : '')
  try {
    const socket = connectTls({
      socket: tcp,
      host: address.host,
      servername,
      secureContext: contextOf(tls),
      // Said outright, or else NODE_TLS_REJECT_UNAUTHORIZED would decide.
      rejectUnauthorized: !tls.insecure,
      ALPNProtocols: options.isUpgraded === true ? ['http/1.1'] : ['h2', 'http/1.1'],
    })
    tcp.on('error', error => socket.destroy(error))
    return await settled(socket, 'secureConnect', signal)
  } catch (error) {
    tcp.destroy()
    throw error
  }
}

/** Throws ApiError 'credentials' when OpenSSL cannot use a certificate or key; its words hold nothing of them. */
function contextOf({ ca, cert, key, where }: TlsMaterial): SecureContext {
  try {
    return createSecureContext({
      minVersion: 'TLSv1.2',
      ...(ca === undefined ? {} : { ca }),
      ...(cert === undefined ? {} : { cert }),
      ...(key === undefined ? {} : { key }),
    })
  } catch (error) {
    throw new ApiError('credentials', `${where}: unusable certificate or key: ${codeOf(error)}`, {
      cause: error,
    })
  }
}

const CLOSED = 'the server closed the connection at once'

/** The socket once it is connected. Whatever ends the wait otherwise closes it. */
async function settled<T extends Socket>(
  socket: T,
  event: 'connect' | 'secureConnect',
  signal: AbortSignal,
): Promise<T> {
  try {
    await arrival(socket, event, { signal, closed: new ApiError('unreachable', CLOSED) })
    return socket
  } catch (error) {
    // The first error is reported; later ones must not be unhandled.
    socket.on('error', () => undefined)
    socket.destroy()
    throw error
  }
}

/** Waits for an event. Throws the reason of the signal, and `closed` where the connection ends first. */
export async function arrival(
  of: EventEmitter,
  event: string,
  { signal, closed }: { readonly signal: AbortSignal; readonly closed: ApiError },
): Promise<void> {
  const closing = new AbortController()
  of.once('close', () => closing.abort(closed))
  try {
    await once(of, event, { signal: AbortSignal.any([signal, closing.signal]) })
  } catch (error) {
    throw error instanceof Error && error.name === 'AbortError' ? error.cause : error
  }
}

/** A plain HTTP proxy. The headers may hold a password: never to be printed. */
export interface HttpProxy {
  readonly host: string
  readonly port: number
  readonly headers: Readonly<Record<string, string>>
}

/** Reads a kubeconfig's proxy-url. Throws ApiError 'credentials' that begins with `where` and does not repeat the URL. */
export function parseProxy(text: string, where: string): HttpProxy {
  if (!URL.canParse(text)) throw refused(where, 'is not a URL')
  const url = new URL(text)
  if (url.protocol !== 'http:')
    throw refused(where, `has the scheme ${url.protocol} where only plain http proxies (CONNECT) are known`)
  const headers: Record<string, string> = {}
  if (url.username !== '') {
    const secret = decoded(`${url.username}:${url.password}`, where)
    headers['proxy-authorization'] = `Basic ${Buffer.from(secret).toString('base64')}`
  }
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? 80 : Number(url.port),
    headers,
  }
}

function decoded(text: string, where: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    // The error of the platform names neither the variable nor the field.
    throw refused(where, 'holds a user name or password with a bad % escape; write % as %25')
  }
}

/**
 * The proxy that HTTPS_PROXY (HTTP_PROXY for plain servers) and NO_PROXY name, in either case, as Go's programs read
 * them: kubeadm passes its own on to kube-proxy. Nothing on this machine is reached through a proxy.
 */
export function proxyFromEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  server: ServerAddress,
): HttpProxy | undefined {
  const name = server.secure ? 'HTTPS_PROXY' : 'HTTP_PROXY'
  const url = env[name] || env[name.toLowerCase()] || ''
  if (url === '' || isLoopbackHost(server.host)) return undefined
  const exceptions = (env.NO_PROXY || env.no_proxy || '').split(',')
  if (exceptions.some(exception => covers(exception.trim().toLowerCase(), server))) return undefined
  return parseProxy(url.includes('://') ? url : `http://${url}`, name)
}

/** One entry of NO_PROXY: `*`, a prefix, an address or a domain, these two with a port or without. */
function covers(exception: string, { host, port }: ServerAddress): boolean {
  if (exception === '*') return true
  const ip = parseIp(host)
  const cidr = parseCidr(exception)
  if (cidr !== undefined) return ip !== undefined && contains(cidr, ip)
  const [, name = '', only] = /^\[?(.*?)\]?(?::(\d+))?$/.exec(withBrackets(exception)) ?? []
  if (name === '' || (only !== undefined && Number(only) !== port)) return false
  const address = parseIp(name)
  if (address !== undefined) return ip !== undefined && contains(hostCidr(address), ip)
  const domain = name.replace(/^\*/, '')
  const lower = host.toLowerCase()
  return domain.startsWith('.') ? lower.endsWith(domain) : lower === domain || lower.endsWith(`.${domain}`)
}

/** An IPv6 address without brackets has no port. */
function withBrackets(text: string): string {
  return parseIp(text) === undefined ? text : `[${text}]`
}

function refused(where: string, why: string): ApiError {
  return new ApiError('credentials', `${where} ${why}`)
}

export interface ServerAddress {
  /** `https://10.96.0.1:443` with its path, for messages. */
  readonly url: string
  readonly secure: boolean
  /** A DNS name or an address without brackets. */
  readonly host: string
  readonly port: number
  /** Host and port as HTTP names them; the port is left out where it is the scheme's own. */
  readonly authority: string
  /** The prefix of every request's path: empty, or `/k8s/clusters/c-1`. */
  readonly basePath: string
}

/**
 * Reads a server as kubeconfigs and --master give it. Without a scheme it is https where `secureByDefault`, and http
 * otherwise (client-go's DefaultServerURL). Throws ApiError 'credentials' that begins with `where`; a user name or
 * password in the URL is refused and not repeated.
 */
export function parseServer(text: string, where: string, secureByDefault: boolean): ServerAddress {
  const withScheme = /^[a-z][a-z0-9+.-]*:\/\//i.test(text)
    ? text
    : `${secureByDefault ? 'https' : 'http'}://${text}`
  if (!URL.canParse(withScheme)) throw refused(where, 'is not a URL; write it like https://192.0.2.1:6443')
  const url = new URL(withScheme)
  if (url.protocol !== 'https:' && url.protocol !== 'http:')
    throw refused(where, `has the scheme ${url.protocol} where only https and http are known`)
  if (url.username !== '' || url.password !== '')
    throw refused(where, 'holds a user name or password; they belong into the user entry')
  if (url.search !== '' || url.hash !== '') throw refused(where, 'holds a query or fragment')
  const secure = url.protocol === 'https:'
  const basePath = url.pathname.replace(/\/+$/, '')
  return {
    url: `${url.origin}${basePath}`,
    secure,
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? (secure ? 443 : 80) : Number(url.port),
    authority: url.host,
    basePath,
  }
}

/**
 * Tests whether the server's address is one of the ClusterIPs: on a node whose kernel is empty, the proxy that programs
 * these must not need them. A DNS name is none: it is resolved outside the cluster's network.
 */
export function dependsOnServices(serverHost: string, clusterIps: Iterable<Ip>): boolean {
  const host = parseIp(serverHost.replace(/^\[|\]$/g, ''))
  return host !== undefined && [...clusterIps].includes(host)
}

export function isLoopbackHost(host: string): boolean {
  if (host === 'localhost' || host.endsWith('.localhost')) return true
  const ip = parseIp(host)
  return ip !== undefined && isLoopback(ip)
}

/** Error codes of OpenSSL's verification, as Node spells them, besides those that begin with ERR_TLS or ERR_SSL. */
const VERIFICATION =
  /^(CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|ERROR_IN_CERT_|INVALID_CA|INVALID_PURPOSE|PATH_LENGTH_|HOSTNAME_MISMATCH)/

/** The server has not looked at the request, which may be sent again (RFC 9113, 8.7). */
export class TurnedDown extends ApiError {}

export function isTurnedDown(error: unknown): boolean {
  return error instanceof ApiError && error.cause instanceof TurnedDown
}

function dialFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  if (error instanceof AggregateError) {
    const failures = error.errors.map(dialFailure)
    // A refused certificate says more than addresses that do not answer.
    const worst = failures.find(({ kind }) => kind !== 'unreachable') ?? failures[0]
    return worst ?? new ApiError('unreachable', 'its host name has no address')
  }
  const code = codeOf(error)
  if (VERIFICATION.test(code) || code.startsWith('ERR_TLS'))
    return new ApiError('tls', `the server's certificate is refused: ${messageOf(error)}`, { cause: error })
  if (code.startsWith('ERR_SSL') || code === 'EPROTO')
    return new ApiError('tls', `no TLS: ${messageOf(error)}`, { cause: error })
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN')
    return new ApiError('unreachable', `its host name has no address: ${code}`, { cause: error })
  if (code === 'EMFILE' || code === 'ENFILE')
    return new ApiError('unreachable', `too many open files: ${code}`, { cause: error })
  return new ApiError('unreachable', `cannot connect: ${code}`, { cause: error })
}

/** Classifies an error of a connection that had been made. */
export function exchangeFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const code = codeOf(error)
  if (code.startsWith('HPE_')) return new ApiError('protocol', `not HTTP/1.1: ${code}`, { cause: error })
  if (code === 'ERR_HTTP2_ERROR')
    return new ApiError('protocol', `not HTTP/2: ${messageOf(error)}`, { cause: error })
  if (code.startsWith('ERR_SSL'))
    return new ApiError('tls', `the server ended TLS: ${messageOf(error)}`, { cause: error })
  return new ApiError('lost', `the connection ended before the response did: ${codeOrMessage(error)}`, {
    cause: error,
  })
}

function codeOrMessage(error: unknown): string {
  const code = codeOf(error)
  return code === 'ERR_HTTP2_STREAM_ERROR' || code === 'ERR_HTTP2_SESSION_ERROR' ? messageOf(error) : code
}

/** One line, without OpenSSL's source positions. */
function messageOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  const reason = /:error:[0-9A-F]*:[^:]*:[^:]*:([^:]+):/i.exec(text)?.[1]
  return (reason ?? text.split('\n')[0] ?? text).trim()
}
