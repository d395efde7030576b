import { formatIp, formatIpPort } from '../../base/ip.ts'
import { compareTexts, count } from '../../base/text.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import { type Backend, endpointCount, type ServiceFrontends } from '../../model/frontend.ts'
import type { Service, ServiceKey, SliceList } from '../../model/service.ts'
import { type UnansweredRow, unansweredText } from '../live/unanswered-rows.ts'
import { knownIn } from '../load.ts'
import { refusedText } from '../why/explain-reasons.ts'

export interface PageService {
  readonly service: ServiceKey
  readonly type: string
  /** The first addresses where it is served: `10.96.0.1:80/TCP`, `*:30080/TCP`. */
  readonly frontends: readonly string[]
  readonly moreFrontends: number
  readonly endpoints: number
  readonly localEndpoints: number
  /** The problem, in words; empty where there is none. */
  readonly problem: string
  readonly severity: Severity
  /** New connections a second; absent while nothing counts them. */
  readonly perSecond?: number
}

/** `part`: a field is ignored. `unanswered`: endpoints do not reply. `idle`: no usable endpoint. `refused`: not served. */
export type Severity = keyof typeof SEVERITIES

const SEVERITIES = { none: 0, part: 1, idle: 2, unanswered: 3, refused: 4 } as const

interface ServicesPage {
  readonly matching: number
  readonly total: number
  readonly offset: number
  readonly rows: readonly PageService[]
}

const FRONTENDS_SHOWN = 4

type Compare = (a: PageService, b: PageService) => number

const byRate: Compare = (a, b) => (b.perSecond ?? 0) - (a.perSecond ?? 0)

/** Rows are in the order of their names before, which equals keep. */
const SORTS: ReadonlyMap<string, Compare> = new Map<string, Compare>([
  ['endpoints', (a, b) => b.endpoints - a.endpoints],
  ['fewest', (a, b) => a.endpoints - b.endpoints],
  ['rate', byRate],
  ['worst', (a, b) => SEVERITIES[b.severity] - SEVERITIES[a.severity] || byRate(a, b)],
])

/** What is measured of a Service, by its key. */
export interface Measured {
  readonly perSecond: number
  /** The worst endpoint that does not reply. */
  readonly silent?: UnansweredRow
}

/** The Services of a daemon as the page shows them. What is known of a Service is computed again when it changes. */
export class ServiceRows {
  readonly #source: PageSource
  #known = new WeakMap<Service, KnownService>()

  constructor(source: PageSource) {
    this.#source = source
  }

  /** Frees the memory of what is known: no viewer asks any more. */
  forget(): void {
    this.#known = new WeakMap()
  }

  /**
   * Gives the Services that a viewer requests, the worst first: `filter` (a part of a name, an address, a pod or a problem),
   * `sort`, `problems=1`, `offset` and `limit`, at most 200. Services that are refused as a whole are among them.
   */
  page(query: URLSearchParams, measured?: ReadonlyMap<ServiceKey, Measured>): ServicesPage {
    const filter = query.get('filter')?.trim().toLowerCase() ?? ''
    const onlyProblems = query.get('problems') === '1'
    const all = this.#rows(measured)
    const matching = all.filter(
      ({ row: { problem, severity }, text }) =>
        (!onlyProblems || severity !== 'none') &&
        (text().includes(filter) || problem.toLowerCase().includes(filter)),
    )
    const compare = SORTS.get(query.get('sort') ?? '')
    // 50 rows unless the page asks otherwise, and 200 at most.
    const [offset, limit] = [wholeNumber(query.get('offset'), 0), wholeNumber(query.get('limit'), 50)]
    const rows = matching.map(({ row }) => row).sort((a, b) => compareTexts(a.service, b.service))
    const sorted = compare === undefined ? rows : rows.sort(compare)
    const shown = sorted.slice(offset, offset + Math.min(limit, 200))
    return { matching: rows.length, total: all.length, offset, rows: shown }
  }

