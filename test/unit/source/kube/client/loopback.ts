import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer as createPlainServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createSecureServer, type Http2SecureServer, type ServerHttp2Stream } from 'node:http2'
import { createServer as createHttpsServer } from 'node:https'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach } from 'vitest'
import { systemClock } from '../../../../../src/base/clock.ts'
import type { ApiClient, ApiRequest, ApiResponse } from '../../../../../src/source/kube/api-client.ts'
import { type ClientOptions, openApiClient } from '../../../../../src/source/kube/client/http-client.ts'
import { eventually, Patience } from '../../../../support/patience.ts'
import { type Authority, createAuthority, type KeyPair } from '../../../../support/tls.ts'

/** Stands for whatever must never be printed. */
export const CANARY = 'canary-5ecre7-t0ken-which-must-stay-secret'

export type Handler = (request: IncomingMessage, response: ServerResponse) => void

export interface ServerOptions {
  readonly protocol: 'h2' | 'http/1.1' | 'plain'
  readonly handler: Handler
  readonly authority?: Authority
  readonly pair?: KeyPair
  readonly host?: string
  readonly port?: number
  /** Asks clients for a certificate of this authority. */
  readonly clientCa?: string
  readonly maxConcurrentStreams?: number
}

export interface LoopbackServer {
  readonly url: string
  readonly port: number
  readonly caPem: string
  readonly connections: ReadonlySet<Socket>
  /** Of all times. */
  readonly accepted: number
  /** The sessions of an HTTP/2 server. */
  readonly http2: Http2SecureServer | undefined
  close(): Promise<void>
}

/** Servers, files and clients of one test, cleared away after it. */
export class Loopback {
  readonly #endings: (() => Promise<unknown>)[] = []
  readonly warnings: string[] = []
  #folder: Promise<string> | undefined

  async serve(options: ServerOptions): Promise<LoopbackServer> {
    const authority = options.authority ?? createAuthority()
    const { server, http2 } = makeServer(options, options.pair ?? authority.issue())
    const track = await listen(server, options)
    this.#endings.push(track.close)
    const scheme = options.protocol === 'plain' ? 'http' : 'https'
    const host = options.host ?? '127.0.0.1'
    return Object.assign(track, { url: `${scheme}://${host}:${track.port}`, caPem: authority.caPem, http2 })
  }

  /** A listener of bytes. */
  async listen(run: (socket: Socket) => unknown, where: Pick<Partial<ServerOptions>, 'host' | 'port'> = {}) {
    const track = await listen(createServer(run), where)
    this.#endings.push(track.close)
    return track
  }

  /** Passes bytes to a server, and stops doing so when told: nothing is closed, nothing arrives. */
  async link(port: number) {
    let frozen = false
    const { port: entry } = await this.listen(near => {
      const far = connect(port, '127.0.0.1')
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        from.on('error', () => to.destroy())
        from.on('close', () => to.destroy())
        from.on('data', piece => {
          if (!frozen) to.write(piece)
        })
      }
    })
    return {
      port: entry,
      freeze: (isFrozen: boolean): void => {
        frozen = isFrozen
      },
    }
  }

  folder(): Promise<string> {
    this.#folder ??= mkdtemp(join(tmpdir(), 'kprobe-client-')).then(folder => {
      this.#endings.push(() => rm(folder, { recursive: true }))
      return folder
    })
    return this.#folder
  }

  async file(name: string, text: string): Promise<string> {
    const path = join(await this.folder(), name)
    await writeFile(path, text, { mode: 0o600 })
    return path
  }

  /** A kubeconfig with one context, from fields of its cluster and user. */
  kubeconfig(cluster: object, user: object = { token: CANARY }): Promise<string> {
    return this.file(
      'kubeconfig',
      JSON.stringify({
        apiVersion: 'v1',
        kind: 'Config',
        clusters: [{ name: 'here', cluster }],
        users: [{ name: 'me', user }],
        contexts: [{ name: 'both', context: { cluster: 'here', user: 'me' } }],
        'current-context': 'both',
      }),
    )
  }

  async open(options: Partial<ClientOptions> = {}): Promise<ApiClient> {
    const client = await openApiClient({
      kubeconfig: '',
      master: '',
      qps: 0,
      burst: 1,
      clock: systemClock,
      env: {},
      warn: text => this.warnings.push(text),
      ...options,
    })
    this.#endings.push(() => client.close())
    return client
  }

  /** A client of a server, with its authority and a token or this user. */
  async openTo(
    server: { readonly url: string; readonly caPem: string },
    options: Partial<ClientOptions> = {},
    user?: object,
  ): Promise<ApiClient> {
    return this.open({ kubeconfig: await this.kubeconfig(clusterOf(server), user), ...options })
  }

  /** A server that answers so, and a client of it. */
  async opened(protocol: ServerOptions['protocol'], handler: Handler, options?: Partial<ClientOptions>) {
    const server = await this.serve({ protocol, handler })
    return { server, client: await this.openTo(server, options) }
  }

  /** An HTTP/2 server that leaves each stream to `run`, and a client of it. */
  async openedStreams(run: (stream: ServerHttp2Stream, count: number) => unknown) {
    const streams: ServerHttp2Stream[] = []
    const { server, client } = await this.opened('h2', () => undefined)
    server.http2?.removeAllListeners('request')
    server.http2?.on('stream', stream => {
      stream.on('error', () => undefined)
      run(stream, streams.push(stream))
    })
    return { server, client, streams }
  }

  /** Clients first: a server waits for them. */
  async clear(): Promise<void> {
    for (const end of this.#endings.splice(0).reverse()) await end()
  }
}

