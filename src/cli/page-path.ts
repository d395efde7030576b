import { PersistentMap } from '../base/collections.ts'
import { formatIpPort } from '../base/ip.ts'
import { oneLine } from '../base/text.ts'
import { FlagReader, quote, readArguments } from '../config/flag.ts'
import type { PageSource } from '../daemon/page.ts'
import { isJson } from '../model/fields.ts'
import type { PortFrontends, ServiceFrontends } from '../model/frontend.ts'
import { rounded, shareByDestination } from './answer.ts'
import { QUESTION_FLAGS, readQuestion, resolveQuestion } from './explain-question.ts'
import { type Explanation, explained, followed } from './explanation.ts'
import { knownIn } from './load.ts'
import { whyUnserved } from './page-services.ts'
import { drawingOf, pictureOf } from './why-picture.ts'

/** A frontend whose path can be shown. */
interface Target {
  /** As `--to` of `kprobe why` names it. */
  readonly to: string
  readonly label: string
  readonly port: PortFrontends
}

/** Targets and endpoints of one Service that the page lists. */
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
  const targets = targetsOf(held, snapshot.node?.name)
  const [first] = targets
  const to = query.get('to') ?? first?.to
  const from = query.get('from') ?? 'outside'
  if (held === undefined || to === undefined)
    return { service: key, targets: [], from, answer: whyUnserved(service, held, memo) }
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
  const json = source.snapshot()
  const loaded = {
    snapshot,
    // The rules of one port: those of all would take their time, in which the daemon does nothing else.
    table: { ...table, services: PersistentMap.from([[key, { ...held, ports: [target.port] }]]) },
    memo,
    ...knownIn(isJson(json) ? json : {}),
  }
  const explanation = explained(
    followed(resolveQuestion(question, snapshot), source.config(), loaded),
    NO_KERNEL,
    { hasDaemon: true, wallMs: source.wallMs() },
  )
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
  const reader = new FlagReader(
    readArguments([`--from=${from}`, `--to=${to}`], QUESTION_FLAGS, () => undefined),
  )
  const question = readQuestion(reader)
  const [error] = reader.errors
  if (error !== undefined || question === undefined)
    throw new Error(error === undefined ? 'no question' : `${error.path} ${error.message}`)
  return question
}

/** Each endpoint with its share of the connections, and the reason that it is in or out. */
function endpointsOf({ outcomes, endpoints, list = 'cluster' }: Explanation) {
  const shares = shareByDestination(outcomes)
  const rows = endpoints.map(({ address, node, slice, [list]: { isIn, reason } }) => {
    const share = shares.get(address)
    return { address, node, slice, isIn, reason, ...(share === undefined ? {} : { percent: rounded(share) }) }
  })
  const sorted = rows.sort((a, b) => Number(b.isIn) - Number(a.isIn))
  return {
    policy: list,
    endpoints: sorted.slice(0, LISTED_MAX),
    moreEndpoints: Math.max(0, rows.length - LISTED_MAX),
  }
}
