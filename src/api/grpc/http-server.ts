import { createSecureServer, createServer, type Http2SecureServer, type Http2Server } from 'node:http2'
import type { Socket } from 'node:net'
import { contextOf, type TlsPems } from './tls.ts'

const CALLS_PER_CONNECTION_MAX = 128
const HEADERS_MAX = 64
const HEADER_BYTES_MAX = 16 * 1024
const HANDSHAKE_MS = 10_000
/** A peer whose machine is gone is noticed by TCP: one that only stalls answers there, and stays. */
const KEEPALIVE_MS = 60_000

const LIMITS = {
  settings: { maxConcurrentStreams: CALLS_PER_CONNECTION_MAX, maxHeaderListSize: HEADER_BYTES_MAX },
  maxHeaderListPairs: HEADERS_MAX,
} as const

/** HTTP/2 with bounds, in plain. */
export function plainServer(): Http2Server {
  return createServer(LIMITS).on('connection', withKeepAlive)
}

export interface TlsLimits {
  readonly connectionsMax: number
  /** 10,000 unless told otherwise. */
  readonly handshakeMs?: number
}

/** The same with TLS, for clients with a certificate. */
export function tlsServer(
  pems: TlsPems,
  { connectionsMax, handshakeMs = HANDSHAKE_MS }: TlsLimits,
): Http2SecureServer {
  const server = createSecureServer({
    ...LIMITS,
    ...contextOf(pems),
    requestCert: true,
    rejectUnauthorized: true,
    handshakeTimeout: handshakeMs,
  })
  // There is no session before the handshake: those that never begin one are bounded here.
  server.maxConnections = connectionsMax
  return server.on('connection', withKeepAlive)
}

/** For connections that come from now on. */
export function renewTls(server: Http2SecureServer, pems: TlsPems): void {
  server.setSecureContext(contextOf(pems))
}

function withKeepAlive(socket: Socket): void {
  socket.setNoDelay(true)
  socket.setKeepAlive(true, KEEPALIVE_MS)
}