export function loopback(): () => Loopback {
  let current: Loopback | undefined
  afterEach(async () => {
    await current?.clear()
    current = undefined
  })
  return () => {
    current ??= new Loopback()
    return current
  }
}

export function clusterOf({ url, caPem }: { readonly url: string; readonly caPem: string }): object {
  return { server: url, 'certificate-authority-data': Buffer.from(caPem).toString('base64') }
}

export function get(path: string, more: Partial<ApiRequest> = {}): ApiRequest {
  return {
    method: 'GET',
    path,
    accept: 'application/json',
    idleMs: 20_000,
    longLived: false,
    signal: new AbortController().signal,
    ...more,
  }
}

export async function textOf(response: ApiResponse): Promise<string> {
  const pieces: Uint8Array[] = []
  for await (const piece of response.body) pieces.push(piece)
  return Buffer.concat(pieces).toString('utf8')
}

export async function getText(client: ApiClient, path: string): Promise<string> {
  return textOf(await client.send(get(path)))
}

/** What a promise is rejected with; fails when it is not. */
export async function failureOf(work: Promise<unknown>): Promise<Error & { readonly kind?: string }> {
  try {
    await work
  } catch (error) {
    if (error instanceof Error) return error
    throw error
  }
  throw new Error('it succeeded')
}

/** Waits for real events. */
export async function until(holds: () => boolean, what = 'the condition'): Promise<void> {
  await eventually(holds, { stepMs: 2, describe: () => what })
}

/** What a request fails with once the client has noticed that its connection is gone. */
export async function failureBeyondLoss(client: ApiClient): Promise<Error & { readonly kind?: string }> {
  for (const patience = new Patience(); !patience.isOver; ) {
    const error = await failureOf(getText(client, '/'))
    if (!('kind' in error) || error.kind !== 'lost') return error
    await pause(5)
  }
  throw new Error('requests are lost without end')
}

export function pause(ms: number): Promise<void> {
  return new Promise(resolve => setTimeout(resolve, ms))
}

function makeServer(
  options: ServerOptions,
  pair: KeyPair,
): { readonly server: Server; readonly http2: Http2SecureServer | undefined } {
  const { handler, clientCa, maxConcurrentStreams } = options
  const tls = {
    cert: pair.certPem,
    key: pair.keyPem,
    ...(clientCa === undefined ? {} : { ca: clientCa, requestCert: true }),
  }
  if (options.protocol === 'plain') return { server: createPlainServer(handler), http2: undefined }
  if (options.protocol === 'http/1.1') return { server: createHttpsServer(tls, handler), http2: undefined }
  const http2 = createSecureServer({
    ...tls,
    ...(maxConcurrentStreams === undefined ? {} : { settings: { maxConcurrentStreams } }),
  })
  http2.on('request', (request, response) => {
    request.stream.on('error', () => undefined)
    // The compatible half of the two interfaces is all that handlers use.
    handler(request as unknown as IncomingMessage, response as unknown as ServerResponse)
  })
  http2.on('session', session => session.on('error', () => undefined))
  return { server: http2, http2 }
}

async function listen(server: Server, { host = '127.0.0.1', port = 0 }: Partial<ServerOptions>) {
  const connections = new Set<Socket>()
  const counts = { accepted: 0 }
  server.on('connection', (socket: Socket) => {
    counts.accepted++
    connections.add(socket)
    socket.on('error', () => undefined)
    socket.on('close', () => connections.delete(socket))
  })
  await new Promise<void>(resolve => server.listen(port, host, () => resolve()))
  const address = server.address() as AddressInfo
  return {
    port: address.port,
    connections,
    get accepted() {
      return counts.accepted
    },
    close: (): Promise<void> => {
      for (const socket of connections) socket.destroy()
      return new Promise(resolve => server.close(() => resolve()))
    },
  }
}
