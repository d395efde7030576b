import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import type { Clock } from '../../base/clock.ts'
import { errorText } from '../../base/errors.ts'
import { rfc3339 } from '../../base/text.ts'
import { HERE } from '../../daemon/open.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import { type HttpAnswer, type HttpRequest, JSON_TYPE, NOT_FOUND, readOnly } from '../../http/connections.ts'
import { createConntrackClient } from '../../kernel/conntrack/client.ts'
import { isJson } from '../../model/fields.ts'
import type { ServiceKey } from '../../model/service.ts'
import { PAGE_PATH } from '../../telemetry/admin-server.ts'
import type { TokenBucket } from '../../telemetry/events.ts'
import type { TopState } from '../live/top-sampler.ts'
import { isSilent } from '../live/unanswered-rows.ts'
import { CurveHistory } from './page-curves.ts'
import { type DumpTable, PageFlows } from './page-flows.ts'
import { pathOf } from './page-path.ts'
import { openSampler, PageRates, type Timed } from './page-rates.ts'
import type { Page } from './page-server.ts'
import { type Measured, ServiceRows } from './page-services.ts'
import { pageStatus } from './page-status.ts'
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
  const services = new ServiceRows(source)
  const flows = new PageFlows(source, dumpTable(source.clock))
  const rates = new PageRates(
    source.clock,
    () => openSampler(source),
    () => {
      services.forget()
      flows.forget()
    },
  )
  const curves = new CurveHistory()
  const measured = () => measuredOf(rates.last)
  const data = new Map<string, (query: URLSearchParams, timed: Timed) => unknown>([
    ['status', () => statusOf(source)],
    ['node', async () => ({ ...statusOf(source), document: await pageStatus(source, rates.last) })],
    ['curves', () => curvesOf({ source, rates, curves })],
    ['services', query => services.page(query, measured())],
    ['path', query => pathOf(source, query, rates.last)],
    ['rates', (query, timed) => rates.read(query, timed)],
    ['flows', query => flows.read(query)],
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

function statusOf({ status, version, config, wallMs }: PageSource) {
  const known = status()
  const now = rfc3339(wallMs())
  return { version, node: config().nodeName, now, ...(isJson(known) ? known : {}) }
}

/** Sums up by Service what was measured of its endpoints. Pure. */
function measuredOf(last: TopState | undefined): ReadonlyMap<ServiceKey, Measured> {
  const sums = new Map<ServiceKey, Measured>()
  const add = (port: string, measured: (before: Measured) => Measured) => {
    const [key = ''] = port.split(':')
    sums.set(key, measured(sums.get(key) ?? { perSecond: 0 }))
  }
  for (const { service, perSecond } of last?.rows ?? [])
    add(service, before => ({ ...before, perSecond: before.perSecond + perSecond }))
  // The worst comes first.
  for (const row of last?.unanswered?.rows ?? [])
    if (isSilent(row, UNANSWERED_MIN)) add(row.service, before => ({ silent: row, ...before }))
  return sums
}

/** Fewer connections may be one client that gave up. */
const UNANSWERED_MIN = 3

interface CurveSources {
  readonly source: PageSource
  readonly rates: PageRates
  readonly curves: CurveHistory
}

/** Measures once more, and gives the curves; those that the kernel denies stay empty, with the reason. */
async function curvesOf({ source, rates, curves }: CurveSources): Promise<unknown> {
  const { clock, wallMs } = source
  let notices: readonly string[]
  try {
    const state = await rates.state()
    curves.take(state, clock.nowMs())
    notices = state.notices
  } catch (error) {
    notices = [errorText(error)]
  }
  return { ...curves.read(clock.nowMs(), { journal: source.receipts(), wallMs: wallMs() }), notices }
}

/** Opens the connection table for one reading. */
function dumpTable(clock: Clock): DumpTable {
  return async take => {
    const conntrack = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock })
    try {
      await conntrack.dumpAll(take)
    } finally {
      await conntrack.close()
    }
  }
}
