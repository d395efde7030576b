import { createSecureServer, createServer, type Http2SecureServer, type Http2Server } from 'node:http2'
import { createServer as createNetServer, type Server, type Socket } from 'node:net'
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

/** HTTP/2 with bounds, in plain. It listens nowhere: it serves the connections that it is given. */
export function plainServer(): Http2Server {
  return createServer(LIMITS)
}

/** The same with TLS, for clients with a certificate. A handshake has 10 s by default. */
export function tlsServer(pems: TlsPems, handshakeMs = HANDSHAKE_MS): Http2SecureServer {
  return createSecureServer({
    ...LIMITS,
    ...contextOf(pems),
    requestCert: true,
    rejectUnauthorized: true,
    handshakeTimeout: handshakeMs,
  })
}

/** Replaces the certificates of future connections. */
export function renewTls(server: Http2SecureServer, pems: TlsPems): void {
  server.setSecureContext(contextOf(pems))
}

/** Takes the connections that an HTTP/2 server serves. One that its client has half closed is closed. */
export function listenerFor(take: (socket: Socket) => void): Server {
  const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEPALIVE_MS }
  return createNetServer(options, take)
}
