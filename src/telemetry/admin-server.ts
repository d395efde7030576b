import { chmod, lstat, mkdtemp, rename, rm } from 'node:fs/promises'
import { createConnection, createServer, type Server } from 'node:net'
import type { Cancel, Clock } from '../base/clock.ts'
import { errorOf } from '../base/thrown.ts'
import {
  type Handler,
  type HttpAnswer,
  HttpConnections,
  JSON_TYPE,
  NOT_FOUND,
  readOnly,
} from './http-connections.ts'
import type { ServerNews } from './http-server.ts'
import { jsonPieces } from './json-pieces.ts'

/** What the commands ask a running daemon; plain data, generators where it may be long, and no secrets. */
export interface AdminPages {
  readonly state: () => unknown
  /** What a pass would change now. */
  readonly plan: () => unknown
  readonly receipts: () => unknown
}

export interface AdminServerOptions extends AdminPages {
  readonly path: string
  readonly clock: Clock
  readonly report: (news: ServerNews) => void
}

const RETRY_MS = 5_000
const CONNECTIONS_MAX = 16

/**
 * GET /state, /plan and /receipts as JSON on a unix socket that only its owner can connect to. A socket file that an
 * earlier process left is replaced; one at which somebody answers is left alone, and tried again every 5 s.
 */
export class AdminServer {
  readonly #options: AdminServerOptions
  readonly #connections: HttpConnections
  #server: Server | undefined
  #retry: Cancel | undefined
  #complaint = ''
  #closed = false

  constructor(options: AdminServerOptions) {
    this.#options = options
    this.#connections = new HttpConnections({
      clock: options.clock,
      connectionsMax: CONNECTIONS_MAX,
      perPeerMax: CONNECTIONS_MAX,
      failed: error => this.#tell({ kind: 'trouble', place: options.path, error }),
    })
    void this.#open()
  }

  /** Removes the socket file and ends all connections. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#retry?.()
    this.#connections.close()
    if (this.#server === undefined) return
    this.#server.close()
    await rm(this.#options.path, { force: true })
  }

  async #open(): Promise<void> {
    const { path, report } = this.#options
    try {
      await assertFree(path)
      const server = await this.#listen()
      if (this.#closed) {
        server.close()
        await rm(path, { force: true })
        return
      }
      this.#server = server
      this.#complaint = ''
      report({ kind: 'listening', place: path })
    } catch (thrown) {
      this.#failed(errorOf(thrown))
    }
  }

  /** In a folder that nobody else can enter until the socket has its mode; then it takes its place in one step. */
  async #listen(): Promise<Server> {
    const { path } = this.#options
    const folder = await mkdtemp(`${path.slice(0, path.lastIndexOf('/') + 1)}.k`)
    try {
      const handle = adminHandler(this.#options, this.#options.clock)
      const server = await listening(`${folder}/s`, handle, this.#connections)
      await chmod(`${folder}/s`, 0o600)
      await rename(`${folder}/s`, path)
      server.on('error', error => this.#tell({ kind: 'trouble', place: path, error }))
      return server
    } finally {
      await rm(folder, { recursive: true, force: true })
    }
  }

  #failed(error: Error): void {
    if (this.#closed) return
    this.#retry = this.#options.clock.after(RETRY_MS, () => void this.#open())
    if (this.#complaint === error.message) return
    this.#complaint = error.message
    this.#tell({ kind: 'failed', place: this.#options.path, error, retryMs: RETRY_MS })
  }

  #tell(news: ServerNews): void {
    if (!this.#closed) this.#options.report(news)
  }
}

export function adminHandler(pages: AdminPages, clock: Clock): Handler {
  return readOnly(async ({ path }) => {
    switch (path) {
      case '/state':
        return json(await pages.state(), clock)
      case '/plan':
        return json(await pages.plan(), clock)
      case '/receipts':
        return json(await pages.receipts(), clock)
      default:
        return NOT_FOUND
    }
  })
}

function json(value: unknown, clock: Clock): HttpAnswer {
  return { status: 200, headers: JSON_TYPE, body: breathing(value, clock) }
}

async function* breathing(value: unknown, clock: Clock): AsyncGenerator<string> {
  for (const piece of jsonPieces(value)) {
    yield piece
    await clock.breathe()
  }
}

function listening(path: string, handle: Handler, connections: HttpConnections): Promise<Server> {
  return new Promise((resolve, reject) => {
    const server = createServer(socket => connections.accept(socket, handle))
    server.once('error', reject)
    server.listen({ path }, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
}

/** Whatever is at the path may go only if it is a socket that nobody listens at. */
async function assertFree(path: string): Promise<void> {
  const found = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (found === undefined) return
  if (!found.isSocket()) throw new Error('there is something that is no socket, and it is left alone')
  if (await isAnswered(path)) throw new Error('another process answers at this socket')
}

/** False for a socket file that nobody listens at, and for none. */
function isAnswered(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const probe = createConnection({ path })
    probe.once('connect', () => {
      probe.destroy()
      resolve(true)
    })
    probe.once('error', () => resolve(false))
  })
}
