import type { Clock } from '../base/clock.ts'
import { type Handler, JSON_TYPE, listing, NOT_FOUND, readOnly } from '../http/connections.ts'
import { HttpServer, type ServerNews } from '../http/server.ts'
import { jsonPieces } from './json-pieces.ts'

/** The pages for the commands; plain data without secrets, generators where it may be long. */
export interface AdminPages {
  readonly state: () => unknown
  /** The changes of a pass that would run now. */
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

const CONNECTIONS_MAX = 16

/**
 * Serves /state, /plan, /receipts, /config and /snapshot as JSON, and a list of the paths at /, on a unix socket. It
 * replaces a socket file that an earlier process left, and retries while another process answers there.
 */
export function openAdminServer({ path, clock, report, ...pages }: AdminServerOptions): HttpServer {
  return new HttpServer({
    at: { path },
    clock,
    connectionsMax: CONNECTIONS_MAX,
    handle: adminHandler(pages, clock),
    hardFail: false,
    report,
  })
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
    if (page === undefined) return NOT_FOUND
    return { status: 200, headers: JSON_TYPE, body: breathing(await page(), clock) }
  })
}

/** Lets other work run between two pieces. */
async function* breathing(value: unknown, clock: Clock): AsyncGenerator<string> {
  for (const piece of jsonPieces(value)) {
    yield piece
    await clock.breathe()
  }
}
