import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { type Clock, processCpuMs } from '../base/clock.ts'
import { errorText } from '../base/errors.ts'
import type { Page, PageSource } from '../daemon/page.ts'
import { type HttpAnswer, type HttpRequest, JSON_TYPE, NOT_FOUND, readOnly } from '../http/connections.ts'
import { isJson } from '../model/fields.ts'
import { PAGE_PATH } from '../telemetry/admin-server.ts'
import { TokenBucket } from '../telemetry/events.ts'
import { pathOf } from './page-path.ts'
import { openSampler, PageRates, type Timed } from './page-rates.ts'
import { servicesPage } from './page-services.ts'

/** A script of another origin, an inline one and a frame around the page are refused by the browser. */
const SAFE_HEADERS = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  'X-Content-Type-Options': 'nosniff',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'Cache-Control': 'no-store',
} as const

/** The files of the page in the folder ui/ beside the program (deploy/build.mjs), by their paths. */
const FILES: ReadonlyMap<string, { readonly name: string; readonly type: string }> = new Map([
  ['', { name: 'page.html', type: 'text/html; charset=utf-8' }],
  ['page.js', { name: 'page.js', type: 'text/javascript; charset=utf-8' }],
  ['page.css', { name: 'page.css', type: 'text/css; charset=utf-8' }],
])

/** Makes the web page of a daemon: its files, and its data as JSON, computed for each request. */
export function openPage(
  source: PageSource,
  folder = new URL('./ui/', import.meta.url),
  cpuMs = processCpuMs,
): Page {
  const rates = new PageRates(source.clock, () => openSampler(source))
  const data = new Map<string, (query: URLSearchParams, timed: Timed) => unknown>([
    ['status', () => statusOf(source)],
    ['services', query => servicesPage(source, query)],
    ['path', query => pathOf(source, query)],
    ['rates', (query, timed) => rates.read(query, timed)],
    ['receipts', () => source.receipts()],
    ['config', () => ({ flags: Object.fromEntries(source.flags), configuration: source.configz() })],
  ])
  const viewers = new Viewers(source.clock, cpuMs)
  const answer = async ({ path, query, client }: HttpRequest): Promise<HttpAnswer> => {
    const place = path.slice(PAGE_PATH.length)
    const file = FILES.get(place)
    if (file !== undefined) {
      const body = await readFile(fileURLToPath(new URL(file.name, folder)), 'utf8')
      return { status: 200, headers: { 'Content-Type': file.type }, body }
    }
    const page = place.startsWith('data/') ? data.get(place.slice('data/'.length)) : undefined
    return page === undefined ? NOT_FOUND : await viewers.answer(client, timed => page(query, timed))
  }
  return {
    handle: readOnly(async request => {
      const { headers, ...rest } = await answer(request)
      return { ...rest, headers: { ...headers, ...SAFE_HEADERS } }
    }),
    close: () => rates.close(),
  }
}

/** The data of one viewer may take a tenth of a processor, a second of it at once. A request counts for 1 ms at least. */
const BUDGET = { size: 1_000, refillMs: 10 } as const
/** More viewers than connections; the oldest is forgotten. */
const VIEWERS_MAX = 64
const TOO_OFTEN: HttpAnswer = {
  status: 429,
  headers: { ...JSON_TYPE, 'Retry-After': '1' },
  body: JSON.stringify({ error: 'this viewer asks more than the daemon answers; try again' }),
}

/** Answers viewers, each within a budget of the daemon's time. */
class Viewers {
  readonly #clock: Clock
  readonly #cpuMs: () => number
  readonly #budgets = new Map<string, TokenBucket>()

  constructor(clock: Clock, cpuMs: () => number) {
    this.#clock = clock
    this.#cpuMs = cpuMs
  }

  /** A question that has no answer, such as a Service that is gone, is an answer as well: `{"error": "..."}`. */
  async answer(client = '', read: (timed: Timed) => unknown): Promise<HttpAnswer> {
    const budget = this.#budgetOf(client)
    if (!budget.take()) return TOO_OFTEN
    // Time that the machine gives to others, or that is waited for, is no work of this request.
    const timed: Timed = work => {
      const startMs = this.#cpuMs()
      try {
        return work()
      } finally {
        budget.charge(this.#cpuMs() - startMs)
      }
    }
    try {
      const value = await timed(() => read(timed))
      return { status: 200, headers: JSON_TYPE, body: timed(() => JSON.stringify(value)) }
    } catch (error) {
      return { status: 422, headers: JSON_TYPE, body: JSON.stringify({ error: errorText(error) }) }
    }
  }

  #budgetOf(client: string): TokenBucket {
    const known = this.#budgets.get(client)
    if (known !== undefined) return known
    const [oldest] = this.#budgets.keys()
    if (this.#budgets.size >= VIEWERS_MAX && oldest !== undefined) this.#budgets.delete(oldest)
    const budget = new TokenBucket({ ...BUDGET, nowMs: () => this.#clock.nowMs() })
    this.#budgets.set(client, budget)
    return budget
  }
}

function statusOf({ status, version, config }: PageSource): unknown {
  const known = status()
  return { version, node: config().nodeName, ...(isJson(known) ? known : {}) }
}
