import { lookup as systemLookup } from 'node:dns'
import { request } from 'node:http'
import { connect as connectTcp, isIP, type LookupFunction, type Socket } from 'node:net'
import { connect as connectTls, createSecureContext, type SecureContext, type TLSSocket } from 'node:tls'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import { codeOf } from './cached-file.ts'
import { dialFailure } from './failure.ts'
import type { HttpProxy } from './proxy.ts'
import type { ServerAddress } from './server-address.ts'

/**
 * Linux asks a peer that is silent for so long, and ends the connection after 10 s more without an answer (libuv sets
 * the interval to 1 s and the count to 10).
 */
export const KEEP_ALIVE_MS = 30_000

/** What TLS needs besides the address. Certificates and keys in PEM. */
export interface TlsMaterial {
  /** Undefined for the authorities that Node knows. */
  readonly ca: string | undefined
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Changes with the client certificate. */
  readonly identity: string
  /** Their origin, for messages. */
  readonly where: string
}

export interface DialOptions {
  readonly address: ServerAddress
  readonly tls: TlsMaterial
  /** The name that the certificate has to be for, instead of the address's host. */
  readonly tlsServerName: string | undefined
  readonly insecure: boolean
  readonly proxy: HttpProxy | undefined
  /** The system's resolver unless a test says otherwise; asked anew each time. */
  readonly lookup: LookupFunction | undefined
  /** The TCP port to connect from; the kernel's choice unless given. */
  readonly localPort?: number
  /** Ends the attempt. */
  readonly signal: AbortSignal
}

export interface Dialed {
  readonly socket: Socket
  readonly protocol: 'h2' | 'http/1.1'
}

/** Makes one connection; the server chooses HTTP/2 or HTTP/1.1 by ALPN. Throws ApiError. */
export async function dial(options: DialOptions): Promise<Dialed> {
  const { address, signal } = options
  try {
    const tcp =
      options.proxy === undefined ? await direct(options) : await throughProxy(options.proxy, options)
    tcp.setNoDelay(true)
    tcp.setKeepAlive(true, KEEP_ALIVE_MS)
    if (!address.secure) return { socket: tcp, protocol: 'http/1.1' }
    const socket = await secure(tcp, options)
    return { socket, protocol: socket.alpnProtocol === 'h2' ? 'h2' : 'http/1.1' }
  } catch (error) {
    const reason: unknown = signal.reason
    throw signal.aborted && reason instanceof ApiError ? reason : dialFailure(error)
  }
}

/** The same resolver, or the system's; `resolved` hears all addresses that it gives. */
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

/** Whether a TCP connection can be made to an address, within CONNECTS_MS. It is closed at once. */
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

function direct({ address, signal, ...options }: DialOptions): Promise<Socket> {
  const { host, port } = address
  const socket = connectTcp({ host, port, ...waysOf(options) })
  return settled(socket, 'connect', signal)
}

function waysOf({ lookup, localPort }: Pick<DialOptions, 'lookup' | 'localPort'>) {
  return { ...(lookup === undefined ? {} : { lookup }), ...(localPort === undefined ? {} : { localPort }) }
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
    ...waysOf(options),
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
  return new ApiError('unreachable', `no way through the proxy ${proxy.host}:${proxy.port}: ${why}`, {
    cause,
  })
}

async function secure(tcp: Socket, options: DialOptions): Promise<TLSSocket> {
  const { address, tlsServerName, insecure, signal } = options
  const servername = tlsServerName ?? (isIP(address.host) === 0 ? address.host : '')
  try {
    const socket = connectTls({
      socket: tcp,
      host: address.host,
      servername,
      secureContext: contextOf(options.tls),
      // Said outright, or else NODE_TLS_REJECT_UNAUTHORIZED would decide.
      rejectUnauthorized: !insecure,
      ALPNProtocols: ['h2', 'http/1.1'],
    })
    tcp.on('error', error => socket.destroy(error))
    return await settled(socket, 'secureConnect', signal)
  } catch (error) {
    tcp.destroy()
    throw error
  }
}

/** Throws ApiError 'credentials' when OpenSSL cannot use a certificate or key; its words hold nothing of them. */
export function contextOf({ ca, cert, key, where }: TlsMaterial): SecureContext {
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

/** The socket once it is connected. Whatever ends the wait otherwise closes it. */
function settled<T extends Socket>(
  socket: T,
  event: 'connect' | 'secureConnect',
  signal: AbortSignal,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const done = (): void => {
      socket.removeListener('error', failed)
      socket.removeListener('close', closed)
      signal.removeEventListener('abort', aborted)
    }
    const failed = (error: unknown): void => {
      done()
      // An error may follow the first one, which was reported.
      socket.on('error', () => undefined)
      socket.destroy()
      reject(error)
    }
    const closed = (): void => failed(new ApiError('unreachable', 'the server closed the connection at once'))
    const aborted = (): void => failed(signal.reason)
    socket.once(event, () => {
      done()
      resolve(socket)
    })
    socket.once('error', failed)
    socket.once('close', closed)
    signal.addEventListener('abort', aborted)
    if (signal.aborted) aborted()
  })
}
