import { lookup as systemLookup } from 'node:dns'
import { type EventEmitter, once } from 'node:events'
import { request } from 'node:http'
import { connect as connectTcp, isIP, type LookupFunction, type Socket } from 'node:net'
import { connect as connectTls, createSecureContext, type SecureContext, TLSSocket } from 'node:tls'
import type { Clock } from '../../../base/clock.ts'
import { codeOf } from '../../../base/errors.ts'
import { ApiError } from '../api-client.ts'
import type { HttpProxy, ServerAddress } from './server-address.ts'

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

interface DialOptions {
  readonly address: ServerAddress
  readonly tls: TlsMaterial
  readonly proxy: HttpProxy | undefined
  /** Gives all addresses, which are not cached. */
  readonly lookup: LookupFunction
  readonly signal: AbortSignal
  /** The TCP port to connect from; the kernel's choice unless given. */
  readonly localPort?: number | undefined
  /** Offers HTTP/1.1 alone: a connection that is to be upgraded. */
  readonly isUpgraded?: boolean
}

/** Makes one connection; the server chooses HTTP/2 or HTTP/1.1 by ALPN. Throws ApiError. */
export async function dial(
  options: DialOptions,
): Promise<{ readonly socket: Socket; readonly isHttp2: boolean }> {
  const { address, proxy, signal } = options
  try {
    const tcp = proxy === undefined ? await direct(options) : await throughProxy(proxy, options)
    tcp.setNoDelay(true)
    tcp.setKeepAlive(true, KEEP_ALIVE_MS)
    const socket = address.secure ? await secure(tcp, options) : tcp
    const isHttp2 = socket instanceof TLSSocket && socket.alpnProtocol === 'h2'
    return { socket, isHttp2 }
  } catch (error) {
    const reason: unknown = signal.reason
    throw signal.aborted && reason instanceof ApiError ? reason : dialFailure(error)
  }
}

interface TurningLookup {
  /** The system's resolver unless a test replaces it. */
  readonly lookup?: LookupFunction | undefined
  /** The first of the addresses to try, counted on after the last. */
  readonly turn: number
  readonly resolved: (addresses: readonly string[]) => void
}

/** Wraps a resolver that gives all addresses of a name. */
export function turningLookup({ lookup = systemLookup, turn, resolved }: TurningLookup): LookupFunction {
  return (host, options, done) =>
    lookup(host, options, (error, found, family) => {
      if (error !== null || typeof found === 'string') return done(error, found, family)
      resolved(found.map(({ address }) => address))
      const first = turn % found.length
      done(null, [...found.slice(first), ...found.slice(0, first)])
    })
}

/** Tests whether a TCP connection to an address succeeds within 2 s, with a second SYN. It is closed at once. */
export async function connects(clock: Clock, host: string, port: number): Promise<boolean> {
  const controller = new AbortController()
  const cancel = clock.after(2_000, () => controller.abort())
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

function direct({ address, signal, ...options }: DialOptions): Promise<Socket> {
  const socket = connectTcp({ host: address.host, port: address.port, ...tcpOptions(options) })
  return settled(socket, 'connect', signal)
}

/**
 * Node tries the addresses of a name one after the other, in turns of the families (RFC 8305). One that has not answered
 * within a second is given up for the next one; the last one gets all the time that is left.
 */
function tcpOptions({ localPort, lookup }: Pick<DialOptions, 'localPort' | 'lookup'>) {
  return {
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: 1_000,
    lookup,
    ...(localPort === undefined ? {} : { localPort }),
  }
}

/** A tunnel by CONNECT (RFC 9110, 9.3.6). */
function throughProxy(proxy: HttpProxy, { address, signal, ...options }: DialOptions): Promise<Socket> {
  const target = `${isIP(address.host) === 6 ? `[${address.host}]` : address.host}:${address.port}`
  const asked = request({
    method: 'CONNECT',
    host: proxy.host,
    port: proxy.port,
    path: target,
    headers: { host: target, ...proxy.headers },
    agent: false,
    signal,
    ...tcpOptions(options),
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

async function secure(tcp: Socket, options: DialOptions): Promise<TLSSocket> {
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

/** Error codes of OpenSSL's verification, as Node spells them, besides those that begin with ERR_TLS or ERR_SSL. */
const VERIFICATION =
  /^(CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|ERROR_IN_CERT_|INVALID_CA|INVALID_PURPOSE|PATH_LENGTH_|HOSTNAME_MISMATCH)/

/** The server has not processed the request, which may be sent again (RFC 9113, 8.7). */
export class TurnedDown extends ApiError {}

export function isTurnedDown(error: unknown): boolean {
  return error instanceof ApiError && error.cause instanceof TurnedDown
}

function dialFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  if (error instanceof AggregateError) {
    const failures = error.errors.map(dialFailure)
    // A refused certificate is a better reason than addresses that do not answer.
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
