import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Cancel, Clock } from '../../base/clock.ts'
import { errorText } from '../../base/errors.ts'
import { defaultAdminSocket } from '../../config/own-flags.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import { type HttpAnswer, type HttpRequest, JSON_TYPE, NOT_FOUND, readOnly } from '../../http/connections.ts'
import { isJson } from '../../model/fields.ts'
import { PAGE_PATH } from '../../telemetry/admin-server.ts'
import type { TokenBucket } from '../../telemetry/events.ts'
import { FlowNames } from '../live/flow-reading.ts'
import { FIRST_VIEW, rowsOf, SORTS } from '../live/top-rows.ts'
import { TopSampler, type TopState } from '../live/top-sampler.ts'
import type { Page } from './page-server.ts'
import { pathOf, servicesPage } from './page-services.ts'
import { ClientBudgets } from './refusal-pace.ts'

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
export function openPage(source: PageSource, folder = new URL('./ui/', import.meta.url)): Page {
  const rates = new PageRates(source.clock, () => openSampler(source))
  const data = new Map<string, (query: URLSearchParams, timed: Timed) => unknown>([
    ['status', () => statusOf(source)],
    ['services', query => servicesPage(source, query)],
    ['path', query => pathOf(source, query)],
    ['rates', (query, timed) => rates.read(query, timed)],
    ['receipts', () => source.receipts()],
    ['config', () => ({ flags: Object.fromEntries(source.flags), configuration: source.configz() })],
  ])
  const budgets = new ClientBudgets(source.clock, BUDGET)
  const answer = async ({ path, query, client }: HttpRequest): Promise<HttpAnswer> => {
    const place = path.slice(PAGE_PATH.length)
    const file = FILES.get(place)
    if (file !== undefined) {
      const body = await readFile(fileURLToPath(new URL(file.name, folder)), 'utf8')
      return { status: 200, headers: { 'Content-Type': file.type }, body }
    }
    const page = place.startsWith('data/') ? data.get(place.slice('data/'.length)) : undefined
    if (page === undefined) return NOT_FOUND
    return await answered(budgets.of(client), source.clock, timed => page(query, timed))
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
const TOO_OFTEN: HttpAnswer = {
  status: 429,
  headers: { ...JSON_TYPE, 'Retry-After': '1' },
  body: JSON.stringify({ error: 'this viewer sends too many requests; retry later' }),
}

/**
 * Answers a viewer within its budget of processor time; elapsed time does not count. A question that has no answer, such as
 * a Service that is gone, is an answer as well: `{"error": "..."}`.
 */
async function answered(
  budget: TokenBucket,
  clock: Clock,
  read: (timed: Timed) => unknown,
): Promise<HttpAnswer> {
  if (!budget.take()) return TOO_OFTEN
  const timed: Timed = work => {
    const startMs = clock.cpuMs()
    try {
      return work()
    } finally {
      budget.charge(clock.cpuMs() - startMs)
    }
  }
  try {
    const value = await timed(() => read(timed))
    return { status: 200, headers: JSON_TYPE, body: timed(() => JSON.stringify(value)) }
  } catch (error) {
    return { status: 422, headers: JSON_TYPE, body: JSON.stringify({ error: errorText(error) }) }
  }
}

function statusOf({ status, version, config }: PageSource): unknown {
  const known = status()
  return { version, node: config().nodeName, ...(isJson(known) ? known : {}) }
}

/** Does work for one viewer, and counts the processor time that it takes. */
export type Timed = <T>(work: () => T) => T

type Sampler = Pick<TopSampler, 'sample' | 'close'>

interface Sampling {
  readonly sampler: Promise<Sampler>
  state: Promise<TopState>
  sampledMs: number
}

/** Counts for the page as `kprobe top` does: one sampler for all viewers, which ends with the last of them. */
export class PageRates {
  readonly #clock: Clock
  readonly #open: () => Promise<Sampler>
  #sampling: Sampling | undefined
  #idle: Cancel | undefined
  #closing: Promise<void> = Promise.resolve()

  constructor(clock: Clock, open: () => Promise<Sampler>) {
    this.#clock = clock
    this.#open = open
  }

  /** Gives the rows that a viewer requests: `by=endpoint`, `filter` and `sort`, the first 100. Selects them in `timed`. */
  async read(query: URLSearchParams, timed: Timed): Promise<unknown> {
    const { rows: all, ...state } = await this.#state()
    const sort = SORTS.find(each => each === query.get('sort')) ?? FIRST_VIEW.sort
    const by = query.get('by') === 'endpoint' ? 'endpoint' : 'service'
    const view = { ...FIRST_VIEW, sort, by, filter: query.get('filter') ?? '' } as const
    const rows = timed(() => rowsOf({ rows: all }, view))
    return { ...state, matching: rows.length, rows: rows.slice(0, 100) }
  }

  async close(): Promise<void> {
    this.#idle?.()
    const sampling = this.#sampling
    this.#sampling = undefined
    if (sampling === undefined) return await this.#closing
    this.#closing = sampling.sampler.then(
      async sampler => {
        // A sample that is under way reads from sockets that close() would end.
        await sampling.state.catch(() => undefined)
        await sampler.close()
      },
      () => undefined,
    )
    await this.#closing
  }

  async #state(): Promise<TopState> {
    const clock = this.#clock
    this.#idle?.()
    // The page counts as closed after so long without a request.
    this.#idle = clock.after(10_000, () => void this.close())
    const sampling = this.#sampling ?? this.#begin()
    try {
      // Time between two samples, for any number of viewers.
      if (clock.nowMs() - sampling.sampledMs >= 1_000) {
        sampling.sampledMs = clock.nowMs()
        sampling.state = sampling.state.then(async () => await (await sampling.sampler).sample())
      }
      return await sampling.state
    } catch (error) {
      await this.close()
      throw error
    }
  }

  #begin(): Sampling {
    const sampler = this.#open()
    const state = sampler.then(its => its.sample())
    this.#sampling = { sampler, state, sampledMs: this.#clock.nowMs() }
    return this.#sampling
  }
}

async function openSampler({ clock, wallMs, config }: PageSource): Promise<TopSampler> {
  const { adminSocket: own, serviceProxyName: proxyName } = config()
  // The default one may be missing, which is no error: names of Services then come from the kernel.
  const adminSocket = own === defaultAdminSocket(proxyName) ? '' : own
  const names = await FlowNames.open({ clock, adminSocket, proxyName })
  return new TopSampler({ clock, wallMs, names, service: '', proxyName })
}
