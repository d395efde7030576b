import { formatIpPort } from '../base/ip.ts'
import { compareTexts, count } from '../base/text.ts'
import { quote } from '../config/flag.ts'
import type { PageSource } from '../daemon/page.ts'
import type { ServiceFrontends } from '../model/frontend.ts'
import type { Memo } from '../model/resolve.ts'
import type { Service, ServiceKey } from '../model/service.ts'

/** One Service in the table of the web page. */
interface PageService {
  readonly service: ServiceKey
  readonly type: string
  /** The first addresses where it is served: `10.96.0.1:80/TCP`, `*:30080/TCP`. */
  readonly frontends: readonly string[]
  readonly moreFrontends: number
  readonly endpoints: number
  readonly localEndpoints: number
  /** What is wrong, in words; empty where nothing is. */
  readonly problem: string
}

/** A part of all Services, as the query asks for it. */
interface ServicesPage {
  /** Services that the filter lets through. */
  readonly matching: number
  readonly total: number
  readonly offset: number
  readonly rows: readonly PageService[]
}

const ROWS_MAX = 200
const ROWS_USUAL = 50
const FRONTENDS_SHOWN = 4

const SORTS: Readonly<Record<string, (a: PageService, b: PageService) => number>> = {
  name: () => 0,
  endpoints: (a, b) => b.endpoints - a.endpoints,
  fewest: (a, b) => a.endpoints - b.endpoints,
  problem: (a, b) => Number(a.problem === '') - Number(b.problem === ''),
}

/** Gives the Services that a viewer looks at: `filter`, `sort`, `problems=1`, `offset` and `limit`, at most 200. */
export function servicesPage(source: PageSource, query: URLSearchParams): ServicesPage {
  const { snapshot, table, memo, quarantined = [] } = source.held() ?? {}
  const rejected = new Map(quarantined.map(({ service, error }) => [service, error.message]))
  const filter = query.get('filter')?.trim().toLowerCase() ?? ''
  const onlyProblems = query.get('problems') === '1'
  const rowOf = (service: Service) => {
    const held = table?.services.get(service.key)
    const error = rejected.get(service.key)
    const lack = error === undefined ? lackOf(service, memo) : `rejected by the kernel: ${error}`
    return pageService(service, held, lack ?? problemOf(held))
  }
  const all = snapshot?.services.values() ?? []
  const named = all
    .filter(({ key }) => key.toLowerCase().includes(filter))
    .sort((a, b) => compareTexts(a.key, b.key))
  const sort = query.get('sort') ?? 'name'
  const [offset, limit] = [wholeNumber(query.get('offset'), 0), wholeNumber(query.get('limit'), ROWS_USUAL)]
  const end = offset + Math.min(limit, ROWS_MAX)
  // In the order of the names, only the rows on show are computed.
  if (sort === 'name' && !onlyProblems)
    return { matching: named.length, total: all.length, offset, rows: named.slice(offset, end).map(rowOf) }
  const rows = named.map(rowOf).filter(({ problem }) => !onlyProblems || problem !== '')
  const sorted = rows.sort(SORTS[sort] ?? SORTS.name)
  return { matching: rows.length, total: all.length, offset, rows: sorted.slice(offset, end) }
}

function wholeNumber(text: string | null, otherwise: number): number {
  return text !== null && /^\d{1,7}$/.test(text) ? Number(text) : otherwise
}

function pageService(
  { key, type }: Service,
  held: ServiceFrontends | undefined,
  problem: string,
): PageService {
  const ports = held?.ports ?? []
  const frontends = ports.flatMap(({ frontends, protocol }) =>
    frontends.map(({ ip, port }) => `${ip === undefined ? `*:${port}` : formatIpPort(ip, port)}/${protocol}`),
  )
  const sum = (numbers: readonly number[]) => numbers.reduce((total, number) => total + number, 0)
  return {
    service: key,
    type,
    frontends: frontends.slice(0, FRONTENDS_SHOWN),
    moreFrontends: Math.max(0, frontends.length - FRONTENDS_SHOWN),
    endpoints: sum(ports.map(({ cluster, local }) => cluster.length || local.length)),
    localEndpoints: sum(
      ports.map(
        ({ cluster, local }) => (cluster.length > 0 ? cluster : local).filter(each => each.local).length,
      ),
    ),
    problem,
  }
}

/** Says why a Service is not served for want of memory; undefined where it is. */
function lackOf({ key, leftOut, refusals: [refused] }: Service, memo: Memo | undefined): string | undefined {
  const refusal =
    memo?.admission?.oversized.get(key)?.refusal ?? (leftOut === undefined ? undefined : refused)
  return refusal && `not served: it ${refusal.reason}`
}

/** Says why nothing leads to a Service that has no frontend on this node. */
export function whyUnserved(service: Service, held: ServiceFrontends | undefined, memo: Memo): string {
  const { key, type, proxyName } = service
  const lack = lackOf(service, memo)
  if (lack !== undefined) return `${key} is ${lack}`
  const ignored = (held?.refusals ?? []).map(
    ({ field, value, reason }) => `it asks for ${value} (${field}), which kprobe refuses: ${reason}`,
  )
  if (ignored.length > 0) return `${key} is not served: ${ignored.join('; ')}`
  if (held !== undefined || type === 'ExternalName') return `${key} needs no rules on this node`
  return `${proxyName === undefined ? 'the unnamed proxy' : `the proxy ${quote(proxyName)}`} serves ${key}`
}

function problemOf(held: ServiceFrontends | undefined): string {
  if (held === undefined) return ''
  const without = held.ports.filter(({ frontends }) =>
    frontends.some(({ route: { kind } }) => kind === 'reject' || kind === 'drop'),
  )
  return [
    ...(without.length === 0
      ? []
      : [`no usable endpoint: ${without.map(port => port.displayName).join(', ')}`]),
    ...(held.refusals.length === 0 ? [] : [`${count(held.refusals.length, 'field')} ignored`]),
  ].join('; ')
}
