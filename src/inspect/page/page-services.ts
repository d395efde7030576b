import { PersistentMap } from '../../base/collections.ts'
import { formatIpPort } from '../../base/ip.ts'
import { compareTexts, count, oneLine } from '../../base/text.ts'
import { FlagReader, quote, readArguments } from '../../config/flag.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import type { PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import type { Memo } from '../../model/resolve.ts'
import type { Service, ServiceKey } from '../../model/service.ts'
import { knownIn, type Loaded } from '../load.ts'
import { rounded, shareByDestination } from '../why/answer.ts'
import { QUESTION_FLAGS, readQuestion, resolveQuestion } from '../why/explain-question.ts'
import { refusedText, whyUnserved } from '../why/explain-reasons.ts'
import { type Explanation, explained, followed } from '../why/explanation.ts'
import { unforwarded } from '../why/outcome.ts'
import { drawingOf, pictureOf } from '../why/why-picture.ts'

interface PageService {
  readonly service: ServiceKey
  readonly type: string
  /** The first addresses where it is served: `10.96.0.1:80/TCP`, `*:30080/TCP`. */
  readonly frontends: readonly string[]
  readonly moreFrontends: number
  readonly endpoints: number
  readonly localEndpoints: number
  /** The problem, in words; empty where there is none. */
  readonly problem: string
}

interface ServicesPage {
  readonly matching: number
  readonly total: number
  readonly offset: number
  readonly rows: readonly PageService[]
}

const FRONTENDS_SHOWN = 4

/** Rows are in the order of their names before. */
const SORTS: ReadonlyMap<string, (a: PageService, b: PageService) => number> = new Map([
  ['endpoints', (a, b) => b.endpoints - a.endpoints],
  ['fewest', (a, b) => a.endpoints - b.endpoints],
  ['problem', (a, b) => Number(a.problem === '') - Number(b.problem === '')],
])

/** Gives the Services that a viewer requests: `filter`, `sort`, `problems=1`, `offset` and `limit`, at most 200. */
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
  const compare = SORTS.get(query.get('sort') ?? '')
  // 50 rows unless the page asks otherwise, and 200 at most: each is computed.
  const [offset, limit] = [wholeNumber(query.get('offset'), 0), wholeNumber(query.get('limit'), 50)]
  const end = offset + Math.min(limit, 200)
  // In the order of the names, only the rows on show are computed.
  if (compare === undefined && !onlyProblems)
    return { matching: named.length, total: all.length, offset, rows: named.slice(offset, end).map(rowOf) }
  const rows = named.map(rowOf).filter(({ problem }) => !onlyProblems || problem !== '')
  const sorted = compare === undefined ? rows : rows.sort(compare)
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

/** Says which cap of memory keeps a Service from being served; undefined where none does. */
function lackOf({ key }: Service, memo: Memo | undefined): string | undefined {
  const refused = memo?.caps.refused.get(key)
  return refused && `not served: it ${refused.refusal.reason}`
}

/** Says why nothing leads to a Service that has no frontend on this node, as `kprobe why` does. */
function unservedText(service: Service, loaded: Loaded, wallMs: number): string {
  const reasons =
    service.type === 'ExternalName'
      ? []
      : whyUnserved(service, {
          ...loaded,
          overCap: loaded.memo.caps.refused.values(),
          wallMs,
        })
  const texts = reasons.map(({ answer, text }) => answer ?? text)
  return texts.length === 0 ? `${service.key} needs no rules on this node` : texts.join('; ')
}

