import type { Clock } from '../base/clock.ts'
import { compareTexts, inPieces, rfc3339 } from '../base/text.ts'
import {
  type Handler,
  isOwnHost,
  JSON_TYPE,
  listing,
  misdirected,
  NOT_FOUND,
  readOnly,
} from '../http/connections.ts'
import { HttpServer, type ServerNews } from '../http/server.ts'

/** The pages for the commands; plain data without secrets, generators where it may be long. */
export type AdminPages = {
  readonly state: () => unknown
  readonly plan: () => unknown
  readonly receipts: () => unknown
  /** The settings with which other commands compute the same state. */
  readonly config: () => unknown
  readonly snapshot: () => unknown
  readonly services: () => unknown
  /** Gives the Pods of endpoints, by their addresses. */
  readonly pods: () => unknown
  readonly status: () => unknown
  /** Gives the facts by which `kprobe status` judges this node; walks over all Services. */
  readonly health: () => unknown
  /** Gives the written configuration, metrics and health for a bug report. */
  readonly debug: () => unknown
}

interface AdminServerOptions extends AdminPages {
  readonly path: string
  readonly clock: Clock
  readonly report: (news: ServerNews) => void
  /** Answers what is below /ui/; absent where there is no page. */
  readonly page?: Handler | undefined
}

export const PAGE_PATH = '/ui/'

/**
 * Serves the pages as JSON, /state for the page `state`, and a list of the paths at /, on a unix socket. It replaces a
 * socket file that an earlier process left, and retries while another process answers there.
 */
export function openAdminServer({ path, clock, report, page, ...pages }: AdminServerOptions): HttpServer {
  return new HttpServer({
    at: { path },
    clock,
    // Commands open one at a time, the web page a few.
    connectionsMax: 16,
    handle: adminHandler(pages, clock, page),
    hardFail: false,
    report,
  })
}

function adminHandler(pages: AdminPages, clock: Clock, webPage: Handler | undefined): Handler {
  const names = Object.entries(pages).sort(([a], [b]) => compareTexts(a, b))
  const byPath = new Map(names.map(([name, page]) => [`/${name}`, page]))
  const listed = [...byPath.keys(), ...(webPage === undefined ? [] : [PAGE_PATH])]
  return readOnly(async request => {
    const { path, host } = request
    // The web page checks the host itself, and knows the name of the Node.
    if (webPage !== undefined && path.startsWith(PAGE_PATH)) return await webPage(request)
    // Scripts use any word as the host. A DNS name comes from a browser, through a forwarded port.
    if (host?.includes('.') === true && !isOwnHost(host, [])) return misdirected(host)
    if (path === '/') return listing(listed)
    const page = byPath.get(path)
    if (page === undefined) return NOT_FOUND
    return { status: 200, headers: JSON_TYPE, body: breathing(await page(), clock) }
  })
}

async function* breathing(value: unknown, clock: Clock): AsyncGenerator<string> {
  for (const piece of jsonPieces(value)) {
    yield piece
    await clock.breathe()
  }
}

/**
 * Formats plain data as JSON in pieces of about 16 KiB, so that a large answer is never one string in memory. An iterable
 * becomes a list, and is advanced as its items are written. Ignores toJSON.
 */
export function jsonPieces(value: unknown): Generator<string> {
  return inPieces(partsOf(value), 16 * 1024)
}

function* partsOf(value: unknown): Generator<string> {
  // One call of JSON.stringify writes 256 values at most.
  if (typeof value !== 'object' || value === null || roomAfter(value, 256) >= 0) {
    yield JSON.stringify(value) ?? 'null'
    return
  }
  for (const part of Symbol.iterator in value ? listParts(value) : objectParts(value)) yield part
}

function roomAfter(value: unknown, room: number): number {
  if (typeof value !== 'object' || value === null) return room - 1
  if (!Array.isArray(value) && Symbol.iterator in value) return -1
  let left = room - 1
  for (const item of Array.isArray(value) ? value : Object.values(value)) {
    if (left < 0) break
    left = roomAfter(item, left)
  }
  return left
}

function* listParts(list: object): Generator<string> {
  yield '['
  let separator = ''
  if (isIterable(list))
    for (const item of list) {
      yield separator
      for (const part of partsOf(item)) yield part
      separator = ','
    }
  yield ']'
}

function* objectParts(object: object): Generator<string> {
  yield '{'
  let separator = ''
  for (const [name, value] of Object.entries(object)) {
    if (value === undefined) continue
    yield `${separator}${JSON.stringify(name)}:`
    for (const part of partsOf(value)) yield part
    separator = ','
  }
  yield '}'
}

function isIterable(value: object): value is Iterable<unknown> {
  return Symbol.iterator in value && typeof value[Symbol.iterator] === 'function'
}

export interface ReceiptLike {
  readonly outcome: string
  readonly generation: unknown
  readonly foreign: boolean
  readonly refusals: readonly { readonly services: readonly string[]; readonly error: Error }[]
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

interface ReceiptLine extends Omit<ReceiptLike, 'refusals'> {
  readonly time: string
  readonly reason: string
  readonly changes: number
  readonly refusals: readonly { readonly services: readonly string[]; readonly error: string }[]
}

/** Keeps the last 128 commits, oldest first, each with its first 20 refusals. */
export class Receipts {
  readonly #wallMs: () => number
  readonly #lines: ReceiptLine[] = []

  constructor(wallMs: () => number) {
    this.#wallMs = wallMs
  }

  add(reason: string, changes: number, receipt: ReceiptLike): void {
    const { outcome, generation, foreign, bytes, messages, durationMs } = receipt
    const refusals = receipt.refusals
      .slice(0, 20)
      .map(({ services, error }) => ({ services: services.slice(0, 20), error: error.message }))
    const time = rfc3339(this.#wallMs())
    const figures = { changes, generation, foreign, bytes, messages, durationMs }
    this.#lines.push({ time, reason, outcome, ...figures, refusals })
    if (this.#lines.length > 128) this.#lines.shift()
  }

  get lines(): readonly ReceiptLine[] {
    return [...this.#lines]
  }
}
