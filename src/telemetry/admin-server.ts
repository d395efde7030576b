import { createServer, type Server } from 'node:net'
import type { Clock } from '../base/clock.ts'
import type { OverShare } from '../base/connection-gate.ts'
import { errorOf } from '../base/failure-text.ts'
import { Pacer } from '../base/pacer.ts'
import { listenAtUnixSocket } from '../base/unix-socket.ts'
import {
  type Handler,
  type HttpAnswer,
  HttpConnections,
  JSON_TYPE,
  listing,
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
  /** The settings with which other commands compute the same state. */
  readonly config: () => unknown
  /** The objects that the daemon has read. */
  readonly snapshot: () => unknown
}

interface AdminServerOptions extends AdminPages {
  readonly path: string
  readonly clock: Clock
  readonly report: (news: ServerNews) => void
}

interface Listening {
  readonly server: Server
  readonly removeFile: () => Promise<void>
}

/** The file first: as long as the socket is there, no other file has its number. */
async function endListening({ server, removeFile }: Listening): Promise<void> {
  await removeFile()
  server.close()
}

const RETRY_MS = 5_000
const CONNECTIONS_MAX = 16

/**
 * Serves /state, /plan, /receipts, /config and /snapshot as JSON, and a list of the paths at /, on a unix socket that
 * only its owner can connect to. A socket file that an earlier process left is replaced; one at which a process answers
 * stays, and is retried every 5 s.
 */
export class AdminServer {
  readonly #options: AdminServerOptions
  readonly #connections: HttpConnections
  readonly #openings: Pacer
  #server: Listening | undefined
  #complaint = ''
  #closed = false

  constructor(options: AdminServerOptions) {
    this.#options = options
    this.#connections = new HttpConnections({
      clock: options.clock,
      // All of them are of the socket's owner.
      limits: { connections: CONNECTIONS_MAX },
      crowded: crowd => this.#report({ kind: 'crowded', address: options.path, crowd }),
      failed: error => this.#report({ kind: 'trouble', address: options.path, error }),
    })
    this.#openings = new Pacer({ clock: options.clock, run: () => this.#open() })
    this.#openings.wake()
  }

  get overShare(): OverShare {
    return this.#connections.overShare
  }

  /** Removes the socket file and ends all connections. Idempotent. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    void this.#openings.stop()
    this.#connections.close()
    if (this.#server === undefined) return
    await endListening(this.#server)
  }

  /** Gives the time to the retry. */
  async #open(): Promise<number | undefined> {
    const { path, report } = this.#options
    try {
      const server = await this.#listen()
      if (this.#closed) {
        await endListening(server)
        return undefined
      }
      this.#server = server
      this.#complaint = ''
      report({ kind: 'listening', address: path })
      return undefined
    } catch (thrown) {
      this.#failed(errorOf(thrown))
      return RETRY_MS
    }
  }

  async #listen(): Promise<Listening> {
    const { path } = this.#options
    const handle = adminHandler(this.#options, this.#options.clock)
    const server = createServer(socket => this.#connections.accept(socket, handle))
    const removeFile = await listenAtUnixSocket(server, path)
    server.on('error', error => this.#report({ kind: 'trouble', address: path, error }))
    return { server, removeFile }
  }

  #failed(error: Error): void {
    if (this.#complaint === error.message) return
    this.#complaint = error.message
    this.#report({ kind: 'failed', address: this.#options.path, error, retryMs: RETRY_MS })
  }

  #report(news: ServerNews): void {
    if (!this.#closed) this.#options.report(news)
  }
}

function adminHandler(pages: AdminPages, clock: Clock): Handler {
  const byPath = new Map<string, () => unknown>([
    ['/config', pages.config],
    ['/plan', pages.plan],
    ['/receipts', pages.receipts],
    ['/snapshot', pages.snapshot],
    ['/state', pages.state],
  ])
  return readOnly(async ({ path }) => {
    if (path === '/') return listing([...byPath.keys()])
    const page = byPath.get(path)
    return page === undefined ? NOT_FOUND : json(await page(), clock)
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