  #rows(measured: ReadonlyMap<ServiceKey, Measured> = new Map()): readonly SearchedRow[] {
    const { snapshot, memo, quarantined = [] } = this.#source.held() ?? {}
    const rejected = new Map(quarantined.map(({ service, error }) => [service, error.message]))
    const rowOf = (service: Service): SearchedRow => {
      const { key } = service
      const { row, text } = this.#knownOf(service)
      const error = rejected.get(key)
      const lack = memo?.caps.refused.get(key)
      if (error !== undefined) return { row: refused(row, `rejected by the kernel: ${error}`), text }
      if (lack !== undefined) return { row: refused(row, `not served: it ${lack.refusal.reason}`), text }
      const its = measured.get(key)
      return { row: its === undefined ? row : withMeasured(row, its), text }
    }
    const known = snapshot?.services.values().map(rowOf) ?? []
    const wholly = knownIn(this.#source.snapshot()).refusedObjects.flatMap(({ object, reason }) => {
      const key = /^Service (.+)$/.exec(object)?.[1]
      if (key === undefined || snapshot?.services.has(key) === true) return []
      return [{ row: refused({ service: key, ...NOTHING }, `refused: ${reason}`), text: () => key }]
    })
    return [...known, ...wholly]
  }

  #knownOf(service: Service): KnownService {
    const { snapshot, table } = this.#source.held() ?? {}
    const [held, slices] = [table?.services.get(service.key), snapshot?.slices.get(service.key)]
    const known = this.#known.get(service)
    if (known !== undefined && known.held === held && known.slices === slices) return known
    let searched: string | undefined
    const text = () => {
      searched ??= searchedText(service.key, held, slices)
      return searched
    }
    const news = { held, slices, row: pageService(service, held), text }
    this.#known.set(service, news)
    return news
  }
}

interface SearchedRow {
  readonly row: PageService
  /** The name, the addresses and the pods, in lower case. */
  readonly text: () => string
}

/** What follows from the objects alone. It is valid as long as they are the same. */
interface KnownService extends SearchedRow {
  readonly held: ServiceFrontends | undefined
  readonly slices: SliceList | undefined
}

function searchedText(
  key: ServiceKey,
  held: ServiceFrontends | undefined,
  slices: SliceList | undefined = [],
): string {
  const ports = held?.ports ?? []
  const places = ports.flatMap(({ frontends }) =>
    frontends.map(({ ip, port }) => (ip === undefined ? `:${port}` : formatIpPort(ip, port))),
  )
  const endpoints = slices.flatMap(({ endpoints, targetNames = '' }) => [
    ...endpoints.map(({ ip }) => formatIp(ip)),
    targetNames,
  ])
  return [key.toLowerCase(), ...places, ...endpoints].join('\n')
}

function wholeNumber(text: string | null, otherwise: number): number {
  return text !== null && /^\d{1,7}$/.test(text) ? Number(text) : otherwise
}

const NOTHING = {
  type: '',
  frontends: [],
  moreFrontends: 0,
  endpoints: 0,
  localEndpoints: 0,
  problem: '',
  severity: 'none',
} as const

function refused(row: PageService, problem: string): PageService {
  return { ...row, problem, severity: 'refused' }
}

function withMeasured(row: PageService, { perSecond, silent }: Measured): PageService {
  if (silent === undefined || row.severity === 'refused') return { ...row, perSecond }
  const text = unansweredText(silent)
  const problem = row.problem === '' ? text : `${text}; ${row.problem}`
  return { ...row, perSecond, severity: 'unanswered', problem }
}

function pageService({ key, type }: Service, held: ServiceFrontends | undefined): PageService {
  const shown: string[] = []
  let [frontends, endpoints, localEndpoints] = [0, 0, 0]
  for (const port of held?.ports ?? []) {
    frontends += port.frontends.length
    for (const { ip, port: number } of port.frontends.slice(0, FRONTENDS_SHOWN - shown.length))
      shown.push(`${ip === undefined ? `*:${number}` : formatIpPort(ip, number)}/${port.protocol}`)
    endpoints += endpointCount(port)
    const here = (list: readonly Backend[]) => list.filter(({ local }) => local)
    localEndpoints += endpointCount({ cluster: here(port.cluster), local: here(port.local) })
  }
  const counts = { moreFrontends: frontends - shown.length, endpoints, localEndpoints }
  return { service: key, type, frontends: shown, ...counts, ...problemOf(held) }
}

function problemOf(held: ServiceFrontends | undefined): Pick<PageService, 'problem' | 'severity'> {
  if (held === undefined) return { problem: '', severity: 'none' }
  const { service, refusals, ports } = held
  if (refusals.length > 0 && ports.every(({ frontends }) => frontends.length === 0))
    return { problem: refusals.map(each => refusedText(service, each)).join('; '), severity: 'refused' }
  const without = ports.filter(({ frontends }) =>
    frontends.some(({ route: { kind } }) => kind === 'reject' || kind === 'drop'),
  )
  const names = without.map(({ displayName }) => displayName.slice(service.length + 1)).join(', ')
  const texts = [
    ...(without.length === 0
      ? []
      : [`no usable endpoint${without.length === ports.length ? '' : ` for ${names}`}`]),
    ...(refusals.length === 0 ? [] : [`${count(refusals.length, 'field')} ignored`]),
  ]
  return {
    problem: texts.join('; '),
    severity: without.length > 0 ? 'idle' : refusals.length > 0 ? 'part' : 'none',
  }
}
