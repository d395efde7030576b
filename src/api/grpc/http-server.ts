import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { createSecureServer, createServer, type Http2SecureServer, type Http2Server } from 'node:http2'
import { createServer as createNetServer, type Server, type Socket } from 'node:net'
import {
  createSecureContext,
  createServer as createTlsServer,
  type SecureContextOptions,
  TLSSocket,
  type Server as TlsServer,
} from 'node:tls'
import type { Cancel, Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/errors.ts'
import { FollowedText } from '../../base/followed-text.ts'

const HANDSHAKE_MS = 10_000

/**
 * For each connection. RFC 9113 wants 100 calls at least. Of headers, gRPC suggests a limit of 8 KiB; a call has a dozen, the
 * longest of which is a token.
 */
const LIMITS = {
  settings: { maxConcurrentStreams: 128, maxHeaderListSize: 16 * 1024 },
  maxHeaderListPairs: 64,
} as const

/** HTTP/2 with bounds, in plain. It listens nowhere: it serves the connections that it is given. */
export function plainServer(): Http2Server {
  return createServer(LIMITS)
}

/** Serves with TLS, for clients with a certificate or, where methods check tokens, without. */
export function tlsServer(
  pems: TlsPems,
  handshakeMs = HANDSHAKE_MS,
  { takesTokens = false }: Pick<ApiTls, 'takesTokens'> = {},
): Http2SecureServer {
  return createSecureServer({
    ...LIMITS,
    ...contextOf(pems),
    requestCert: pems.clientCa !== '' || !takesTokens,
    rejectUnauthorized: !takesTokens,
    handshakeTimeout: handshakeMs,
  })
}

export function renewTls(server: Http2SecureServer, pems: TlsPems): void {
  server.setSecureContext(contextOf(pems))
}

/** Gives the expiry of the first certificate, its owner's, in milliseconds since 1970; NaN if there is none. */
export function expiryOf({ cert }: Pick<TlsPems, 'cert'>): number {
  try {
    return Date.parse(new X509Certificate(cert).validTo)
  } catch {
    return Number.NaN
  }
}

/** Handshakes at a time; the connections of clients beyond are closed. */
const HANDSHAKES_MAX = 16

/** TLS for clients with a certificate, on connections that another server accepts. */
export class TlsDoor {
  readonly #server: TlsServer
  #waiting = 0

  constructor(pems: TlsPems, handshakeMs = HANDSHAKE_MS) {
    const options = { ...contextOf(pems), requestCert: true, rejectUnauthorized: true }
    this.#server = createTlsServer({ ...options, handshakeTimeout: handshakeMs })
    // Each handshake listens. Beyond 10 listeners Node.js would write a warning to standard error.
    this.#server.setMaxListeners(HANDSHAKES_MAX + 1)
  }

  /** Passes the connection on once the client has shown its certificate. */
  enter(socket: Socket, take: (socket: Socket) => void): void {
    if (this.#waiting >= HANDSHAKES_MAX) {
      socket.destroy()
      return
    }
    this.#waiting++
    let isWaiting = true
    const settled = () => {
      if (isWaiting) this.#waiting--
      isWaiting = false
      this.#server.off('secureConnection', secured)
    }
    const secured = (secure: TLSSocket) => {
      if (secure.remotePort !== socket.remotePort || secure.remoteAddress !== socket.remoteAddress) return
      settled()
      take(secure)
    }
    this.#server.on('secureConnection', secured)
    socket.once('close', settled)
    this.#server.emit('connection', socket)
  }

  renew(pems: TlsPems): void {
    this.#server.setSecureContext(contextOf(pems))
  }
}

/** The organizations in the certificate of a client: the groups of a user of Kubernetes. */
export function organizationsOf(socket: Socket | undefined): readonly string[] {
  // An array where the subject has several of them, whatever the types of Node.js say.
  const organizations: unknown = subjectOf(socket)?.O
  return [organizations].flat().filter(each => typeof each === 'string')
}

/** The name in the certificate of a client: that of a user of Kubernetes. */
export function commonNameOf(socket: Socket | undefined): string | undefined {
  const name: unknown = subjectOf(socket)?.CN
  return typeof name === 'string' ? name : undefined
}

/** A server that takes tokens lets certificates of anybody in: those that no authority has signed identify no client. */
function subjectOf(socket: Socket | undefined) {
  return socket instanceof TLSSocket && socket.authorized ? socket.getPeerCertificate().subject : undefined
}

/** Takes the connections that an HTTP/2 server serves. One that its client has half closed is closed. */
export function listenerFor(take: (socket: Socket) => void): Server {
  // A peer whose machine is gone is noticed by TCP: one that only stalls answers there, and stays.
  const options = { noDelay: true, keepAlive: true, keepAliveInitialDelay: 60_000 }
  return createNetServer(options, take)
}

/** Paths of PEM files. */
export interface ApiTls {
  readonly certFile: string
  readonly keyFile: string
  /** Empty only where tokens are taken: no client shows a certificate then. */
  readonly clientCaFile: string
  /** The prefix of the flags that name them; `--api-tls` by default. */
  readonly flags?: string
  /** Clients without a certificate connect, too: a method of the server checks what they show instead. */
  readonly takesTokens?: boolean
}

/** The content of the files. Clients must have a certificate that one of the authorities signed. */
export interface TlsPems {
  readonly cert: string
  readonly key: string
  readonly clientCa: string
}

/** Rejects with an Error that names the flag and the path of what cannot be used. */
export async function readTls(files: ApiTls): Promise<TlsPems> {
  const pems = await readPems(files)
  check(files, pems)
  return pems
}

const FLAGS = '--api-tls'

async function readPems({ certFile, keyFile, clientCaFile, flags = FLAGS }: ApiTls): Promise<TlsPems> {
  // One after the other, so that of several unreadable files the error always names the first.
  const cert = await read(`${flags}-cert`, certFile)
  const key = await read(`${flags}-key`, keyFile)
  return { cert, key, clientCa: clientCaFile === '' ? '' : await read(`${flags}-client-ca`, clientCaFile) }
}

function check(
  { certFile, keyFile, clientCaFile, flags = FLAGS, takesTokens = false }: ApiTls,
  pems: TlsPems,
): void {
  const [own] = certificatesIn(`${flags}-cert`, certFile, pems.cert)
  if (own?.checkPrivateKey(privateKeyIn(`${flags}-key`, keyFile, pems.key)) === false)
    throw new Error(`${flags}-key: the key in ${keyFile} does not match the certificate in ${certFile}`)
  if (clientCaFile !== '' || !takesTokens) certificatesIn(`${flags}-client-ca`, clientCaFile, pems.clientCa)
  try {
    createSecureContext(contextOf(pems))
  } catch (thrown) {
    const { message } = errorOf(thrown)
    throw new Error(`${flags}-cert: ${certFile} cannot be used with its key and authorities: ${message}`)
  }
}

function contextOf({ cert, key, clientCa }: TlsPems): SecureContextOptions {
  return { cert, key, ...(clientCa === '' ? {} : { ca: clientCa }), minVersion: 'TLSv1.2' }
}

async function read(flag: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (thrown) {
    throw new Error(`${flag}: ${errorOf(thrown).message}`)
  }
}

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g

/** Reads at least one certificate: Node.js takes every public authority if OpenSSL is given none. */
function certificatesIn(flag: string, path: string, pem: string): readonly X509Certificate[] {
  const blocks = pem.match(CERTIFICATE) ?? []
  if (blocks.length === 0) throw new Error(`${flag}: there is no certificate in ${path}`)
  return blocks.map((block, index) => {
    try {
      return new X509Certificate(block)
    } catch (thrown) {
      throw new Error(`${flag}: certificate ${index + 1} in ${path}: ${errorOf(thrown).message}`)
    }
  })
}

function privateKeyIn(flag: string, path: string, pem: string): KeyObject {
  try {
    return createPrivateKey(pem)
  } catch (thrown) {
    throw new Error(`${flag}: no private key that can be read in ${path}: ${errorOf(thrown).message}`)
  }
}

interface TlsFollower {
  readonly clock: Clock
  /** The files' last valid content. */
  readonly pems: TlsPems
  readonly changed: (pems: TlsPems) => void
  /** The files are invalid: reported once, and the last valid content stays in use. */
  readonly failed: (error: Error) => void
}

/** Reads the files every minute, until it is canceled. */
export function followTls(files: ApiTls, { clock, pems, changed, failed }: TlsFollower): Cancel {
  const followed = new FollowedText<string>({
    clock,
    // Certificates are renewed in place. kubelet checks what it mounts as often.
    pollMs: 60_000,
    text: JSON.stringify(pems),
    read: async () => {
      try {
        return { text: JSON.stringify(await readPems(files)) }
      } catch (thrown) {
        return { error: errorOf(thrown).message }
      }
    },
    use: text => {
      const now: TlsPems = JSON.parse(text)
      try {
        check(files, now)
        changed(now)
        return undefined
      } catch (thrown) {
        return errorOf(thrown).message
      }
    },
    failed: message => failed(new Error(message)),
  })
  return () => void followed.stop()
}