function problemOf(held: ServiceFrontends | undefined): string {
  if (held === undefined) return ''
  const { service, refusals } = held
  if (held.ports.every(({ frontends }) => frontends.length === 0))
    return refusals.map(each => refusedText(service, each)).join('; ')
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

interface Target {
  /** The value of `--to` of `kprobe why`. */
  readonly to: string
  readonly label: string
  readonly port: PortFrontends
}

const LISTED_MAX = 500
/** Endpoints of one port that a path is followed to: each takes some 0.2 ms, in which the daemon does nothing else. */
const FOLLOWED_MAX = 1_000

const NO_KERNEL = {
  kind: 'unknown',
  reason: 'the page does not read the rules in the kernel; `kprobe why` does',
} as const

/**
 * Explains the path to one Service (`service`), or to one of its frontends (`to`), for a client (`from`), as the daemon
 * understands it: the picture of `kprobe why -o svg`, and its endpoints with the reasons. Throws for what is not there.
 */
export function pathOf(source: PageSource, query: URLSearchParams): unknown {
  const { snapshot, table, memo } = source.held() ?? {}
  const key = query.get('service') ?? ''
  if (snapshot === undefined || table === undefined || memo === undefined)
    throw new Error('the daemon has not read all objects yet')
  const service = snapshot.services.get(key)
  if (service === undefined) throw new Error(`no Service ${quote(key)}`)
  const held = table.services.get(key)
  const known = { snapshot, table, memo, ...knownIn(source.snapshot()) }
  const targets = targetsOf(held, snapshot.node?.name)
  const [first] = targets
  const to = query.get('to') ?? first?.to
  const from = query.get('from') ?? 'outside'
  if (held === undefined || to === undefined)
    return { service: key, targets: [], from, answer: unservedText(service, known, source.wallMs()) }
  const target = targets.find(each => each.to === to)
  if (target === undefined) throw new Error(`Service ${key} is not served at ${quote(to)}`)
  const listed = targets.slice(0, LISTED_MAX).map(({ to, label }) => ({ to, label }))
  const { cluster, local } = target.port
  const size = Math.max(cluster.length, local.length)
  if (size > FOLLOWED_MAX) {
    const answer = `${key} has ${size} endpoints at this port, and the page follows the path to ${FOLLOWED_MAX} at most: \`kprobe why\` follows it to all`
    return { service: key, targets: listed, from, to, answer }
  }
  const question = questionOf(from, to)
  const loaded = {
    ...known,
    // The rules of all ports would block the daemon for too long.
    table: { ...table, services: PersistentMap.from([[key, { ...held, ports: [target.port] }]]) },
  }
  const path = followed(resolveQuestion(question, snapshot), source.config(), loaded)
  const explanation = explained(path, unforwarded(path.asked, source.sysctls) ?? NO_KERNEL, {
    hasDaemon: true,
    wallMs: source.wallMs(),
  })
  const { answer, service: port, frontend, reasons, notKnown } = explanation
  // Numbers would count within the rules of this port: in the kernel, others stand before them.
  const rules = explanation.rules.map(each => ({ ...each, rule: 0 }))
  return {
    service: key,
    targets: listed,
    from,
    to,
    answer,
    port,
    frontend,
    reasons,
    notKnown,
    rules: rules.map(({ chain, text }) => ({ chain, text: oneLine(text) })),
    drawing: drawingOf(pictureOf({ ...explanation, rules }, { from, to })),
    ...endpointsOf(explanation),
  }
}

function targetsOf(held: ServiceFrontends | undefined, nodeName: string | undefined): readonly Target[] {
  return (held?.ports ?? []).flatMap(its => {
    const { frontends, protocol, displayName } = its
    return frontends.flatMap(({ kind, ip, port }) => {
      const place = ip === undefined ? `node/${nodeName}:${port}` : formatIpPort(ip, port)
      if (ip === undefined && nodeName === undefined) return []
      const label = `${kind} ${place}/${protocol}, ${displayName}`
      return [{ to: `${place}/${protocol.toLowerCase()}`, label, port: its }]
    })
  })
}

function questionOf(from: string, to: string) {
  const reader = new FlagReader(readArguments([`--from=${from}`, `--to=${to}`], QUESTION_FLAGS))
  const question = readQuestion(reader)
  const [error] = reader.errors
  if (error !== undefined || question === undefined)
    throw new Error(error === undefined ? 'no question' : `${error.path} ${error.message}`)
  return question
}

function endpointsOf({ outcomes, endpoints, list = 'cluster' }: Explanation) {
  const shares = shareByDestination(outcomes)
  const rows = endpoints.map(({ address, pod, node, slice, [list]: { isIn, reason } }) => {
    const share = shares.get(address)
    return {
      address,
      pod,
      node,
      slice,
      isIn,
      reason,
      ...(share === undefined ? {} : { percent: rounded(share) }),
    }
  })
  const sorted = rows.sort((a, b) => Number(b.isIn) - Number(a.isIn))
  return {
    policy: list,
    endpoints: sorted.slice(0, LISTED_MAX),
    moreEndpoints: Math.max(0, rows.length - LISTED_MAX),
  }
}
